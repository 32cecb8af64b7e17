"""The text for Prometheus, read back by its grammar."""

from __future__ import annotations

import re
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st
from monitor_scene import Scene

from meguri_common.telemetry.model import WorkFigures
from meguri_common.telemetry.sampling import InstanceName, PartitionView, instance_sample, partition_sample
from meguri_monitor.fleet import SILENT_AFTER, Fleet
from meguri_monitor.prometheus import exposition

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.e+-]+|\+Inf|NaN)")

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def parse(text: str) -> Samples:
    """Samples by metric and labels; each metric once, its type and help before it."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    found: Samples = defaultdict(dict)
    current = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
            assert current not in helped, "a metric's samples stand together"
            helped.add(current)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current
            kinds[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name = match[1]
            assert name == current
            assert kinds[name] in {"counter", "gauge"}
            assert name.endswith("_total") == (kinds[name] == "counter")
            labels = tuple(
                (key, re.sub(r"\\(.)", lambda escape: {"n": "\n"}.get(escape[1], escape[1]), value))
                for key, value in re.findall(LABEL, match[2] or "")
            )
            assert labels not in found[name], "a sample stands once"
            found[name][labels] = float(line.rpartition(" ")[2])
    return found


def test_a_fleet() -> None:
    fleet, scene = Fleet(), Scene(started_at=1000.0)
    for second in range(10):
        for report in scene.step(1000.0 + second).values():
            fleet.hear(report, 1000.0 + second)
    found = parse(exposition(fleet, 1010.0))
    dedup = (("service", "dedup"), ("partition", "2"))
    assert found["meguri_dedup_links_total"][dedup] == 250 * 20 * 40
    assert found["meguri_dedup_bits_per_url"][dedup] == 12.4
    assert found["meguri_partition_lag_messages"][dedup] == 0
    assert found["meguri_partition_running"][dedup] == 1
    assert found["meguri_partition_snapshot_age_seconds"][dedup] == 81
    assert found["meguri_canonicalizer_passed_links_total"][("service", "canonicalizer"), ("partition", "0")] > 0
    assert found["meguri_instance_up"][("service", "dedup"), ("instance", "dedup-2")] == 1
    assert found["meguri_monitor_samples_total"][()] == 5 + 16 + 45 + 144
    later = parse(exposition(fleet, 1010.0 + SILENT_AFTER))
    assert set(later["meguri_instance_up"].values()) == {0}


def test_an_empty_fleet() -> None:
    assert set(parse(exposition(Fleet(), 0.0))) == {
        f"meguri_monitor_{name}_total"
        for name in (
            "samples", "lost_reports", "repeated_samples", "late_samples", "unreadable_samples", "foreign_samples",
        )
    }  # fmt: skip


@given(st.text(min_size=1, max_size=20), st.dictionaries(st.text(max_size=20), st.floats(-1e300, 1e300), max_size=4))
def test_foreign_names_and_numbers(instance: str, figures: dict[str, float]) -> None:
    name = InstanceName("dedup", instance, "c", 0.0)
    fleet = Fleet()
    fleet.hear(
        [
            instance_sample(name, WorkFigures(), partitions=1, at=1.0, sequence=0),
            partition_sample(
                name, PartitionView(0, "running"), {"counters": figures, "gauges": figures}, at=1.0, sequence=0
            ),
        ],
        1.0,
    )
    found = parse(exposition(fleet, 1.0))
    assert found["meguri_instance_up"] == {(("service", "dedup"), ("instance", instance)): 1}
