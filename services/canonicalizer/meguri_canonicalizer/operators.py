"""Rows of seeds, signals and controls: few, and from operators, so made one by one."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_canonicalizer.columns import partition_order, send
from meguri_common.events.decode import EventRejected
from meguri_common.events.model import ControlEvent, SeedEvent, SignalEvent
from meguri_common.records import ControlAction
from meguri_common.wire.schemas import RowKind

if TYPE_CHECKING:
    from meguri_canonicalizer.columns import Requests, UrlTable
    from meguri_common.runtime.outputs import Outputs

__all__ = ["CASH_UNIT", "OperatorEvent", "OperatorRows", "cash_units"]

OperatorEvent = SeedEvent | SignalEvent | ControlEvent

CASH_UNIT = 1 << 32
"""Units of one unit of cash: it is counted in 32.32 fixed point."""

_NO_HOST_BYTES = frozenset("/\\?#@\t\n\r ")


def cash_units(cash: float) -> int:
    """Cash in fixed point, rounded half to even; the product is exact, as the factor is a power of two."""
    return round(cash * CASH_UNIT)


class OperatorRows:
    """Collects what operators' events ask for and say."""

    def __init__(self) -> None:
        self._rows: defaultdict[RowKind, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self._seeds: list[int] = []

    @staticmethod
    def ask(event: OperatorEvent, requests: Requests) -> int:
        """Ask for the canonical URLs that the event's rows need; returns the first of them.

        Raises:
            EventRejected: a host is none.
        """
        match event:
            case SeedEvent(urls=urls):
                return requests.add(urls)
            case SignalEvent():
                hosts = [_host_url(item.host, f"$.hosts[{at}].host") for at, item in enumerate(event.hosts)]
                return requests.add([*hosts, *(item.url for item in event.urls)])
            case ControlEvent():
                return requests.add_plain(event.url or "" if event.host is None else _host_url(event.host, "$.host"))

    def take(self, event: OperatorEvent, table: UrlTable, first: int) -> None:
        """Add the event's rows, or none of them.

        Raises:
            EventRejected: a URL or host can't be used, or the seeds are of several host groups.
        """
        match event:
            case SeedEvent():
                self._take_seed(event, table, first)
            case SignalEvent():
                self._take_signal(event, table, first)
            case ControlEvent():
                path = "$.url" if event.host is None else "$.host"
                _check(table, first, event.url or event.host or "", path)
                host_key, path_key = table.key(first)
                self._add(
                    RowKind.CONTROL,
                    at=event.at,
                    action=int(ControlAction[event.action.upper()]),
                    host_key=host_key,
                    path_key=0 if event.url is None else path_key,
                    value=math.nan if event.value is None else event.value,
                )

    def _take_seed(self, event: SeedEvent, table: UrlTable, first: int) -> None:
        for at, url in enumerate(event.urls):
            _check(table, first + at, url, f"$.urls[{at}]")
            if table.host_key[first + at] != table.host_key[first]:
                detail = f"{event.urls[0]!r:.200} and {url!r:.200} are of two host groups - at `$.urls[{at}]`"
                raise EventRejected("mixed_hosts", detail)
        rows = range(first, first + len(event.urls))
        self._seeds.extend(rows)
        for _ in rows:
            self._add(RowKind.SEED, observed_at=event.observed_at, cash=cash_units(event.cash))

    def _take_signal(self, event: SignalEvent, table: UrlTable, first: int) -> None:
        behind = first + len(event.hosts)
        for at, host in enumerate(event.hosts):
            _check(table, first + at, host.host, f"$.hosts[{at}].host")
        for at, url in enumerate(event.urls):
            _check(table, behind + at, url.url, f"$.urls[{at}].url")
        for at, host in enumerate(event.hosts):
            key, _ = table.key(first + at)
            self._add(RowKind.HOST_SIGNAL, host_key=key, score=host.score, epoch=event.epoch)
        for at, url in enumerate(event.urls):
            key, path = table.key(behind + at)
            self._add(RowKind.URL_SIGNAL, host_key=key, path_key=path, rank=url.page_rank, epoch=event.epoch)

    def _add(self, kind: RowKind, **values: float) -> None:
        columns = self._rows[kind]
        for name, value in values.items():
            columns[name].append(value)

    def send(self, outputs: Outputs, table: UrlTable, partitions: int) -> None:
        """Send all rows, each to the partition of its host."""
        for kind, lists in self._rows.items():
            columns = {name: np.array(values, _TYPES.get(name, np.uint64)) for name, values in lists.items()}
            if kind == RowKind.SEED:
                columns["host_key"] = table.host_key[self._seeds]
            order, bounds = partition_order(columns["host_key"], partitions)
            ordered: dict[str, Any] = {name: values[order] for name, values in columns.items()}
            if kind == RowKind.SEED:
                ordered |= table.batch_columns(np.array(self._seeds, np.int64)[order])
            send(outputs, kind, ordered, bounds)


_TYPES = {
    "at": np.uint32,
    "epoch": np.uint32,
    "observed_at": np.uint32,
    "action": np.uint8,
    "value": np.float64,
    "score": np.float32,
    "rank": np.float32,
}


def _host_url(host: str, path: str) -> str:
    """The start page of a host. Its key's host half is the host group's, aliases applied."""
    if not host or not _NO_HOST_BYTES.isdisjoint(host) or ":" in host.rpartition("]")[2]:
        raise EventRejected("host", f"{host!r:.200} is no host - at `{path}`")
    return f"http://{host}/"


def _check(table: UrlTable, row: int, text: str, path: str) -> None:
    if not table.usable(row):
        raise EventRejected("url", f"{table.reason(row)}: {text!r:.200} - at `{path}`")
