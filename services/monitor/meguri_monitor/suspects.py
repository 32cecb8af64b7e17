"""Hosts that are flagged as traps, by name: read from the store's files, which are Parquet for everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_common.records import HostFlag
from meguri_monitor.state import SuspectHost, Suspects

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SHOWN", "suspects_of"]

SHOWN = 20
"""Hosts that are listed at most: those with the most URLs."""

_COLUMNS = ["host_group", "flags", "url_count", "url_budget"]


def suspects_of(data: Path) -> Suspects:
    """What the generations in force say; they may be somewhat older than telemetry.

    Args:
        data: the state root.
    """
    import pyarrow as pa  # noqa: PLC0415 - the page is there before this is loaded
    import pyarrow.compute as pc  # noqa: PLC0415 - see above
    import pyarrow.parquet as pq  # noqa: PLC0415 - see above

    files = sorted((data / "store").glob("shard-*/current/hosts.parquet"))
    if not files:
        return Suspects(count=None, hosts=[], problem="The store has no generation yet.")
    found = []
    problem = ""
    for file in files:
        try:
            table = pq.read_table(file, columns=_COLUMNS, memory_map=False)
        except (OSError, pa.ArrowException) as unreadable:
            # A generation may be replaced just now; the next look sees the new one.
            problem = f"{file.parent.parent.name}: {unreadable}"[:200]
            continue
        flagged = pc.not_equal(pc.bit_wise_and(table["flags"], pa.scalar(int(HostFlag.TRAP_SUSPECT), pa.uint16())), 0)
        found += table.filter(flagged).to_pylist()
    found.sort(key=lambda row: (-row["url_count"], row["host_group"]))
    hosts = [
        SuspectHost(host=row["host_group"] or "(no URL yet)", urls=row["url_count"], url_budget=row["url_budget"])
        for row in found[:SHOWN]
    ]
    return Suspects(count=len(found), hosts=hosts, problem=problem)
