"""The body of a request, as rows to push.

    application/json                      [row, ...]  or  {"rows": [row, ...], "deletes": [key or row, ...]}
    application/x-ndjson                  a row in each line
    application/vnd.apache.arrow.stream   an Arrow IPC stream of rows

1. A body is read up to a limit, and no further.
2. Numbers with a fraction stay as they are written until their column is known: a DECIMAL loses no digit.
3. What is not well-formed is told with its place: line and column, both from 1 on.
4. The type must be named. A page that a browser shows can then not send rows from elsewhere unasked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from starlette.exceptions import HTTPException
from starlette.requests import Request

from evertide.errors import InvalidInput
from evertide.sources.values import Number, shown

__all__ = ["ARROW", "JSON", "LINES", "Given", "content_of", "given_in", "given_of", "type_of", "whole_json"]

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
LINES = "application/x-ndjson"

_BYTE = re.compile(r" \(byte (\d+)\)$")


@dataclass(frozen=True, slots=True)
class Given:
    """For one table: a list, or an Arrow table."""

    rows: Any = ()
    deletes: Any = ()


def type_of(request: Request, *known: str) -> str:
    named = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if named not in known:
        raise HTTPException(415, f"{named!r}; expected {' or '.join(known)}")
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


def given_in(content: bytes, kind: str) -> Given:
    if kind == ARROW:
        return Given(_arrow(content))
    if kind == LINES:
        lines = enumerate(content.split(b"\n"), 1)
        return Given([_decoded(line, first_line=at) for at, line in lines if line.strip()])
    return given_of(whole_json(content), "body")


def whole_json(content: bytes) -> Any:
    return _decoded(content, first_line=1)


def given_of(value: Any, where: str) -> Given:
    if isinstance(value, list):
        return Given(value)
    if not isinstance(value, Mapping) or not value.keys() <= {"rows", "deletes"}:
        why = f'{shown(value)} is neither a list of rows nor {{"rows": [...], "deletes": [...]}}'
        raise InvalidInput(where=where, why=why)
    return Given(value.get("rows", ()), value.get("deletes", ()))


def _decoded(content: bytes, *, first_line: int) -> Any:
    try:
        return msgspec.json.Decoder(float_hook=Number).decode(content)
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
