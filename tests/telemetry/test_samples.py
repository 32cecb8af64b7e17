"""Samples as they stand in the topic: what is written can be read, by the schemas too, and nothing foreign hurts."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.errors import TelemetryUnreadable
from meguri_common.telemetry.model import (
    TELEMETRY_VERSION,
    InstanceSample,
    PartitionSample,
    WorkFigures,
    decode_report,
    decode_sample,
    encode_sample,
)
from meguri_common.telemetry.sampling import InstanceName, PartitionView, instance_sample, partition_sample

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"
NAME = InstanceName("dedup", "dedup-1", "c0ffee", 1000.0)
SEEN = {"keys": 10.0, "bits_per_url": 12.5, "target_fpr": 0.01, "measured_fpr": 0.002}

counts = st.integers(0, 2**62)
times = st.floats(0, 2**33)
views = st.builds(
    PartitionView,
    st.integers(0, 4095),
    st.sampled_from(["running", "restoring", "stopped"]),
    st.text(max_size=1200),
    position=st.none() | counts,
    end=st.none() | counts,
    loaded_at=st.none() | times,
    snapshot_offset=st.none() | counts,
    snapshot_at=st.none() | times,
    inbox_bytes=counts,
)
figures = st.dictionaries(
    st.text(max_size=80), st.floats(allow_nan=True) | st.integers(-(2**70), 2**70) | st.booleans(), max_size=5
)
stats = st.fixed_dictionaries({}, optional={"counters": figures, "passed": figures, "gauges": figures})


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}-sample.json").read_text()))


VALIDATORS = {"partition": validator("partition"), "instance": validator("instance")}


@settings(max_examples=200, deadline=None)
@given(views, stats, times, counts)
def test_whatever_a_service_says_can_be_read(
    view: PartitionView, said: dict[str, dict[str, float]], at: float, sequence: int
) -> None:
    sample = partition_sample(NAME, view, said, at=at, sequence=sequence)
    line = encode_sample(sample)
    assert b"\n" not in line
    assert decode_sample(line) == sample
    VALIDATORS["partition"].validate(json.loads(line))


@given(st.builds(WorkFigures, steps=counts, bytes=counts, busy_seconds=times, memory_bytes=counts), st.booleans())
def test_an_instance_can_be_read(work: WorkFigures, left: bool) -> None:
    sample = instance_sample(NAME, work, partitions=3, at=1.5, sequence=7, left=left)
    line = encode_sample(sample)
    assert decode_sample(line) == sample
    VALIDATORS["instance"].validate(json.loads(line))
    assert sample.state == ("left" if left else "running")


def test_figures_find_their_places() -> None:
    view = PartitionView(
        5, "running", position=70, end=100, loaded_at=1001.0, snapshot_offset=60, snapshot_at=1005.0, inbox_bytes=9
    )
    said = {"counters": {"links_new": 4, "rejected_too-long": 2}, "gauges": {**SEEN, "hosts_flagged": 3.0}}
    sample = partition_sample(NAME, view, said, at=1010.0, sequence=2)
    assert (sample.partition, sample.lag, sample.inbox_bytes) == (5, 30, 9)
    assert sample.counters == {"links_new": 4, "rejected_too_long": 2}
    assert sample.snapshot is not None
    assert (sample.snapshot.offset, sample.snapshot.age) == (60, 5.0)
    assert sample.seen_set is not None
    assert (sample.seen_set.keys, sample.seen_set.bits_per_url) == (10, 12.5)
    assert sample.suspect_hosts == 3


def test_what_is_not_known_is_not_said() -> None:
    sample = partition_sample(NAME, PartitionView(0, "restoring"), {}, at=1.0, sequence=0)
    assert (sample.position, sample.lag, sample.snapshot, sample.seen_set, sample.suspect_hosts) == (None,) * 5
    ahead = partition_sample(NAME, PartitionView(0, "running", position=9, end=7), {}, at=1.0, sequence=0)
    assert ahead.lag == 0, "the end was heard before the position"


def test_unknown_fields_are_ignored_and_defaults_hold() -> None:
    line = {
        "type": "partition", "service": "dedup", "instance": "d", "campaign": "c", "at": 2, "started_at": 1,
        "sequence": 0, "partition": 3, "state": "running", "colour": "blue",
    }  # fmt: skip
    sample = decode_sample(json.dumps(line).encode())
    assert isinstance(sample, PartitionSample)
    assert (sample.partition, sample.counters, sample.schema) == (3, {}, TELEMETRY_VERSION)
    VALIDATORS["partition"].validate(line)


def test_a_later_version_is_named() -> None:
    line = encode_sample(instance_sample(NAME, WorkFigures(), partitions=0, at=1.0, sequence=0))
    later = line.replace(b'"schema":1', b'"schema":2')
    with pytest.raises(TelemetryUnreadable, match="version 2: this program reads 1"):
        decode_sample(later)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("at", -1, r"\$\.at"),
        ("service", "De Dup", r"\$\.service"),
        ("partition", "3", r"\$\.partition"),
        ("counters", {"links": -1}, r"\$\.counters"),
        ("type", "nonsense", "nonsense"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, named: str) -> None:
    line = json.loads(encode_sample(partition_sample(NAME, PartitionView(0, "running"), {}, at=1.0, sequence=0)))
    with pytest.raises(TelemetryUnreadable, match=named):
        decode_sample(json.dumps({**line, field: value}).encode())


@given(st.binary(max_size=200) | st.just(b"[" * 100_000) | st.just(b"1" * (1 << 21)))
def test_garbage_is_refused_in_one_way(garbage: bytes) -> None:
    with pytest.raises(TelemetryUnreadable):
        decode_sample(garbage)


def test_a_bad_line_hides_no_other() -> None:
    good = [instance_sample(NAME, WorkFigures(), partitions=1, at=float(at), sequence=at) for at in range(3)]
    lines = [encode_sample(sample) for sample in good]
    samples, problems = decode_report(b"\n".join([lines[0], b"{", lines[1], b"", b" ", lines[2] + b"\r"]))
    assert samples == good
    assert len(problems) == 1


def test_tags_tell_the_two_apart() -> None:
    assert {kind.__struct_config__.tag for kind in (InstanceSample, PartitionSample)} == {"instance", "partition"}
    assert (
        msgspec.json.decode(encode_sample(instance_sample(NAME, WorkFigures(), partitions=0, at=1.0, sequence=0)))[
            "type"
        ]
        == "instance"
    )
