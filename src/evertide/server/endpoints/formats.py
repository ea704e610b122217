"""Encode Arrow tables, one after the other, in the format of the answer.

    application/json                      {"time": T, "columns": [{name, type, is_nullable}, ...], "rows": [[...], ...]}
    application/x-ndjson                  one JSON object per line
    text/csv                              with a header; NULL is an empty field, an empty text is ""
    application/vnd.apache.arrow.stream   an Arrow IPC stream
    application/vnd.apache.parquet        a Parquet file

1. An answer can be pushed again, and gives the same rows.
2. Memory holds one table at a time.
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
from evertide.rows.conform import allow_nulls_inside, conform_table
from evertide.sinks.json_rows import to_json_rows
from evertide.sources.values.kinds import name_column_type

_SLICE_ROWS = 4096
_NEEDS_QUOTES = re.compile(r'[",\r\n]|^\s|\s$|^$')

Writer = Callable[[pa.Schema, Iterable[pa.Table], Mapping[str, Any]], Iterator[bytes]]


class Column(msgspec.Struct, frozen=True):
    name: str
    type: str
    """As in CREATE TABLE."""
    is_nullable: bool


def list_columns(schema: pa.Schema) -> list[Column]:
    return [Column(field.name, name_column_type(field), field.nullable) for field in schema]


def encode_rows(
    media: str, schema: pa.Schema, tables: Iterable[pa.Table], facts: Mapping[str, Any] | None = None
) -> Iterator[bytes]:
    """In JSON, `facts` precede the rows. The first table is read before the first block is returned."""
    rest = iter(tables)
    first = next(rest, None)
    yield from _WRITERS[media](schema, chain([] if first is None else [first], rest), facts or {})


def list_values(rows: pa.Table) -> list[list[Any]]:
    """JSON values, in the order of the columns."""
    return [[*row.values()] for row in to_json_rows(rows)]


def _json(schema: pa.Schema, tables: Iterable[pa.Table], facts: Mapping[str, Any]) -> Iterator[bytes]:
    head = msgspec.json.encode({**facts, "columns": list_columns(schema)})
    yield head.removesuffix(b"}") + b',"rows":['
    between = b""
    for rows in _slice_tables(tables):
        yield between + msgspec.json.encode(list_values(rows))[1:-1]
        between = b","
    yield b"]}"


def _lines(_: pa.Schema, tables: Iterable[pa.Table], __: Mapping[str, Any]) -> Iterator[bytes]:
    for rows in _slice_tables(tables):
        yield b"".join(msgspec.json.encode(row) + b"\n" for row in to_json_rows(rows))


def _csv(schema: pa.Schema, tables: Iterable[pa.Table], _: Mapping[str, Any]) -> Iterator[bytes]:
    yield (",".join(map(_write_field, schema.names)) + "\n").encode()
    for rows in _slice_tables(tables):
        yield "".join(",".join(map(_write_field, row.values())) + "\n" for row in to_json_rows(rows)).encode()


def write_csv(rows: pa.Table) -> str:
    return b"".join(_csv(rows.schema, [rows], {})).decode()


def _write_field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return '"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text


def _arrow(schema: pa.Schema, tables: Iterable[pa.Table], _: Mapping[str, Any]) -> Iterator[bytes]:
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema) as writer:
        for table in tables:
            writer.write_table(conform_table(table, schema))
            yield _drain(buffer)
    yield _drain(buffer)


def _parquet(schema: pa.Schema, tables: Iterable[pa.Table], _: Mapping[str, Any]) -> Iterator[bytes]:
    sink = _DrainableFile()
    schema = pa.schema([field.with_type(allow_nulls_inside(field.type)) for field in schema], schema.metadata)
    try:
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(conform_table(table, schema))
                yield sink.drain()
    except pa.ArrowNotImplementedError as error:
        raise InvalidInput(
            where="format 'parquet'", why=f"{error}; use the format 'arrow', which supports all types"
        ) from error
    yield sink.drain()


class _DrainableFile(io.RawIOBase):
    """A file for writing whose content can be removed while its length stays known."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._length = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        block = bytes(content)
        self._waiting.append(block)
        self._length += len(block)
        return len(block)

    def tell(self) -> int:
        return self._length

    def drain(self) -> bytes:
        content, self._waiting = b"".join(self._waiting), []
        return content


def _drain(buffer: io.BytesIO) -> bytes:
    content = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return content


def _slice_tables(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Text takes more memory than Arrow, so rows are encoded a few thousand at a time."""
    for table in tables:
        for start in range(0, table.num_rows, _SLICE_ROWS):
            yield table.slice(start, _SLICE_ROWS)


_WRITERS: dict[str, Writer] = {JSON: _json, LINES: _lines, CSV: _csv, ARROW: _arrow, PARQUET: _parquet}

ROW_FORMATS = tuple(_WRITERS)
