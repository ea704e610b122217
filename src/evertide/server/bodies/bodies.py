"""The body of a request, as rows to push.

    application/json                      [row, ...]  or  {"rows": [row, ...], "deletes": [key or row, ...]}
    application/x-ndjson                  a row in each line
    application/vnd.apache.arrow.stream   an Arrow IPC stream of rows
    text/csv                              with a header
    application/vnd.apache.parquet        a Parquet file

1. A body is read up to a limit, and no further. It is decoded if it comes to no more than another limit, which is known
   before (`arrow_size`, `parquet_size`, `text_size`), and waits until there is room for it among those of all requests
   (`evertide.server.access.body_memory`).
2. Numbers with a fraction stay as they are written until their column is known: a DECIMAL loses no digit.
3. What is not well-formed is told with its place: line and column, both from 1 on.
4. The type must be named. A page that a browser shows can then not send rows from elsewhere unasked. An encoding on top
   of it (`Content-Encoding`) is refused: Arrow and Parquet bring their own.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
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
from evertide.pipeline.input.pushed_files import Format, rows_of_file
from evertide.scratch import scratch_file, using_scratch
from evertide.server.access.body_memory import held_in
from evertide.server.bodies.arrow_size import is_foreign, may_repeat, message_bytes, plain_bytes
from evertide.server.bodies.parquet_size import parquet_bytes
from evertide.server.bodies.text_size import text_bytes
from evertide.settings import Settings
from evertide.sources.values.strict_json import RepeatedName, decode_json
from evertide.sources.values.values import Number, show_value

__all__ = [
    "BODIES",
    "Given",
    "Intake",
    "Tables",
    "content_of",
    "decoded_bytes",
    "given_in",
    "given_of",
    "type_of",
    "whole_json",
]

Tables = Mapping[str, DeclaredTable]

BODIES = (JSON, LINES, ARROW, CSV, PARQUET)

_FILES = {CSV: Format.csv, PARQUET: Format.parquet}
_BYTE = re.compile(r" \(byte (\d+)\)$")
_LOOKING = 2
"""Bodies at a time that are looked through for what they come to: of some, more than a little has to be decoded."""


@dataclass(frozen=True, slots=True)
class Given:
    """For one table: a list, or an Arrow table."""

    rows: Any = ()
    deletes: Any = ()


def type_of(request: Request, *known: str) -> str:
    named = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if named not in known:
        raise HTTPException(415, f"{named!r}; expected {' or '.join(known)}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise HTTPException(415, f"Content-Encoding {encoding!r}; send it as it is, or as Arrow or Parquet")
    return named


async def content_of(request: Request, bytes_max: int) -> bytes:
    chunks, size = [], 0
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > bytes_max:
        raise HTTPException(413, f"{told} bytes, of which at most {bytes_max} are taken", {"Connection": "close"})
    async for chunk in request.stream():
        size += len(chunk)
        if size > bytes_max:
            raise HTTPException(413, f"at most {bytes_max} bytes are taken", {"Connection": "close"})
        chunks.append(chunk)
    return b"".join(chunks)


class Intake:
    """Reads the bodies of requests that bring rows, with room for what they come to."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._looking = CapacityLimiter(_LOOKING)

    async def content(self, request: Request, kind: str) -> bytes:
        """413 if it is, or comes to, more than is allowed; 503 if there is no room for it."""
        content = await content_of(request, self._settings.request_bytes_max)
        most = self._settings.request_decoded_bytes_max
        size = await anyio.to_thread.run_sync(decoded_bytes, content, kind, most, limiter=self._looking)
        if size > most:
            limit = f"more than {most} decoded, which is the limit (request_decoded_bytes_max)"
            raise HTTPException(413, f"it is {len(content)} bytes, and would come to {limit}")
        held = held_in(request.scope)
        if held is not None:
            await held.more(size)
        return content


def decoded_bytes(content: bytes, kind: str, enough: int) -> int:
    """The size of a body once it is decoded; counted until it is more than `enough`, estimated if the body is text."""
    if kind not in (ARROW, PARQUET):
        return text_bytes(content, kind)
    try:
        return parquet_bytes(content, enough) if kind == PARQUET else _stream_bytes(content, enough)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        what = "Parquet file" if kind == PARQUET else "Arrow stream"
        raise InvalidInput(where="body", why=f"it is no {what}: {error}") from error


def _stream_bytes(content: bytes, enough: int) -> int:
    total = 0
    for message in pa.ipc.MessageReader.open_stream(content):
        total += message_bytes(message)
        if total > enough:
            return total
    with pa.ipc.open_stream(content) as stream:
        for field in stream.schema:
            if is_foreign(field.type):
                why = f"{field.type} is no type of a table: decode it before it is sent"
                raise InvalidInput(where=f"body, column {field.name!r}", why=why)
        if not any(may_repeat(field.type) for field in stream.schema):
            return total
        for batch in stream:
            batch.validate(full=True)  # what an index stands for is looked up
            total += sum(map(plain_bytes, batch.columns))
            if total > enough:
                break
    return total


def given_in(content: bytes, kind: str, tables: Tables, table: str, *, is_delete: bool = False) -> Given:
    """A body that is rows and nothing else holds keys, or rows, to delete if `is_delete`."""
    if kind == JSON:
        whole = whole_json(content)
        if not isinstance(whole, list):
            if is_delete:
                raise InvalidInput(where="parameter 'deletes'", why="the body says itself what is deleted")
            return given_of(whole, "body")
        rows: Any = whole
    elif kind == ARROW:
        rows = _arrow(content)
    elif kind == LINES:
        lines = enumerate(content.split(b"\n"), 1)
        rows = [_decoded(line, first_line=at) for at, line in lines if line.strip()]
    else:
        rows = _of_file(content, _FILES[kind], tables, table, is_delete=is_delete)
    return Given(deletes=rows) if is_delete else Given(rows)


def _of_file(content: bytes, form: Format, tables: Tables, table: str, *, is_delete: bool) -> Any:
    """These are read as files are, with the same messages."""
    with scratch_file() as kept:
        with using_scratch():
            kept.write_bytes(content)
        found = [*rows_of_file(tables, table, kept, form, "body", is_delete=is_delete)]
    return pa.concat_tables(found) if found else ()


def whole_json(content: bytes) -> Any:
    return _decoded(content, first_line=1)


def given_of(value: Any, where: str) -> Given:
    if isinstance(value, list):
        return Given(value)
    if not isinstance(value, Mapping) or not value.keys() <= {"rows", "deletes"}:
        why = f'{show_value(value)} is neither a list of rows nor {{"rows": [...], "deletes": [...]}}'
        raise InvalidInput(where=where, why=why)
    return Given(value.get("rows", ()), value.get("deletes", ()))


def _decoded(content: bytes, *, first_line: int) -> Any:
    try:
        return decode_json(msgspec.json.Decoder(float_hook=Number), content)
    except RepeatedName as error:
        where = "body" if first_line == 1 else f"body, line {first_line}"
        raise InvalidInput(where=where, why=str(error)) from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        found = _BYTE.search(str(error))
        at = int(found[1]) if found else _first_bad(content)
        why = _BYTE.sub("", str(error)) if not isinstance(error, UnicodeError) else "it is not UTF-8"
        line = first_line + content.count(b"\n", 0, at)
        column = at - content.rfind(b"\n", 0, at)
        raise InvalidInput(where=f"body, line {line}, column {column}", why=why) from error
    except RecursionError as error:
        raise InvalidInput(where=f"body, line {first_line}", why="it is nested too deeply") from error


def _first_bad(content: bytes) -> int:
    """Where UTF-8 ends, or the end, if it is all of it: what is cut off is cut off there."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(content)


def _arrow(content: bytes) -> pa.Table:
    try:
        with pa.ipc.open_stream(content) as stream:
            rows = stream.read_all()
        rows.validate(full=True)  # offsets that lie outside would be read as they are
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(where="body", why=f"it is no Arrow stream: {error}") from error
    return rows
