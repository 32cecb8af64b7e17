"""Campaign identity: what must be equal for two pieces of data to belong together."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from meguri_common.errors import CampaignMismatch

if TYPE_CHECKING:
    from typing import Self

__all__ = ["WIRE_VERSION", "CampaignIdentity"]

WIRE_VERSION = 1
"""Version of the internal envelopes: their header, row kinds and schemas."""


class CampaignIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign's data was keyed with. A mismatch is refused: known URLs would silently get new keys."""

    campaign: str
    """Random name, chosen when the campaign starts."""
    partitions: int
    group_by: str
    """Host grouping: ``registrable`` or ``host``."""
    policy: str
    """Digest of the compiled URL policy, hex."""
    suffix_list: str
    """Digest of the Public Suffix List file, hex."""
    url_parser: str
    """Level of the URL parser's tables."""
    wire: int = WIRE_VERSION

    def digest(self) -> int:
        """64 bits that stand for the identity in envelope headers."""
        blob = msgspec.json.encode(self, order="deterministic")
        return int.from_bytes(hashlib.blake2b(blob, digest_size=8).digest(), "little")

    def check(self, found: CampaignIdentity, where: str) -> None:
        """Refuse data of another campaign.

        Args:
            found: identity that the data carries.
            where: the file or topic it was found in, for the message.

        Raises:
            CampaignMismatch: naming the first field that differs and both values.
        """
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(found, name)
            if mine != theirs:
                msg = (
                    f"{where} belongs to another campaign: {name} is {theirs!r} there and {mine!r} here. "
                    "Use the policy and partition count that the folder was made with, or another --data folder."
                )
                raise CampaignMismatch(msg)

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        """Read what `encode` wrote."""
        return msgspec.json.decode(blob, type=cls)

    def encode(self) -> bytes:
        """Deterministic JSON."""
        return msgspec.json.encode(self, order="deterministic")
