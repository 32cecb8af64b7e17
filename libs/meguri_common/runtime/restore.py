"""Restore: the highest whole snapshot, then the inbox up to the committed offset with the outputs thrown away.

Whatever can't be restored without a gap is refused, with the way out. The snapshots are listed before the committed
offset is read: the other way round, a snapshot taken in between would look like one above the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_common.errors import ParametersChanged, RestoreRefused
from meguri_common.runtime.outputs import Outputs
from meguri_common.runtime.partition import COMMIT_MARK, LoadedPartition, take_snapshot
from meguri_common.runtime.skips import apply_without_skipped

if TYPE_CHECKING:
    from meguri_common.bus.port import Commit, TopicPartition
    from meguri_common.runtime.partition import Surroundings
    from meguri_common.runtime.service import ServiceSpec
    from meguri_common.runtime.snapshots import Snapshot

__all__ = ["adopt_parameters", "restore"]

_WAY_OUT = "Restore the log or the snapshots from a copy, or start a new data folder."
_READ_BYTES = 8 << 20
"""Bytes of inbox that a restore holds in memory at once."""


def restore(spec: ServiceSpec, number: int, group: str, around: Surroundings) -> LoadedPartition:
    """Load a partition's state at its committed offset. Writes nothing.

    Args:
        spec: the service.
        number: the partition.
        group: the group under which its offsets are committed.
        around: bus, files, identity.

    Raises:
        RestoreRefused: snapshots, commit and log don't fit together; the message names the way out.
        CampaignMismatch: the snapshot is of another campaign.
        CorruptSnapshot: a file of the snapshot is damaged.
    """
    snapshots = around.snapshots(spec, number)
    found = snapshots.whole() if spec.stateful else []
    best = found[0] if found else None
    loaded = LoadedPartition(
        spec=spec,
        number=number,
        service=spec.create(number, dict(best.parameters if best else spec.parameters)),
        position=best.offset if best else 0,
        parameters=dict(best.parameters if best else spec.parameters),
        snapshots=snapshots,
        snapshot=best,
    )
    committed = _committed(around.bus.committed(group, loaded.source), best, loaded.source)
    if not spec.stateful:
        loaded.position = committed
        _check_log(loaded, committed, around)
        return loaded
    _check(loaded, committed, around)
    if best:
        loaded.service.load(snapshots.reader(best))
    _read_again(loaded, committed, around)
    return loaded


def adopt_parameters(loaded: LoadedPartition, around: Surroundings) -> LoadedPartition:
    """Change to the parameters and logic version given, if they differ from the state's: only from a clean stop.

    The change is a snapshot at the same offset with a higher sequence, written before the first step under the new
    ones. A fresh partition gets its first snapshot here, so that parameters are known from offset 0 on.

    Raises:
        ParametersChanged: the state was not left by a clean stop.
    """
    spec, given = loaded.spec, dict(loaded.spec.parameters)
    spec.on_owned(loaded.service)
    if not spec.stateful:
        return loaded
    same = loaded.parameters == given and (
        loaded.snapshot is None or loaded.snapshot.logic_version == spec.logic_version
    )
    if same:
        if loaded.snapshot is None:
            take_snapshot(loaded, around)
        return loaded
    if loaded.snapshot is None or loaded.snapshot.offset != loaded.position:
        changed = sorted(
            name for name in given.keys() | loaded.parameters.keys() if given.get(name) != loaded.parameters.get(name)
        )
        msg = (
            f"{spec.name}, partition {loaded.number}: parameters changed ({', '.join(changed) or 'logic'}), "
            "but the folder was left in the middle of a run. Finish that run first: start it once with the old "
            "parameters and without new input, then again with the new ones."
        )
        raise ParametersChanged(msg)
    changed_state = LoadedPartition(
        spec=spec,
        number=loaded.number,
        service=spec.create(loaded.number, dict(given)),
        position=loaded.position,
        parameters=given,
        snapshots=loaded.snapshots,
        snapshot=loaded.snapshot,
    )
    changed_state.service.load(loaded.snapshots.reader(loaded.snapshot))
    spec.on_owned(changed_state.service)
    take_snapshot(changed_state, around, quick=True)
    return changed_state


def _committed(commit: Commit | None, best: Snapshot | None, source: TopicPartition) -> int:
    if commit is None:
        return best.offset if best is not None and best.clean else 0
    if not commit.metadata.startswith(COMMIT_MARK):
        msg = (
            f"{source}: the committed offset {commit.offset} was not written by meguri (its mark is "
            f"{commit.metadata!r}): another tool moved it. Set it back to what it was."
        )
        raise RestoreRefused(msg)
    return commit.offset


def _check(loaded: LoadedPartition, committed: int, around: Surroundings) -> None:
    """Refuse what would leave a gap between snapshot, commit and log."""
    best, source = loaded.snapshot, loaded.source
    if best is not None:
        around.identity.check(best.identity, f"the snapshot of {loaded.spec.name}, partition {loaded.number},")
        if best.topic_id != around.bus.topic_id(source.topic):
            msg = f"{source} was made anew since the snapshot at offset {best.offset} was written. {_WAY_OUT}"
            raise RestoreRefused(msg)
        if best.offset > committed:
            msg = f"{source}: a snapshot at offset {best.offset} is above the committed offset {committed}. {_WAY_OUT}"
            raise RestoreRefused(msg)
        if best.offset < committed and best.logic_version != loaded.spec.logic_version:
            msg = (
                f"{loaded.spec.name}, partition {loaded.number}: offsets {best.offset} to {committed} were handled by "
                f"logic version {best.logic_version}, this program has {loaded.spec.logic_version}. Finish the run "
                "with the release that started it."
            )
            raise RestoreRefused(msg)
    _check_log(loaded, committed, around)


def _check_log(loaded: LoadedPartition, committed: int, around: Surroundings) -> None:
    best, source = loaded.snapshot, loaded.source
    first, end = around.bus.watermarks(source)
    if max(loaded.position, committed) > end:
        msg = f"{source}: the log ends at {end}, below offset {max(loaded.position, committed)}. {_WAY_OUT}"
        raise RestoreRefused(msg)
    if first > loaded.position:
        damaged = loaded.snapshots.damaged()
        found = f"Damaged, missing or cut short: {', '.join(damaged)}. " if damaged else ""
        if loaded.spec.stateful and best is None and not damaged:
            found = f"There is no snapshot in {loaded.snapshots.folder}. "
        msg = f"{source}: the log begins at {first}, above the state's offset {loaded.position}. {found}{_WAY_OUT}"
        raise RestoreRefused(msg)


def _read_again(loaded: LoadedPartition, committed: int, around: Surroundings) -> None:
    # The committed offset is known: the records of all that was skipped below it are there.
    skipped = around.skips.records(loaded.source) if around.skips and loaded.position < committed else {}
    while loaded.position < committed:
        messages = around.bus.read(loaded.source, loaded.position, end=committed, max_bytes=_READ_BYTES)
        if not messages:
            loaded.position = committed
            return
        # What follows from these messages was published when they were first applied.
        apply_without_skipped(loaded.service, messages, skipped, Outputs(around.identity.digest()))
        loaded.position = messages[-1].offset + 1
        loaded.inbox_bytes += sum(memoryview(message.payload).nbytes for message in messages)
