"""Groups of the simulated bus: generations, owners of partitions, members that are asked to give up or are lost.

What a member is told follows from comparing, when it polls, what it last knew with what holds now. Only polling
brings a member into the current generation: until then its offsets are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_common.bus.port import Assigned, Lost, Revoked

if TYPE_CHECKING:
    import random
    from collections.abc import Container

    from meguri_common.bus.port import MembershipEvent

__all__ = ["Group", "Membership"]

_STAYS = 0.6
"""Share of partitions that a rebalance leaves where they are."""
_ASKED = 0.5
"""Share of moves for which the owner is asked first; the others are taken from it."""


class Membership:
    """What a group knows of a member, and the member of the group."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.generation = -1
        self.dead = False
        """The instance has been killed: it is dropped at the next rebalance."""
        self.over = False
        """It has left, or a later life of its instance has joined: it doesn't come back."""
        self.known: dict[int, int] = {}
        """Partitions it has been told it owns, with the tenure under which it got each."""
        self.giving_up: set[int] = set()
        """Partitions it has been asked to give up; its next poll says that it has."""


class Group:
    """One group. `owners` holds at every moment at most one member for a partition."""

    def __init__(self, topic: str, partitions: int, rng: random.Random) -> None:
        self.topic = topic
        self.generation = 0
        self.members: list[Membership] = []
        self.owners: dict[int, Membership] = {}
        self._heirs: dict[int, Membership] = {}
        self._tenures = dict.fromkeys(range(partitions), 0)
        self._rng = rng

    def join(self, member: Membership) -> None:
        """Take a member in; an earlier life of its instance is over."""
        for old in [old for old in self.members if old.instance == member.instance and old is not member]:
            old.over = True
            self._drop(old)
        self.members.append(member)
        self.rebalance()

    def leave(self, member: Membership) -> None:
        """Let a member go in order."""
        member.over = True
        member.known.clear()
        if member in self.members:
            self._drop(member)
            self.rebalance()

    def clear(self) -> None:
        """Forget all members, as after a power failure."""
        self.generation += 1
        for member in list(self.members):
            self._drop(member)

    def rebalance(self, without: Container[str] = ()) -> None:
        """Share the partitions out anew.

        Args:
            without: instances that are taken for lost: others get their partitions at once. They learn of it, and
                come back, when they poll.
        """
        self.generation += 1
        for member in list(self.members):
            if member.dead or member.instance in without:
                self._drop(member)
        self._heirs.clear()
        if not self.members:
            return
        for partition in self._tenures:
            owner = self.owners.get(partition)
            if owner is None:
                self._give(partition, self._rng.choice(self.members))
            elif self._rng.random() >= _STAYS:
                heir = self._rng.choice(self.members)
                if heir is owner:
                    continue
                if self._rng.random() < _ASKED:
                    self._heirs[partition] = heir
                else:
                    self._give(partition, heir)

    def poll(self, member: Membership) -> list[MembershipEvent]:
        """What has changed for a member since it last polled; afterwards it is of the current generation."""
        if member not in self.members:
            # Taken for lost, and back (unless it is over): what it had is gone, what it gets it hears at its next poll.
            lost = tuple(sorted(member.known.keys() - member.giving_up))
            member.known.clear()
            member.giving_up.clear()
            if not member.over:
                self.members.append(member)
                self.rebalance()
            return [Lost(lost)] if lost else []
        if member.giving_up:
            self._release(member)
        mine = {partition: self._tenures[partition] for partition, owner in self.owners.items() if owner is member}
        lost = tuple(sorted(part for part, tenure in member.known.items() if mine.get(part) != tenure))
        for partition in lost:
            del member.known[partition]
        member.giving_up = {part for part in self._heirs if part in member.known}
        gained = tuple(sorted(mine.keys() - member.known.keys()))
        member.known.update({partition: mine[partition] for partition in gained})
        member.generation = self.generation
        events: list[MembershipEvent] = []
        if lost:
            events.append(Lost(lost))
        if member.giving_up:
            events.append(Revoked(tuple(sorted(member.giving_up))))
        if gained:
            events.append(Assigned(gained))
        return events

    def current(self, member: Membership) -> bool:
        """Whether the member is of the current generation."""
        return member in self.members and member.generation == self.generation

    def _release(self, member: Membership) -> None:
        self.generation += 1
        for partition in sorted(member.giving_up):
            member.known.pop(partition, None)
            if self.owners.get(partition) is member:
                asked_for = partition in self._heirs
                self._give(partition, self._heirs.pop(partition) if asked_for else self._rng.choice(self.members))
        member.giving_up.clear()

    def _give(self, partition: int, member: Membership) -> None:
        self._tenures[partition] += 1
        self.owners[partition] = member

    def _drop(self, member: Membership) -> None:
        self.members.remove(member)
        self.owners = {partition: owner for partition, owner in self.owners.items() if owner is not member}
        self._heirs = {part: heir for part, heir in self._heirs.items() if heir is not member and part in self.owners}
