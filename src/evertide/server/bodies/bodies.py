"""Decode the body of a request into rows to push.

    application/json                      [row, ...]  or  {"rows": [row, ...], "deletes": [key or row, ...]}
    application/x-ndjson                  one row per line
    application/vnd.apache.arrow.stream   an Arrow IPC stream of rows
    text/csv                              with a header
    application/vnd.apache.parquet        a Parquet file

1. A body has at most `request_bytes_max` bytes, and decodes to at most `request_decoded_bytes_max`. The decoded size is
   known before decoding (`arrow_size`, `parquet_size`, `count_text_bytes`), and is reserved among the bodies of all
   requests (`evertide.server.access.body_memory`).
2. A row has all columns of its table, also those that the body does not have: a body of few bytes a row may become many
   columns of NULL. So rows times columns are limited as well (`check_rows`).
3. Fractional numbers stay texts until their column is known, so that a DECIMAL loses no digit.
4. The error of a malformed body names the line and column, both counted from 1.
5. The Content-Type header is required, so that a page of another site cannot send rows with a plain form. A
   Content-Encoding is refused: Arrow and Parquet have compression of their own.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import msgspec
import pyarrow as pa
from anyio import CapacityLimiter
from starlette.exceptions import HTTPException
from starlette.requests import Request

from evertide.errors import InvalidInput
from evertide.media import ARROW, CSV, JSON, LINES, PARQUET
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.input.pushed_files import PushFormat, read_pushed_file
from evertide.scratch import scratch_file, using_scratch
from evertide.server.access.body_memory import find_reservation
from evertide.server.bodies.arrow_size import count_message_bytes, count_plain_bytes, is_foreign, may_repeat
from evertide.server.bodies.parquet_size import count_parquet_bytes
from evertide.settings import Settings
from evertide.sources.values.strict_json import RepeatedName, decode_json
from evertide.sources.values.values import Number, show_value

Tables = Mapping[str, DeclaredTable]

BODIES = (JSON, LINES, ARROW, CSV, PARQUET)

_VALUE_BYTES = 8
"""Of a value of any type in a column, also of NULL."""
_FILES = {CSV: PushFormat.csv, PARQUET: PushFormat.parquet}
_LINE = re.compile(rb"\S[^\n]*")
"""A line that is not blank, from its first character. Blank lines take no memory."""
_BYTE = re.compile(r" \(byte (\d+)\)$")
_SIZING_MAX = 2
"""Bodies whose decoded size is computed at the same time: some need partial decoding."""

_OBJECT_BYTES = 216
"""Of an object with at most five names, and of its row in the columns to which it is converted."""
_LIST_BYTES = 72
_TEXT_VALUE_BYTES = 40
_RECORD_BYTES = 64
"""Size of a CSV record: CSV is decoded to columns, not to an object for each value."""
_FIELD_BYTES = 16


@dataclass(frozen=True, slots=True)
class PushedRows:
    """Rows of one table: lists, or Arrow tables."""

    rows: Any = ()
    deletes: Any = ()


def read_media_type(request: Request, *known: str) -> str:
    named = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if named not in known:
        raise HTTPException(415, f"{named!r}; expected {' or '.join(known)}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise HTTPException(415, f"Content-Encoding {encoding!r}; send the body unencoded, or as Arrow or Parquet")
    return named


async def read_body(request: Request, bytes_max: int) -> bytes:
    chunks, size = [], 0
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise HTTPException(413, f"{declared} bytes; the limit is {bytes_max} bytes", {"Connection": "close"})
    async for chunk in request.stream():
        size += len(chunk)
        if size > bytes_max:
            raise HTTPException(413, f"the limit is {bytes_max} bytes", {"Connection": "close"})
        chunks.append(chunk)
    return b"".join(chunks)


class BodyReader:
    """Reads bodies with rows, and reserves memory for the decoded rows."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sizing = CapacityLimiter(_SIZING_MAX)

    async def read(self, request: Request, kind: str) -> bytes:
        """Raise 413 if the body or its decoded rows exceed a limit, 503 if there is no memory."""
        content = await read_body(request, self._settings.request_bytes_max)
        most = self._settings.request_decoded_bytes_max
        size = await anyio.to_thread.run_sync(count_decoded_bytes, content, kind, most, limiter=self._sizing)
        if size > most:
            limit = f"more than {most} bytes (request_decoded_bytes_max)"
            raise HTTPException(413, f"the {len(content)} bytes of the body would decode to {limit}")
        reservation = find_reservation(request.scope)
        if reservation is not None:
            await reservation.reserve(size)
        return content


def count_decoded_bytes(content: bytes, kind: str, limit: int) -> int:
    """The decoded size of a body: estimated for text, counted for Arrow and Parquet until it exceeds `limit`."""
    if kind not in (ARROW, PARQUET):
        return count_text_bytes(content, kind)
    try:
        return count_parquet_bytes(content, limit) if kind == PARQUET else _count_stream_bytes(content, limit)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        what = "a Parquet file" if kind == PARQUET else "an Arrow stream"
        raise InvalidInput(where="body", why=f"the body is not {what}: {error}") from error


def _count_stream_bytes(content: bytes, limit: int) -> int:
    total = 0
    for message in pa.ipc.MessageReader.open_stream(content):
        total += count_message_bytes(message)
        if total > limit:
            return total
    with pa.ipc.open_stream(content) as stream:
        for field in stream.schema:
            if is_foreign(field.type):
                why = f"a table cannot have the type {field.type}; convert the column before sending it"
                raise InvalidInput(where=f"body, column {field.name!r}", why=why)
        if not any(may_repeat(field.type) for field in stream.schema):
            return total
        for batch in stream:
            batch.validate(full=True)  # `count_plain_bytes` follows indices
            total += sum(map(count_plain_bytes, batch.columns))
            if total > limit:
                break
    return total


def check_rows(pushed: PushedRows, tables: Tables, table: str, bytes_max: int) -> None:
    """Raise 413 if the rows, with all columns of their table, exceed `bytes_max`."""
    declared = next((one for name, one in tables.items() if name.lower() == table.lower()), None)
    count = sum(len(rows) for rows in (pushed.rows, pushed.deletes) if isinstance(rows, Sized))
    width = 0 if declared is None else len(declared.schema)
    if count * width * _VALUE_BYTES > bytes_max:
        limit = f"{bytes_max} bytes (request_decoded_bytes_max)"
        raise HTTPException(413, f"{count} rows with the {width} columns of table {table!r} take more than {limit}")


def decode_body(
    content: bytes, kind: str, tables: Tables, table: str, bytes_max: int, *, is_delete: bool = False
) -> PushedRows:
    """With `is_delete`, a body that is only rows has the keys, or rows, to delete. Raise 413 if a file has more rows
    than `check_rows` allows; the caller checks the others."""
    if kind == JSON:
        whole = decode_json_body(content)
        if not isinstance(whole, list):
            if is_delete:
                raise InvalidInput(
                    where="parameter 'deletes'",
                    why="the body is an object, which has its own 'deletes'; remove the parameter",
                )
            return parse_rows(whole, "body")
        rows: Any = whole
    elif kind == ARROW:
        rows = _decode_arrow(content)
    elif kind == LINES:
        rows = [_decode_json(content, *line.span()) for line in _LINE.finditer(content)]
    else:
        rows = _read_file(content, _FILES[kind], tables, table, bytes_max, is_delete=is_delete)
    return PushedRows(deletes=rows) if is_delete else PushedRows(rows)


def _read_file(content: bytes, form: PushFormat, tables: Tables, table: str, bytes_max: int, *, is_delete: bool) -> Any:
    """CSV and Parquet are read like files, with the same errors."""
    with scratch_file() as path:
        with using_scratch():
            path.write_bytes(content)
        batches, count = [], 0
        for batch in read_pushed_file(tables, table, path, form, "body", is_delete=is_delete):
            count += batch.num_rows
            check_rows(PushedRows(range(count)), tables, table, bytes_max)
            batches.append(batch)
    return pa.concat_tables(batches) if batches else ()


def decode_json_body(content: bytes) -> Any:
    return _decode_json(content, 0, len(content))


def parse_rows(value: Any, where: str) -> PushedRows:
    if isinstance(value, list):
        return PushedRows(value)
    if not isinstance(value, Mapping) or not value.keys() <= {"rows", "deletes"}:
        why = f'expected a list of rows or {{"rows": [...], "deletes": [...]}}, not {show_value(value)}'
        raise InvalidInput(where=where, why=why)
    return PushedRows(value.get("rows", ()), value.get("deletes", ()))


def _decode_json(body: bytes, begin: int, end: int) -> Any:
    """Decode a range of the body."""
    content = body[begin:end]
    try:
        return decode_json(msgspec.json.Decoder(float_hook=Number), content)
    except RepeatedName as error:
        line = body.count(b"\n", 0, begin) + 1
        raise InvalidInput(where="body" if line == 1 else f"body, line {line}", why=str(error)) from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        match = _BYTE.search(str(error))
        at = begin + (int(match[1]) if match else _find_non_utf8(content))
        why = _BYTE.sub("", str(error)) if not isinstance(error, UnicodeError) else "the body is not UTF-8"
        line, column = body.count(b"\n", 0, at) + 1, at - body.rfind(b"\n", 0, at)
        raise InvalidInput(where=f"body, line {line}, column {column}", why=why) from error
    except RecursionError as error:
        line = body.count(b"\n", 0, begin) + 1
        raise InvalidInput(where=f"body, line {line}", why="the JSON is nested too deeply") from error


def _find_non_utf8(content: bytes) -> int:
    """The first byte that is not UTF-8; the end if there is none: truncated JSON fails there."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(content)


def _decode_arrow(content: bytes) -> pa.Table:
    try:
        with pa.ipc.open_stream(content) as stream:
            rows = stream.read_all()
        rows.validate(full=True)  # otherwise offsets outside of the buffers would be followed
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(where="body", why=f"the body is not an Arrow stream: {error}") from error
    return rows


def count_text_bytes(content: bytes, kind: str) -> int:
    """The decoded size of JSON, JSON lines or CSV, estimated.

    A text of ordinary rows takes six to eight times its size as values. A text of rows that are almost empty (`{}`)
    takes up to eighty times its size. So rows and values are counted, by the bytes that begin or separate them. Such
    bytes inside of quotes count as well: the estimate may be too large, for texts that consist of punctuation.
    """
    if kind == CSV:
        records = content.count(b"\n")
        return len(content) + records * (_RECORD_BYTES + _FIELD_BYTES) + content.count(b",") * _FIELD_BYTES
    objects, lists = content.count(b"{") * _OBJECT_BYTES, content.count(b"[") * _LIST_BYTES
    return len(content) + objects + lists + content.count(b",") * _TEXT_VALUE_BYTES
