"""Random campaigns for the simulations: events, what must come of them by an independent count, and the checks.

URLs are `https://h<host>.example/p<path>`; the oracle keeps sets and dicts of them and knows nothing of services.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

HOSTS, PATHS = 6, 4
UNIT = 1 << 32
T0 = 1_767_571_200  # a January in 2026
REDIRECTS = {301, 302, 303, 307, 308}


def url(host: int, path: int) -> str:
    return f"https://h{host}.example/p{path}"


def host_of(address: str) -> str:
    return address.split("/")[2]


def generate_events(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Pages, redirects, failures, revisits, duplicates, seeds, sitemaps and controls of a few hosts."""
    hosts = rng.sample(range(HOSTS), rng.randint(3, HOSTS))

    def any_url() -> str:
        return url(rng.choice(hosts), rng.randrange(PATHS))

    clock, events = T0, []
    for _ in range(count):
        clock += rng.randint(0, 3)
        kind = rng.random()
        if events and kind < 0.12:
            events.append(rng.choice(events))
            continue
        if kind < 0.24:
            host = rng.choice(hosts)
            urls = [url(host, rng.randrange(PATHS)) for _ in range(rng.choice([1, 1, 2]))]
            observed = rng.choice([0, clock, clock, clock - 5])
            events.append({"type": "seed", "urls": urls, "observed_at": observed, "cash": rng.choice([1.0, 1.0, 0.25])})
            continue
        if kind < 0.28:
            entries = [{"loc": any_url()} for _ in range(rng.randint(1, 3))]
            events.append({"type": "sitemap", "url": any_url(), "observed_at": clock, "entries": entries})
            continue
        if kind < 0.32:
            action, value = rng.choice(
                [("vouch", None), ("unvouch", None), ("budget", 2), ("budget", 9), ("release", None)]
            )
            control = {"type": "control", "at": clock, "action": action, "host": f"h{rng.choice(hosts)}.example"}
            events.append(control if value is None else {**control, "value": value})
            continue
        events.append(_page(rng, clock, any_url))
    return events


def generate_parking_events(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Pages of one seeded host and of others that earn their budgets: much is parked, and released by votes."""
    # Seeds spread over the partitions, so that cash comes to each from all others.
    events = [{"type": "seed", "urls": [url(host, 0)], "observed_at": T0, "cash": 8.0} for host in (0, 2, 4)]
    for number in range(count):
        source = rng.choice([0, 2, 4, *range(2 * HOSTS)])
        links = [url(rng.randrange(2 * HOSTS), rng.randrange(12)) for _ in range(rng.randint(3, 8))]
        page = {"url": url(source, rng.choice([0, 0, 1, 2])), "fetched_at": T0 + 10 + number, "links": links}
        events.append(page)
    return events


def _page(rng: random.Random, clock: int, any_url: Any) -> dict[str, Any]:
    status = rng.choices([200, 301, 404, 304, 503], [7, 2, 1, 0.5, 0.5])[0]
    event: dict[str, Any] = {"url": any_url(), "status": status}
    event["fetched_at"] = clock if rng.random() < 0.85 else clock - rng.randint(0, 8)
    depth = rng.choices([None, 0, 1, 2, 3], [3, 1.2, 1, 1, 1])[0]
    if depth is not None:
        event["depth"] = depth
    if status in {200, 404}:
        links = [any_url() if rng.random() < 0.9 else "mailto:someone" for _ in range(rng.randint(0, 6))]
        event["links"] = links + links[: rng.choice([0, 0, 1])]
    if status == 301:
        event["redirect"] = rng.choice([any_url(), any_url(), any_url(), None])
    if status == 304:
        event["not_modified"] = True
    if status == 200 and rng.random() < 0.5:
        event["content_fp"], event["simhash"] = f"{rng.randint(1, 3):016x}", f"{rng.randint(1, 3) << 20:016x}"
        event["pipeline"] = "terms/1"
    return event


def lines(events: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


@dataclass
class Expected:
    """What must come of the events whatever the interleaving."""

    urls: set[str] = field(default_factory=set)
    visits: Counter[str] = field(default_factory=Counter)
    minted: int = 0
    links: int = 0
    rejected: int = 0
    in_degree: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def expected(events: Iterable[dict[str, Any]]) -> Expected:
    """The oracle; events of a host must be in their order."""
    out = Expected()
    last: dict[str, int] = {}
    seeded: dict[str, int] = {}
    started: set[str] = set()
    for event in events:
        match event.get("type", "page"):
            case "seed":
                for address in event["urls"]:
                    out.urls.add(address)
                    if event["observed_at"] > seeded.get(address, -1):
                        seeded[address] = event["observed_at"]
                        out.minted += round(event["cash"] * UNIT)
            case "sitemap":
                out.urls.update(entry["loc"] for entry in event["entries"])
            case "page":
                _expect_page(event, out, last, started)
    return out


def _expect_page(event: dict[str, Any], out: Expected, last: dict[str, int], started: set[str]) -> None:
    address, status = event["url"], event.get("status", 200)
    good = [link for link in event.get("links", []) if link.startswith("https:")]
    out.links += len(event.get("links", []))
    out.rejected += len(event.get("links", [])) - len(good)
    out.urls.add(address)
    out.urls.update(good)
    target = event.get("redirect")
    if status in REDIRECTS and target:
        out.urls.add(target)
    if event.get("depth") == 0 and address not in started:
        started.add(address)
        out.minted += UNIT
    if event["fetched_at"] <= last.get(address, -1):
        return
    last[address] = event["fetched_at"]
    out.visits[address] += 1
    if status // 100 == 2:
        for link in good:
            if host_of(link) != host_of(address):
                out.in_degree[host_of(link)].add(host_of(address))
