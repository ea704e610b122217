"""Tables of every type, files in a directory, and the rows that a source reads from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from evertide.sources.contract import Fault, Limit, Offer, Rows, Source, TableDeclaration
from evertide.sources.registry import open_sources
from tests.kit.runtime import ManualRuntime

LIMIT = Limit(rows=100_000, bytes=1 << 30)

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("amount", pa.decimal128(10, 2)),
    ]
)

KINDS: dict[str, Any] = {
    "tiny": pa.int8(),
    "small": pa.int16(),
    "int": pa.int32(),
    "big": pa.int64(),
    "single": pa.float32(),
    "double": pa.float64(),
    "truth": pa.bool_(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "price": pa.decimal128(12, 3),
    "wide": pa.decimal128(38, 0),
    "span": pa.duration("us"),
    "clock": pa.time64("ns"),
    "list": pa.list_(pa.int64()),
    "map": pa.map_(pa.string(), pa.float64()),
    "struct": pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.list_(pa.string()))]),
}

_TEXT = st.text(st.characters(codec="utf-8"), max_size=12) | st.text('",;\n\r\t \\é\0', max_size=6)
_MOMENT = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 - the zone is put on where there is one
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tiny": st.integers(-(1 << 7), (1 << 7) - 1),
    "small": st.integers(-(1 << 15), (1 << 15) - 1),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "big": st.integers(-(1 << 63), (1 << 63) - 1),
    "single": st.floats(width=32),
    "double": st.floats(),
    "truth": st.booleans(),
    "text": _TEXT,
    "bytes": st.binary(max_size=8),
    "day": st.dates(date(1, 1, 1), date(9999, 12, 31)),
    "at": _MOMENT.map(lambda at: at.replace(tzinfo=UTC)),
    "local": _MOMENT,
    "price": st.decimals(Decimal("-999999999.999"), Decimal("999999999.999"), places=3, allow_nan=False),
    "wide": st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    "span": st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000)),
    "clock": st.times(),
    "list": st.lists(st.none() | st.integers(-5, 5), max_size=3),
    "map": st.dictionaries(_TEXT, st.none() | st.floats(), max_size=2),
    "struct": st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.none() | st.lists(_TEXT, max_size=2)}),
}


def table(
    name: str = "orders",
    connector: str = "",
    schema: pa.Schema = ORDERS,
    key: Sequence[str] = ("id",),
    **options: str,
) -> TableDeclaration:
    return TableDeclaration(name, schema, tuple(key), connector, options, "shop.sql, line 7")


def every_kind() -> pa.Schema:
    return pa.schema([pa.field("number", pa.int64(), nullable=False), *(pa.field(n, k) for n, k in KINDS.items())])


def written_rows() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rows of `every_kind`, numbered."""
    row = st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()})
    return st.lists(row, max_size=6).map(lambda rows: [{"number": at, **row} for at, row in enumerate(rows)])


def open_source(base: Path, *declarations: TableDeclaration, runtime: ManualRuntime | None = None) -> Source:
    (source,) = open_sources(declarations, runtime=runtime or ManualRuntime(), base=base)
    return source


def put(path: Path, content: str | bytes, at_s: int = 1_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(path, ns=(at_s * 10**9, at_s * 10**9))
    return path


def require_offer(source: Source, position: str | None = None, limit: Limit = LIMIT) -> Offer:
    offer = source.offer(source.start if position is None else position, limit)
    assert offer is not None
    return offer


def batches(source: Source, offer: Offer) -> Iterator[Rows]:
    for fragment in offer.fragments:
        yield from source.read(fragment)


def rows_in(source: Source, offer: Offer) -> list[dict[str, Any]]:
    return [row for batch in batches(source, offer) for row in batch.rows.to_pylist()]


def faults_in(source: Source, offer: Offer) -> list[Fault]:
    return [fault for batch in batches(source, offer) for fault in batch.faults]


def key_of(fault: Fault) -> dict[str, Any] | None:
    return None if fault.key is None else fault.key.to_pylist()[0]


def ids(source: Source, offer: Offer) -> list[int]:
    return [row["id"] for row in rows_in(source, offer)]
