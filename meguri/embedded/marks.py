"""What the bus says of a folder that was made by other means than its inbox: whether it is whole, and what it needs.

Such a folder has states that no log could give again: unlike other campaigns it can't do without its first snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_common.bus.port import TopicPartition
from meguri_common.errors import DataFolderError

if TYPE_CHECKING:
    from pathlib import Path

    from meguri_common.bus.embedded import EmbeddedBus
    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.partition import Surroundings
    from meguri_common.runtime.service import ServiceSpec

__all__ = ["UNFINISHED", "check_finished", "check_founded", "mark_finished", "start_over"]

UNFINISHED = "campaign/unfinished"
"""While this row is there, a command that makes the folder has not come to its end; it holds the command's name."""

_FOUNDED = "campaign/founded"
"""The command that made the folder; absent where `meguri run` did."""


def check_finished(bus: EmbeddedBus, data: Path, making: str | None) -> None:
    """Refuse a folder that a command has left half made, and a finished one to a command that makes one.

    Args:
        bus: the folder's.
        data: the folder.
        making: name of the command that makes it; None: of another.

    Raises:
        DataFolderError: names the way out.
    """
    left = bus.get(UNFINISHED)
    if left is None:
        if making is not None:
            msg = f"{data}: holds a campaign already, and meguri {making} makes a new one: give a new or empty folder"
            raise DataFolderError(msg)
    elif left.decode() != making:
        msg = (
            f"{data}: a meguri {left.decode()} into it has not come to its end. Start it again with the same inputs, "
            "or remove the folder."
        )
        raise DataFolderError(msg)


def start_over(files: FileSystem) -> None:
    """Remove what an unfinished command has left of shards and snapshots: nobody has been told of it."""
    for name in files.list("store"):
        if files.is_folder(f"store/{name}"):
            files.remove(f"store/{name}")
    files.remove("state")


def mark_finished(bus: EmbeddedBus) -> None:
    """What the folder was made of is all there: from here on it is a campaign like any other."""
    bus.barrier()
    producer = bus.producer("campaign")
    producer.begin()
    producer.put(_FOUNDED, bus.get(UNFINISHED) or b"")
    producer.delete([UNFINISHED])
    producer.commit()
    producer.close()
    bus.barrier()


def check_founded(data: Path, bus: EmbeddedBus, around: Surroundings, specs: tuple[ServiceSpec, ...]) -> None:
    """Refuse a folder that was made by other means and has lost a first snapshot, or its later ones.

    Raises:
        DataFolderError: names the partition.
    """
    founded = bus.get(_FOUNDED)
    if founded is None:
        return
    for spec in specs:
        for number in range(bus.partitions(spec.input_topic)) if spec.stateful else ():
            # Where a log has been trimmed, a restore notices by itself.
            trimmed = bus.watermarks(TopicPartition(spec.input_topic, number))[0] > 0
            store = around.snapshots(spec, number)
            if not trimmed and not store.whole():
                found = ", ".join(store.damaged()) or f"{store.folder} holds none"
                msg = (
                    f"{data}: partition {number} of {spec.name} has no whole snapshot ({found}), and its inbox can't "
                    f"give it again: meguri {founded.decode()} made the folder. Put back a copy, or make it anew."
                )
                raise DataFolderError(msg)
