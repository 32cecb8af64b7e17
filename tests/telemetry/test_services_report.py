"""What the services say of themselves: the figures that telemetry carries, after pages that can be counted by hand."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from meguri.embedded.campaign import service_specs
from meguri_canonicalizer.policy import DEFAULT
from meguri_common.bus.port import Message
from meguri_common.identity import CampaignIdentity
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.outputs import Outputs
from meguri_common.telemetry.model import PartitionSample, decode_sample, encode_sample
from meguri_common.telemetry.sampling import InstanceName, PartitionView, Reporting, partition_sample
from meguri_common.topics import DELTAS, FRONTIER, LINKS, PAGES, REJECTS

if TYPE_CHECKING:
    from pathlib import Path

SERVICES = {PAGES: "canonicalizer", LINKS: "dedup", FRONTIER: "prioritizer", DELTAS: "store"}
AT = 1_790_000_000
EVENTS: list[dict[str, Any]] = [
    {"url": "https://a.example/", "fetched_at": AT, "depth": 0, "links": ["/b", "/b", "/c", "mailto:me", "https://x.example/"]},
    {"url": "https://a.example/b", "fetched_at": AT + 1, "links": ["/", "/c", "/d"]},
    {"url": "https://a.example/", "fetched_at": AT, "depth": 0, "links": []},
    {"url": "no address", "fetched_at": AT},
    {"type": "seed", "urls": ["https://y.example/"], "observed_at": AT},
]  # fmt: skip


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PartitionSample]:
    """Samples of the four services, one partition each, after all that follows from the events."""
    identity = CampaignIdentity(
        campaign="c", partitions=1, group_by=DEFAULT.group_by, policy=DEFAULT.digest(), suffix_list="", url_parser=""
    )
    data: Path = tmp_path_factory.mktemp("data")
    names = iter(f"{number:04x}" for number in range(10**6))
    specs = service_specs(identity, DEFAULT, LocalFiles(data), names.__next__, {})
    services: dict[str, Any] = {spec.name: spec.create(0, dict(spec.parameters)) for spec in specs}
    positions = dict.fromkeys(SERVICES, 0)
    waiting = deque([(PAGES, "\n".join(map(json.dumps, EVENTS)).encode())])
    while waiting:
        topic, payload = waiting.popleft()
        if topic == REJECTS:
            continue
        outputs = Outputs(identity.digest())
        services[SERVICES[topic]].apply([Message(positions[topic], payload, b"", AT + 60)], outputs)
        positions[topic] += 1
        waiting.extend((target.topic, bytes(sent)) for target, sent in outputs.envelopes())
    found = {}
    for name, service in services.items():
        assert isinstance(service, Reporting), name
        view = PartitionView(0, "running", position=1)
        told = partition_sample(InstanceName(name, f"{name}-1", "c", 0.0), view, service.stats(), at=1.0, sequence=0)
        read = decode_sample(encode_sample(told))
        assert isinstance(read, PartitionSample)
        assert read == told
        found[name] = read
    return found


def test_the_canonicalizer(samples: dict[str, PartitionSample]) -> None:
    assert samples["canonicalizer"].passed == {"events": 4, "events_rejected": 1, "pages": 3, "links": 8}


def test_dedup(samples: dict[str, PartitionSample]) -> None:
    dedup = samples["dedup"]
    counters = dedup.counters
    rejected = {name: count for name, count in counters.items() if name.startswith("rejected_") and count}
    assert rejected == {"rejected_scheme": 1}
    assert counters["pages"] == 3
    assert counters["links"] == 8 == counters["links_new"] + counters["links_known"] + sum(rejected.values())
    assert dedup.seen_set is not None
    assert dedup.seen_set.keys == counters["urls_new"] == 6
    assert dedup.seen_set.bits_per_url > 0


def test_the_prioritizer(samples: dict[str, PartitionSample]) -> None:
    prioritizer = samples["prioritizer"]
    assert (prioritizer.counters["visits"], prioritizer.counters["stale"]) == (2, 1)
    assert prioritizer.suspect_hosts == 0


def test_the_store(samples: dict[str, PartitionSample]) -> None:
    store = samples["store"]
    assert store.counters == {"urls": 6, "hosts": 3}
    assert store.passed["visits"] == 2
    assert store.passed["operations"] >= 8
    assert store.gauges["delta_rows"] == store.passed["operations"]
    assert store.gauges["generation_urls"] == 0
