"""The data folder of a campaign: identity, bus, services, opened to write by one process or to look by any number."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meguri.embedded.marks import UNFINISHED, check_finished, check_founded, mark_finished, start_over
from meguri_canonicalizer.parser import PARSER_LEVEL
from meguri_canonicalizer.policy import DEFAULT, Policy, load_policy
from meguri_canonicalizer.service import canonicalizer_spec
from meguri_common.bus.embedded import EmbeddedBus
from meguri_common.errors import CampaignMismatch, DataFolderError, ParameterError
from meguri_common.identity import CampaignIdentity
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.partition import Surroundings
from meguri_common.runtime.restore import restore
from meguri_common.suffixes import suffix_list
from meguri_common.topics import DELTAS, FRONTIER, LINKS, PAGES, REJECTS
from meguri_dedup.service import dedup_spec
from meguri_prioritizer.service import prioritizer_spec
from meguri_store.manifest import write_manifest
from meguri_store.service import CompactionRules, store_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.partition import LoadedPartition
    from meguri_common.runtime.service import ServiceSpec
    from meguri_store.background import Jobs

__all__ = ["DEFAULT_PARTITIONS", "Campaign", "open_campaign", "reopen_campaign", "service_specs", "view_campaign"]

DEFAULT_PARTITIONS = 8
_IDENTITY = "campaign/identity"
_POLICY = "campaign/policy"
_PARAMETERS = "campaign/parameters"
_BUS_FILE = "bus.db"
_OLD_DELTA = 6 * 3600.0
"""Seconds after which a long-lived service compacts a delta that is still small."""

_WAY_OUT = "Give the folder of a campaign with --data, or start one with: meguri run INPUT --data DIR"


@dataclass(frozen=True)
class Campaign:
    """An open data folder."""

    data: Path
    identity: CampaignIdentity
    policy: Policy
    bus: EmbeddedBus
    around: Surroundings
    specs: tuple[ServiceSpec, ...]
    """Canonicalizer, dedup, prioritizer, store: the order in which they step."""
    parameters: dict[str, dict[str, Any]]
    """Those changed from the defaults, by service."""

    def spec(self, name: str) -> ServiceSpec:
        """A service by name."""
        return next(spec for spec in self.specs if spec.name == name)

    def look(self, service: str, partition: int) -> LoadedPartition:
        """A partition's state as committed, restored to look at; nothing is written."""
        return restore(self.spec(service), partition, service, self.around)

    def remember_parameters(self) -> None:
        """Let later runs go on under these parameters. To be called once the services have taken them over."""
        blob = json.dumps(self.parameters, sort_keys=True).encode()
        if blob != (self.bus.get(_PARAMETERS) or b"{}"):
            producer = self.bus.producer("campaign")
            producer.begin()
            producer.put(_PARAMETERS, blob)
            producer.commit()
            producer.close()

    def finish(self) -> None:
        """End what `open_campaign(making=...)` began."""
        mark_finished(self.bus)

    def close(self) -> None:
        """Let the folder go."""
        self.bus.close()


def open_campaign(
    data: Path,
    *,
    partitions: int | None = None,
    policy: Path | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    like: Campaign | None = None,
    making: str | None = None,
    now: Callable[[], float] = time.time,
) -> Campaign:
    """Open a data folder to write; make it if it is new or empty.

    Args:
        data: the folder.
        partitions: number of partitions; fixed by the first run (default there: 8).
        policy: file of the URL policy; fixed by the first run (default there: nothing is folded).
        parameters: parameters to change, by service; what was changed before stays so.
        like: a campaign that gives policy and parameters.
        making: name of the command that fills a new folder by other means than the inbox, and calls `finish` at the
            end. Only a new folder will do, or one that the same command has left unfinished: that starts over.
        now: clock, epoch seconds.

    Raises:
        PolicyError: the policy can't be compiled.
        ParameterError: a parameter is unknown or out of range.
        DataFolderLocked: another living process writes to it.
        CampaignMismatch: partitions, policy, suffix list or parser differ from those it was made with.
        DataFolderError: it is no data folder, or can't be written.
    """
    given = load_policy(policy) if policy is not None else like.policy if like is not None else None
    source = policy.read_bytes() if policy is not None else b""
    if like is not None:
        source, parameters = like.bus.get(_POLICY) or b"", like.parameters
    _check_folder(data)
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        msg = f"{data}: can't be made: {problem.strerror or problem}"
        raise DataFolderError(msg) from problem
    first = partitions or DEFAULT_PARTITIONS
    bus = EmbeddedBus(data / _BUS_FILE, topics=_topics(first), now=now)
    try:
        known = bus.get(_IDENTITY)
        if known is None:
            _check_unused(data)
            compiled = given or DEFAULT
            identity = _identity(secrets.token_hex(8), first, compiled)
            producer = bus.producer("campaign")
            producer.begin()
            producer.put(_POLICY, source)
            producer.put(_IDENTITY, identity.encode())
            if making is not None:
                producer.put(UNFINISHED, making.encode())
            producer.commit()
            producer.close()
            bus.barrier()
        else:
            check_finished(bus, data, making)
            identity, compiled = _known(bus, known, data, partitions, given)
            if making is not None:
                start_over(LocalFiles(data))
        changed = json.loads(bus.get(_PARAMETERS) or b"{}")
        for service, values in (parameters or {}).items():
            changed[service] = {**changed.get(service, {}), **values}
        campaign = _campaign(data, identity, compiled, bus, changed, now)
        write_manifest(campaign.around.files, identity)
        check_founded(data, bus, campaign.around, campaign.specs)
    except BaseException:
        bus.close()
        raise
    return campaign


def view_campaign(data: Path, *, now: Callable[[], float] = time.time) -> Campaign:
    """Open a data folder to look; the process that writes, if there is one, isn't disturbed.

    Raises:
        DataFolderError: there is no campaign in it.
    """
    _check_there(data)
    bus = EmbeddedBus(data / _BUS_FILE, topics={}, now=now, read_only=True)
    try:
        check_finished(bus, data, None)
        identity, compiled = _known(bus, bus.get(_IDENTITY), data, None, None)
        campaign = _campaign(data, identity, compiled, bus, {}, now)
        check_founded(data, bus, campaign.around, campaign.specs)
    except BaseException:
        bus.close()
        raise
    return campaign


def reopen_campaign(data: Path, *, now: Callable[[], float] = time.time) -> Campaign:
    """Open a data folder to write where there is a campaign already.

    Raises:
        DataFolderLocked: another living process writes to it.
        CampaignMismatch: suffix list or parser differ from those it was made with.
        DataFolderError: there is no campaign in it, or it can't be used.
    """
    _check_there(data)
    return open_campaign(data, now=now)


def _check_there(data: Path) -> None:
    if not (data / _BUS_FILE).is_file():
        msg = f"{data}: no campaign there. {_WAY_OUT}"
        raise DataFolderError(msg)


def _check_folder(data: Path) -> None:
    """Refuse a folder that holds something else: a mistyped --data must not be littered."""
    if not data.exists():
        return
    if not data.is_dir():
        msg = f"{data}: not a folder"
        raise DataFolderError(msg)
    foreign = [
        entry.name
        for entry in data.iterdir()
        if entry.name not in {"state", "store", "lost+found"} and not entry.name.startswith(_BUS_FILE)
    ]
    if foreign and not (data / _BUS_FILE).exists():
        msg = f"{data}: holds other files ({', '.join(sorted(foreign)[:3])}): give a new or empty folder"
        raise DataFolderError(msg)


def _check_unused(data: Path) -> None:
    """Refuse a new bus beside an old frontier: nothing in it could be gone on with."""
    manifest = data / "store" / "store.json"
    if manifest.exists():
        msg = (
            f"{data / _BUS_FILE}: empty or gone, though there is a frontier beside it ({manifest}). "
            "Put back a copy of it, or start a new data folder."
        )
        raise DataFolderError(msg)


def _topics(partitions: int) -> dict[str, int]:
    return {PAGES: 1, LINKS: partitions, FRONTIER: partitions, DELTAS: partitions, REJECTS: 1}


def _identity(name: str, partitions: int, policy: Policy) -> CampaignIdentity:
    return CampaignIdentity(
        campaign=name,
        partitions=partitions,
        group_by=policy.group_by,
        policy=policy.digest(),
        suffix_list=suffix_list().digest,
        url_parser=PARSER_LEVEL,
    )


def _known(
    bus: EmbeddedBus, blob: bytes | None, data: Path, partitions: int | None, policy: Policy | None
) -> tuple[CampaignIdentity, Policy]:
    if blob is None:
        msg = f"{data}: a run was started there and ended before its first step. {_WAY_OUT}"
        raise DataFolderError(msg)
    found = CampaignIdentity.decode(blob)
    if partitions is not None and partitions != found.partitions:
        msg = (
            f"{data} was made with {found.partitions} partitions, --partitions says {partitions}. "
            "The number is fixed for a campaign: leave the option out, or use another folder."
        )
        raise CampaignMismatch(msg)
    source = bus.get(_POLICY)
    stored = Policy.from_document(json.loads(source)) if source else DEFAULT
    mine = _identity(found.campaign, found.partitions, policy or stored)
    mine.check(found, str(data))
    return found, stored


def _campaign(
    data: Path,
    identity: CampaignIdentity,
    policy: Policy,
    bus: EmbeddedBus,
    parameters: dict[str, dict[str, Any]],
    now: Callable[[], float],
) -> Campaign:
    files = LocalFiles(data)
    around = Surroundings(bus=bus, files=files, identity=identity, now=now, token=lambda: secrets.token_hex(6))
    specs = service_specs(identity, policy, files, around.token, parameters)
    return Campaign(data, identity, policy, bus, around, specs, parameters)


def service_specs(
    identity: CampaignIdentity,
    policy: Policy,
    files: FileSystem,
    token: Callable[[], str],
    parameters: Mapping[str, Mapping[str, Any]],
    jobs: Jobs | None = None,
) -> tuple[ServiceSpec, ...]:
    """How canonicalizer, dedup, prioritizer and store are made, in the order in which they step.

    Args:
        identity: the campaign.
        policy: its URL policy.
        files: the data folder.
        token: a random part of a file name.
        parameters: what differs from the defaults, by service.
        jobs: who compacts the store beside its intake; by default a snapshot that is due for it does.

    Raises:
        ParameterError: a service or parameter is unknown, or a value out of range.
    """
    digest, count = identity.digest(), identity.partitions
    unknown = sorted(parameters.keys() - {"canonicalizer", "dedup", "prioritizer", "store"})
    if unknown:
        msg = f"parameters of an unknown service: {unknown[0]}; there are canonicalizer, dedup, prioritizer, store"
        raise ParameterError(msg)
    try:
        specs = (
            canonicalizer_spec(digest, count, policy, parameters.get("canonicalizer")),
            dedup_spec(digest, dict(parameters.get("dedup", {})), files=files, token=token),
            prioritizer_spec(digest, count, parameters.get("prioritizer")),
            _store(identity, files, token, dict(parameters.get("store", {})), jobs),
        )
        for spec in specs:
            spec.create(0, dict(spec.parameters))
    except (TypeError, ValueError) as problem:
        msg = f"{problem}"
        raise ParameterError(msg) from problem
    return specs


def _store(
    identity: CampaignIdentity,
    files: FileSystem,
    token: Callable[[], str],
    parameters: dict[str, Any],
    jobs: Jobs | None,
) -> ServiceSpec:
    if jobs is None:
        return store_spec(identity, files, token, parameters)
    rules = CompactionRules(age=_OLD_DELTA)
    return store_spec(identity, files, token, parameters, rules, jobs=jobs, now=time.monotonic)
