"""The campaign of a fleet: one small file in the state root, made once and never changed.

Every instance of every service reads it, so that all key URLs alike. It is made by whoever comes first
(`meguri topics create`, or a service); of two who come at once one wins, and both go on with the winner's.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from meguri_canonicalizer.parser import PARSER_LEVEL
from meguri_canonicalizer.policy import DEFAULT, Policy, load_policy
from meguri_common.errors import CampaignMismatch, DataFolderError
from meguri_common.identity import CampaignIdentity
from meguri_common.suffixes import suffix_list

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["CAMPAIGN_FILE", "DEFAULT_PARTITIONS", "FleetCampaign", "create_campaign", "find_campaign", "open_campaign"]

CAMPAIGN_FILE = "campaign.json"
"""Name of the file below the state root."""

DEFAULT_PARTITIONS = 64
"""Partitions of links, frontier, deltas and store, where none are stated."""

_OWN_NAMES = frozenset({CAMPAIGN_FILE, "state", "store", "lost+found"})


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """campaign.json."""

    version: int = 1
    identity: CampaignIdentity
    policy: dict[str, Any] | None = None
    """The policy's document as given; None: the default policy."""


class FleetCampaign(msgspec.Struct, frozen=True):
    """Identity and policy of the campaign in a state root."""

    data: Path
    identity: CampaignIdentity
    policy: Policy


def find_campaign(data: Path) -> FleetCampaign | None:
    """The campaign of a state root; None if there is none yet.

    Raises:
        DataFolderError: the file can't be read.
        CampaignMismatch: this program keys URLs differently than the campaign does.
    """
    path = data / CAMPAIGN_FILE
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as problem:
        msg = f"{path}: can't be read: {problem}. Put back a copy of it, or start a new folder with new topics."
        raise DataFolderError(msg) from problem
    policy = Policy.from_document(stored.policy) if stored.policy is not None else DEFAULT
    _identity(stored.identity.campaign, stored.identity.partitions, policy).check(stored.identity, str(path))
    return FleetCampaign(data, stored.identity, policy)


def open_campaign(data: Path) -> FleetCampaign:
    """The campaign of a state root.

    Raises:
        DataFolderError: there is none, or its file can't be read.
        CampaignMismatch: this program keys URLs differently than the campaign does.
    """
    found = find_campaign(data)
    if found is None:
        msg = f"{data}: no campaign there. Start one with: meguri topics create --bootstrap HOST:PORT --data {data}"
        raise DataFolderError(msg)
    return found


def create_campaign(
    data: Path,
    *,
    partitions: int | None = None,
    policy: Path | None = None,
    token: Callable[[], str] = lambda: secrets.token_hex(8),
) -> FleetCampaign:
    """The campaign of a state root; it is started if there is none yet.

    Args:
        data: the state root; made if it isn't there.
        partitions: number of partitions; must be the campaign's own if it exists (default for a new one: 64).
        policy: file of the URL policy; must be the campaign's own if it exists (default: nothing is folded).
        token: gives the campaign's name.

    Raises:
        PolicyError: the policy can't be compiled.
        DataFolderError: the folder holds something else, can't be written, or its file can't be read.
        CampaignMismatch: partitions or policy aren't the campaign's.
    """
    given = load_policy(policy) if policy is not None else None
    found = find_campaign(data)
    if found is None:
        document = msgspec.json.decode(policy.read_bytes(), type=dict[str, Any]) if policy is not None else None
        identity = _identity(token(), partitions or DEFAULT_PARTITIONS, given or DEFAULT)
        _write_once(data, _File(identity=identity, policy=document), token())
        found = open_campaign(data)
    if partitions is not None and partitions != found.identity.partitions:
        msg = (
            f"{data} was made with {found.identity.partitions} partitions, {partitions} were asked for. "
            "The number is fixed for a campaign: leave it out, or use another folder and other topics."
        )
        raise CampaignMismatch(msg)
    if given is not None:
        _identity(found.identity.campaign, found.identity.partitions, given).check(found.identity, str(data))
    return found


def _identity(name: str, partitions: int, policy: Policy) -> CampaignIdentity:
    return CampaignIdentity(
        campaign=name,
        partitions=partitions,
        group_by=policy.group_by,
        policy=policy.digest(),
        suffix_list=suffix_list().digest,
        url_parser=PARSER_LEVEL,
    )


def _write_once(data: Path, content: _File, token: str) -> None:
    """Make the file, whole and durable, unless another has made it meanwhile."""
    temporary = data / f".new-{CAMPAIGN_FILE}-{token}"
    try:
        data.mkdir(parents=True, exist_ok=True)
        _check_unused(data)
        with temporary.open("xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(content), indent=1))
            file.flush()
            os.fsync(file.fileno())
        try:
            (data / CAMPAIGN_FILE).hardlink_to(temporary)
        except FileExistsError:
            return
        finally:
            temporary.unlink()
        folder = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as problem:
        msg = f"{problem.filename or data}: can't be written: {problem.strerror or problem}"
        raise DataFolderError(msg) from problem


def _check_unused(data: Path) -> None:
    """Refuse a folder that holds something else: a mistyped --data must not be littered."""
    names = {entry.name for entry in data.iterdir() if not entry.name.startswith(f".new-{CAMPAIGN_FILE}")}
    if (data / "store" / "store.json").exists() or "bus.db" in names:
        msg = (
            f"{data}: holds a frontier, but no {CAMPAIGN_FILE}: it is the folder of `meguri run`, or the file is lost. "
            "Put back a copy of it, or give a new folder."
        )
        raise DataFolderError(msg)
    foreign = sorted(names - _OWN_NAMES)
    if foreign:
        msg = f"{data}: holds other files ({', '.join(foreign[:3])}): give a new or empty folder"
        raise DataFolderError(msg)
