"""store.json: which campaign a store belongs to, and which host keys each of its shards owns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meguri_common.errors import ManifestError
from meguri_common.identity import CampaignIdentity  # noqa: TC001 - msgspec resolves the field's type at run time
from meguri_common.runtime.files import write_durably
from meguri_store.generation import shard_folder

if TYPE_CHECKING:
    from meguri_common.runtime.files import FileSystem

__all__ = ["Manifest", "ShardRange", "make_manifest", "read_manifest", "write_manifest"]

_PATH = "store/store.json"
_VERSION = 1
_KEYS = 1 << 64


class ShardRange(msgspec.Struct, frozen=True):
    """A shard and the host keys that it owns, both ends included."""

    index: int
    path: str
    """Below the data root."""
    host_lo: int
    host_hi: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """store.json."""

    version: int = _VERSION
    identity: CampaignIdentity
    shards: tuple[ShardRange, ...]

    def shard_of(self, host_key: int) -> ShardRange:
        """The shard that owns a host, by binary search."""
        starts = np.array([shard.host_lo for shard in self.shards], np.uint64)
        return self.shards[int(np.searchsorted(starts, np.uint64(host_key), side="right")) - 1]


def make_manifest(identity: CampaignIdentity) -> Manifest:
    """The manifest of a campaign: as many shards as partitions, each with its share of the 64-bit space."""
    count = identity.partitions
    starts = [-(-_KEYS * index // count) for index in range(count + 1)]
    return Manifest(
        identity=identity,
        shards=tuple(
            ShardRange(index, shard_folder(index), starts[index], starts[index + 1] - 1) for index in range(count)
        ),
    )


def write_manifest(files: FileSystem, identity: CampaignIdentity, token: str = "") -> Manifest:
    """Write store.json, once; where it is already there it must be of this campaign.

    Args:
        files: the data root.
        identity: the campaign.
        token: a random part of a temporary name, where several instances may start at once: they write the same.

    Raises:
        CampaignMismatch: it is another campaign's.
        ManifestError: it is unusable.
    """
    if files.size(_PATH) is not None:
        return read_manifest(files, identity)
    manifest = make_manifest(identity)
    files.make_folder("store")
    write_durably(files, _PATH, msgspec.json.format(msgspec.json.encode(manifest), indent=1), token=token)
    return manifest


def read_manifest(files: FileSystem, identity: CampaignIdentity | None = None) -> Manifest:
    """Read store.json.

    Raises:
        CampaignMismatch: it is of another campaign than `identity`.
        ManifestError: it can't be read, or its ranges leave a gap or overlap.
    """
    try:
        body = files.read(_PATH)
        version = msgspec.json.decode(body, type=dict).get("version")
        if version != _VERSION:
            msg = f"{_PATH}: version {version}, this program reads {_VERSION}: use the release that wrote it"
            raise ManifestError(msg)
        manifest = msgspec.json.decode(body, type=Manifest)
    except (OSError, msgspec.DecodeError) as problem:
        msg = f"{_PATH}: can't be read: {problem}"
        raise ManifestError(msg) from problem
    if identity is not None:
        identity.check(manifest.identity, _PATH)
    expected = 0
    for position, shard in enumerate(manifest.shards):
        if shard.index != position or shard.host_lo != expected or shard.host_hi < shard.host_lo:
            msg = f"{_PATH}: shard {shard.index} owns {shard.host_lo} to {shard.host_hi}; {expected} was to come next"
            raise ManifestError(msg)
        expected = shard.host_hi + 1
    if expected != _KEYS:
        msg = f"{_PATH}: nobody owns the host keys from {expected} on"
        raise ManifestError(msg)
    if len(manifest.shards) != manifest.identity.partitions:
        msg = f"{_PATH}: {len(manifest.shards)} shards for {manifest.identity.partitions} partitions"
        raise ManifestError(msg)
    return manifest
