"""Host records as hosts.parquet holds them: without what follows from the rest of the file.

A host's key is a hash of its group, and a registrable domain is mostly the group itself. Where there are few URLs a
host, each of the two would weigh as much as the group. `stored` leaves them out, `restored` puts them back.

    host_key            null where it is the hash of `host_group`, and URLs of the host begin at `first_row`: other
                        tools find it there, in urls.parquet. A row group's last host always states it.
    registrable_domain  null where it is what `host_group` and `grouping` tell; `-` where there is none although they
                        tell one. (No domain begins with `-`; a record's that does has another one before it.)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meguri_common.keys import host_key
from meguri_common.wire.columns import binary_parts
from meguri_store.schema import HOST_FILE_SCHEMA, HOST_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["columns_for", "registrable_domains", "restored", "stored"]

_NEEDED = {"host_key": ("host_group",), "registrable_domain": ("host_group", "grouping")}
"""What a column that was left out is worked out from."""
_BY_DOMAIN = 0
"""Code of the grouping by registrable domain."""
_NINE = ord("9")
_NO_DOMAIN = "-"


def registrable_domains(groups: pa.StringArray, by_domain: NDArray[np.bool_]) -> pa.StringArray:
    """Registrable domains as host groups tell them: null where hosts aren't grouped by it, of addresses, of no group.

    Args:
        groups: host groups, (n,).
        by_domain: whether hosts are grouped by registrable domain, (n,).
    """
    offsets, data = binary_parts(groups)
    told = by_domain & (offsets[1:] > offsets[:-1])
    at = np.flatnonzero(told)
    first, last = data[offsets[at]], data[offsets[at + 1] - 1]
    # No name of a top-level domain ends with a digit: what does is an IPv4 address.
    told[at] = (first != ord("[")) & ~((last >= ord("0")) & (last <= _NINE))
    return pc.if_else(pa.array(told), groups, pa.scalar(None, pa.string()))


def stored(records: pa.Table) -> pa.Table:
    """Records (`HOST_SCHEMA`, n rows, one chunk a column) as a row group of the file (`HOST_FILE_SCHEMA`)."""
    group = _one(records.column("host_group"))
    key = records.column("host_key").to_numpy()
    first = records.column("first_row").to_numpy()
    follows = np.append(first[1:] > first[:-1], np.zeros(min(len(first), 1), np.bool_)) & (_hashes(group) == key)
    domain = _one(records.column("registrable_domain"))
    told = _told(records)
    same = pc.fill_null(pc.equal(domain, told), pa.scalar(value=False))
    escaped = pc.if_else(
        pc.starts_with(domain, _NO_DOMAIN), pc.binary_join_element_wise(_NO_DOMAIN, domain, ""), domain
    )
    missing = pc.and_(pc.is_null(domain), pc.is_valid(told))
    written = pc.if_else(missing, pa.scalar(_NO_DOMAIN), pc.if_else(same, pa.scalar(None, pa.string()), escaped))
    changed = {"host_key": pa.array(key, mask=follows), "registrable_domain": written}
    columns = [changed.get(name, records.column(name)) for name in HOST_SCHEMA.names]
    return pa.Table.from_arrays(columns, schema=HOST_FILE_SCHEMA)


def columns_for(wanted: Sequence[str]) -> list[str]:
    """Columns of the file that `restored` needs to give some of the records' columns."""
    needed = {other for name in wanted for other in _NEEDED.get(name, ())}
    return [name for name in HOST_FILE_SCHEMA.names if name in wanted or name in needed]


def restored(rows: pa.Table, wanted: Sequence[str]) -> pa.Table:
    """Columns of the records, from those of the file that `columns_for` says."""
    columns = []
    for name in wanted:
        column = rows.column(name)
        if name == "host_key":
            column = _keys(column, rows)
        elif name == "registrable_domain":
            told = _told(rows)
            stated = pc.if_else(pc.starts_with(column, _NO_DOMAIN), pc.utf8_slice_codeunits(column, 1), column)
            stated = pc.if_else(pc.equal(column, _NO_DOMAIN), pa.scalar(None, pa.string()), stated)
            column = pc.if_else(pc.is_null(column), told, stated)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=pa.schema([HOST_SCHEMA.field(name) for name in wanted]))


def _keys(column: pa.ChunkedArray, rows: pa.Table) -> pa.Array:
    keys = _one(column)
    if not keys.null_count:
        return keys
    stated = pc.is_valid(keys).to_numpy(zero_copy_only=False)
    hashes = _hashes(_one(rows.column("host_group")))
    return pa.array(np.where(stated, pc.fill_null(keys, 0).to_numpy(), hashes))


def _told(rows: pa.Table) -> pa.StringArray:
    return registrable_domains(_one(rows.column("host_group")), rows.column("grouping").to_numpy() == _BY_DOMAIN)


def _hashes(groups: pa.StringArray) -> NDArray[np.uint64]:
    """Keys of host groups, (n,); by a kernel where kernels are loaded anyway."""
    offsets, data = binary_parts(groups)
    out = np.empty(len(groups), np.uint64)
    if "numba" in sys.modules:
        from meguri_common.kernels.xxh64 import hash_slices  # noqa: PLC0415 - imports numba

        hash_slices(data, offsets, out)
    else:
        text = data.tobytes()
        for at in range(len(out)):
            out[at] = host_key(text[offsets[at] : offsets[at + 1]])
    return out


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
