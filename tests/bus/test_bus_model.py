"""Both buses against a plain model, with any sequence of calls that Hypothesis finds."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from meguri_common.bus.embedded import EmbeddedBus
from meguri_common.bus.port import Assigned, Commit, TopicPartition
from meguri_common.bus.simulated import Faults, SimulatedBus
from meguri_common.errors import BusError, Fenced

if TYPE_CHECKING:
    from meguri_common.bus.port import Member, RowBus, RowProducer

TOPICS = {"a": 2, "b": 1}
SOURCES = [TopicPartition(name, part) for name, count in TOPICS.items() for part in range(count)]
sources = st.sampled_from(SOURCES)
names = st.sampled_from(["p", "q"])
keys = st.sampled_from(["", "k", "k/1", "k/2", "l", "k\0", "é", "\U0010ffff"])
contents = st.binary(max_size=40) | st.integers(0, 3).map(lambda size: bytes(size * 9000))


@dataclass
class Log:
    """Everything ever committed to a partition, by order; `kept` is the index of the first one not trimmed."""

    messages: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    kept: int = 0


@dataclass
class Open:
    producer: RowProducer
    is_open: bool = False
    messages: list[tuple[TopicPartition, tuple[bytes, bytes, int]]] = field(default_factory=list)
    commits: dict[tuple[str, TopicPartition], Commit] = field(default_factory=dict)
    rows: dict[str, bytes | None] = field(default_factory=dict)

    def clear(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.messages, self.commits, self.rows = [], {}, {}


class BusMachine(RuleBasedStateMachine):
    """The calls, with what the model says of each."""

    def make(self) -> RowBus:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.bus = self.make()
        self.logs = {source: Log() for source in SOURCES}
        self.commits: dict[tuple[str, TopicPartition], Commit] = {}
        self.rows: dict[str, bytes] = {}
        self.producers: dict[str, Open] = {}
        self.fenced: list[RowProducer] = []
        self.members: dict[str, Member] = {}
        self.old_members: list[Member] = []

    def opened(self, name: str) -> Open:
        if name not in self.producers:
            self.producers[name] = Open(self.bus.producer(name))
        state = self.producers[name]
        if not state.is_open:
            state.producer.begin()
            state.clear(is_open=True)
        return state

    @rule(name=names, source=sources, payload=contents, headers=st.binary(max_size=9), at=st.integers(0, 2**40))
    def publish(self, name: str, source: TopicPartition, payload: bytes, headers: bytes, at: int) -> None:
        state = self.opened(name)
        state.producer.publish(source, payload, headers=headers, at=at)
        state.messages.append((source, (payload, headers, at)))

    @rule(name=names, group=st.sampled_from(["g", "h"]), part=st.integers(0, 1), offset=st.integers(0, 99))
    def commit_offsets(self, name: str, group: str, part: int, offset: int) -> None:
        if group not in self.members:
            self.members[group] = self.bus.join(group, "a")
            assert list(self.members[group].poll()) == [Assigned((0, 1))]
        commit = Commit(offset, f"mark {offset}")
        state = self.opened(name)
        state.producer.commit_offsets(self.members[group], {part: commit})
        state.commits[group, TopicPartition("a", part)] = commit

    @rule(name=names, key=keys, value=st.none() | st.binary(max_size=9))
    def change_row(self, name: str, key: str, value: bytes | None) -> None:
        state = self.opened(name)
        if value is None:
            state.producer.delete([key])
        else:
            state.producer.put(key, value)
        state.rows[key] = value

    @rule(name=names)
    def commit(self, name: str) -> None:
        state = self.opened(name)
        state.producer.commit()
        for source, message in state.messages:
            self.logs[source].messages.append(message)
        self.commits.update(state.commits)
        for key, value in state.rows.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        state.clear(is_open=False)

    @rule(name=names)
    def abort(self, name: str) -> None:
        state = self.opened(name)
        state.producer.abort()
        state.clear(is_open=False)

    @rule(name=names)
    def new_producer(self, name: str) -> None:
        if name in self.producers:
            self.fenced.append(self.producers[name].producer)
        self.producers[name] = Open(self.bus.producer(name))

    @rule(data=st.data())
    @precondition(lambda self: self.fenced)
    def use_a_fenced_producer(self, data: Any) -> None:
        old = data.draw(st.sampled_from(self.fenced))
        with pytest.raises(Fenced):
            data.draw(st.sampled_from([old.begin, old.commit, lambda: old.publish(SOURCES[0], b"no")]))()
        old.abort()

    @rule(group=st.sampled_from(["g", "h"]))
    def join_anew(self, group: str) -> None:
        if group in self.members:
            self.old_members.append(self.members.pop(group))
            self.members[group] = self.bus.join(group, "a")
            assert list(self.members[group].poll()) == [Assigned((0, 1))]

    @rule(name=names, data=st.data())
    @precondition(lambda self: self.old_members)
    def use_a_fenced_member(self, name: str, data: Any) -> None:
        state = self.opened(name)
        with pytest.raises(Fenced):
            state.producer.commit_offsets(data.draw(st.sampled_from(self.old_members)), {0: Commit(1)})
        state.clear(is_open=False)

    @rule(source=sources, data=st.data())
    def trim(self, source: TopicPartition, data: Any) -> None:
        log = self.logs[source]
        kept = data.draw(st.integers(0, len(log.messages)))
        found = self.bus.read(source, self.bus.watermarks(source)[0])
        if kept > log.kept:
            # Right behind the last one that goes, or right before the first one that stays: all the same.
            self.bus.trim(source, found[kept - log.kept - 1].offset + 1)
            log.kept = kept
        elif found:
            self.bus.trim(source, found[0].offset)
        first = self.bus.watermarks(source)[0]
        if first:
            with pytest.raises(BusError):
                self.bus.read(source, first - 1)

    @rule(source=sources, data=st.data())
    def read(self, source: TopicPartition, data: Any) -> None:
        first, end = self.bus.watermarks(source)
        everything = self.bus.read(source, first)
        start = data.draw(st.integers(first, end + 2))
        stop = data.draw(st.none() | st.integers(first, end + 2))
        limit = data.draw(st.none() | st.integers(1, 30_000))
        expected = []
        for message in everything:
            size = sum(len(bytes(other.payload)) for other in expected)
            if message.offset < start or (stop is not None and message.offset >= stop):
                continue
            if limit is not None and expected and size >= limit:
                break
            expected.append(message)
        assert self.bus.read(source, start, end=stop, max_bytes=limit) == expected

    @rule()
    def barrier(self) -> None:
        self.bus.barrier()

    @rule()
    def another_life(self) -> None:
        self.bus.close()
        self.bus = self.make()
        self.producers, self.fenced, self.members, self.old_members = {}, [], {}, []
        # A real bus settles by itself in time; here the next life's producers do.
        for name in ("p", "q"):
            self.new_producer(name)

    @invariant()
    def what_is_committed_is_as_the_model_says(self) -> None:
        for source, log in self.logs.items():
            first, end = self.bus.watermarks(source)
            found = self.bus.read(source, first)
            assert [(bytes(m.payload), m.headers, m.appended_at) for m in found] == log.messages[log.kept :]
            at = [message.offset for message in found]
            assert at == sorted(set(at))
            assert not at or (first <= at[0] and at[-1] < end)
        assert dict(self.bus.scan("")) == self.rows
        assert self.bus.scan("k") == sorted((key, value) for key, value in self.rows.items() if key.startswith("k"))
        held = {key for state in self.producers.values() for key in state.commits}
        for group in ("g", "h"):
            for source in SOURCES:
                if (group, source) not in held:
                    assert self.bus.committed(group, source) == self.commits.get((group, source))

    def teardown(self) -> None:
        self.bus.close()


class EmbeddedMachine(BusMachine):
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        super().__init__()

    def make(self) -> RowBus:
        return EmbeddedBus(Path(self.folder.name) / "bus.db", topics=TOPICS, now=lambda: 1.0)

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class SimulatedMachine(BusMachine):
    faults = Faults()

    def __init__(self) -> None:
        self.shared = SimulatedBus(TOPICS, rng=random.Random(0), now=lambda: 1.0, faults=self.faults)
        super().__init__()

    def make(self) -> RowBus:
        return self.shared.view("a")


class MarkersMachine(SimulatedMachine):
    faults = Faults(markers=True)


TestEmbedded = EmbeddedMachine.TestCase
TestEmbedded.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestSimulated = SimulatedMachine.TestCase
TestSimulated.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMarkers = MarkersMachine.TestCase
TestMarkers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
