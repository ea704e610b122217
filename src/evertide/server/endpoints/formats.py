"""Rows in each of the formats that they are given in: from tables, one after the other, to pieces of bytes.

    application/json                      {"time": T, "columns": [{name, type, is_nullable}, ...], "rows": [[...], ...]}
    application/x-ndjson                  an object in each line
    text/csv                              with a header; NULL is nothing at all, an empty text is ""
    application/vnd.apache.arrow.stream   an Arrow IPC stream
    application/vnd.apache.parquet        a Parquet file

1. What is given can be pushed again, and is the same then.
2. Nothing is held but the table at hand.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from evertide.errors import InvalidInput
from evertide.media import ARROW, CSV, JSON, LINES, PARQUET
from evertide.rows.conform import conform_table
from evertide.server.endpoints.columns import columns_of
from evertide.sinks.json_rows import json_rows

__all__ = ["ROW_FORMATS", "csv_text", "pieces", "unique_names", "values_of"]

_ROWS = 4096
_QUOTED = re.compile(r'[",\r\n]|^\s|\s$|^$')

Pieces = Callable[[pa.Schema, Iterable[pa.Table], Mapping[str, Any]], Iterator[bytes]]


def pieces(
    media: str, schema: pa.Schema, tables: Iterable[pa.Table], facts: Mapping[str, Any] | None = None
) -> Iterator[bytes]:
    """`facts` stand before the rows, in JSON. The first table is read before anything is said."""
    found = iter(tables)
    first = next(found, None)
    yield from _WRITERS[media](schema, chain([] if first is None else [first], found), facts or {})


def unique_names(rows: pa.Table) -> pa.Table:
    """A query may name two columns alike, which no JSON object does."""
    names: list[str] = []
    for name in rows.schema.names:
        count, unique = 1, name
        while unique in names:
            count += 1
            unique = f"{name}_{count}"
        names.append(unique)
    return rows.rename_columns(names)


def values_of(rows: pa.Table) -> list[list[Any]]:
    """As JSON has them, in the order of the columns."""
    return [[*row.values()] for row in json_rows(rows)]


def _json(schema: pa.Schema, tables: Iterable[pa.Table], facts: Mapping[str, Any]) -> Iterator[bytes]:
    head = msgspec.json.encode({**facts, "columns": columns_of(schema)})
    yield head.removesuffix(b"}") + b',"rows":['
    between = b""
    for piece in _small(tables):
        yield between + msgspec.json.encode(values_of(piece))[1:-1]
        between = b","
    yield b"]}"


def _lines(_: pa.Schema, tables: Iterable[pa.Table], __: Mapping[str, Any]) -> Iterator[bytes]:
    for piece in _small(tables):
        yield b"".join(msgspec.json.encode(row) + b"\n" for row in json_rows(piece))


def _csv(schema: pa.Schema, tables: Iterable[pa.Table], _: Mapping[str, Any]) -> Iterator[bytes]:
    yield (",".join(map(_field, schema.names)) + "\n").encode()
    for piece in _small(tables):
        yield "".join(",".join(map(_field, row.values())) + "\n" for row in json_rows(piece)).encode()


def csv_text(rows: pa.Table) -> str:
    return b"".join(_csv(rows.schema, [rows], {})).decode()


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def _arrow(schema: pa.Schema, tables: Iterable[pa.Table], _: Mapping[str, Any]) -> Iterator[bytes]:
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema) as writer:
        for table in tables:
            writer.write_table(conform_table(table, schema))
            yield _taken(buffer)
    yield _taken(buffer)


def _parquet(schema: pa.Schema, tables: Iterable[pa.Table], _: Mapping[str, Any]) -> Iterator[bytes]:
    sink = _Growing()
    try:
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(conform_table(table, schema))
                yield sink.taken()
    except pa.ArrowNotImplementedError as error:
        raise InvalidInput(where="format 'parquet'", why=f"{error}; ask for Arrow, which has all types") from error
    yield sink.taken()


class _Growing(io.RawIOBase):
    """A file that nobody holds as a whole: what was written is taken away, and its length stays known."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._length = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        piece = bytes(content)
        self._waiting.append(piece)
        self._length += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._length

    def taken(self) -> bytes:
        found, self._waiting = b"".join(self._waiting), []
        return found


def _taken(buffer: io.BytesIO) -> bytes:
    found = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return found


def _small(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Texts take more room than Arrow: some thousand rows at a time."""
    for table in tables:
        for start in range(0, table.num_rows, _ROWS):
            yield table.slice(start, _ROWS)


_WRITERS: dict[str, Pieces] = {JSON: _json, LINES: _lines, CSV: _csv, ARROW: _arrow, PARQUET: _parquet}

ROW_FORMATS = tuple(_WRITERS)
