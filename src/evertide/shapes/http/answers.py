"""Build answers with the headers and status codes of Electric's protocol.

1. Every answer names the server and lets pages of other origins read it and its headers. It depends on the request's
   origin, and tells caches so (`Vary`).
2. Cacheability depends on the request, never on the content: by default, a snapshot is cacheable for days, a log for a
   minute, a live answer for seconds (`ShapeOptions`), a refusal not at all.
3. An up-to-date answer says if its view stands at an earlier transaction, because it failed. A chunk of a snapshot does
   not: caches may keep it for longer than that state.
4. An answer without new data has a unique ETag, so that it can never stand for data that arrived later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from evertide import __version__
from evertide.media import STALE_HEADER
from evertide.pipeline.reading.stale import make_stale_header
from evertide.runtime import Runtime
from evertide.shapes.log.live_shape import LiveShape
from evertide.shapes.options import ShapeOptions
from evertide.shapes.protocol.offsets import BEFORE_ALL, Offset
from evertide.shapes.protocol.requests import Refusal, ShapeRequest

_BLOCK_BYTES = 256 * 1024
_SMALL_BYTES = 384 * 1024
"""Holds a chunk of `ShapeOptions.chunk_bytes` and its last message, unless that is very large."""
_BLOCKS_MAX = 8
EXPOSED_HEADERS = (
    "electric-cursor,electric-handle,electric-has-data,electric-offset,electric-schema,electric-up-to-date,"
    "electric-internal-known-error,evertide-stale,retry-after"
)
_METHODS = "GET, POST, HEAD, DELETE, OPTIONS"
_ALLOWED_HEADERS = ("authorization", "if-none-match", "traceparent")
_SERVER = f"Evertide/{__version__}"
_CURSOR_EPOCH_S = 1_728_432_000
"""2024-10-09T00:00Z."""
_CURSOR_STEP_S = 20
_CURSOR_SPREAD_S = 3600


def answer_refusal(refusal: Refusal, origin: str | None, method: str) -> Response:
    headers = {**make_cors_headers(origin), **refusal.headers, "content-type": "application/json"}
    if "cache-control" not in headers:
        headers["cache-control"] = "no-store"
        headers["surrogate-control"] = "no-store"
    if method not in ("GET", "HEAD"):
        headers["cache-control"] = "no-cache"
    content = refusal.body if isinstance(refusal.body, bytes) else msgspec.json.encode(refusal.body)
    return Response(content, refusal.status, headers)


def make_cors_headers(origin: str | None) -> dict[str, str]:
    return {
        "electric-server": _SERVER,
        "access-control-allow-origin": origin or "*",
        "access-control-allow-methods": _METHODS,
        "access-control-expose-headers": EXPOSED_HEADERS,
        "vary": "Origin",
    }


def answer_options(requested: str) -> Response:
    """The answer to a CORS preflight request, which needs no token."""
    allowed = ", ".join(name for one in requested.lower().split(",") if (name := one.strip()) in _ALLOWED_HEADERS)
    headers = {"access-control-max-age": "86400"}
    return Response(
        status_code=204, headers={**headers, "access-control-allow-headers": allowed} if allowed else headers
    )


class AnswerBuilder:
    def __init__(self, options: ShapeOptions, runtime: Runtime) -> None:
        self._options = options
        self._runtime = runtime

    def headers(
        self,
        request: Request,
        shape_request: ShapeRequest,
        shape: LiveShape,
        end: Offset,
        *,
        is_up_to_date: bool,
        has_data: bool,
        stale: str,
    ) -> dict[str, str]:
        """The headers of an answer that ends at offset `end`."""
        is_first = not shape_request.is_now and shape_request.offset == BEFORE_ALL
        unique = "" if has_data or is_first else f":{self._runtime.new_id()}"
        headers = {
            "electric-handle": shape.handle,
            "electric-offset": str(end),
            "electric-has-data": "true" if has_data else "false",
            "etag": f'"{shape.handle}:{"now" if shape_request.is_now else shape_request.offset}:{end}{unique}"',
            "cache-control": self._cache_control(request.method, is_first=is_first, is_live=shape_request.is_live),
        }
        if is_up_to_date:
            headers["electric-up-to-date"] = ""
        if stale:
            headers[STALE_HEADER] = make_stale_header([stale])
        if shape_request.is_live:
            headers["electric-cursor"] = self._cursor(shape_request.cursor)
        else:
            headers["electric-schema"] = shape.definition.schema_header
        return headers

    def stream_headers(self, shape_request: ShapeRequest, handle: str, stale: str) -> dict[str, str]:
        headers = {
            "content-type": "text/event-stream",
            "electric-handle": handle,
            "electric-offset": str(shape_request.offset),
            "electric-cursor": self._cursor(shape_request.cursor),
            "electric-has-data": "true",
            "cache-control": f"public, max-age={max(0, int(self._options.sse_s) - 1)}",
        }
        return {**headers, STALE_HEADER: make_stale_header([stale])} if stale else headers

    def answer_not_modified(self, request: Request, headers: Mapping[str, str]) -> Response | None:
        """A 304 response if the client already has this answer."""
        tags = request.headers.get("if-none-match", "").split(",")
        if headers["etag"].strip('"') not in (tag.strip().removeprefix("W/").strip('"') for tag in tags):
            return None
        return Response(status_code=304, headers=dict(headers))

    def messages(self, entries: Sequence[bytes], last: bytes | None, headers: Mapping[str, str]) -> Response:
        return answer_stream(write_array(entries, last), headers)

    def _cursor(self, before: str) -> str:
        """The same for all clients within `_CURSOR_STEP_S`, so that caches merge requests; never equal to `before`."""
        since_s = self._runtime.wall_s() - _CURSOR_EPOCH_S
        cursor = int(-(-since_s // _CURSOR_STEP_S) * _CURSOR_STEP_S)
        if before.isascii() and before.isdigit() and len(before) < 19 and cursor <= int(before):
            return str(int(before) + 1 + int(self._runtime.random() * _CURSOR_SPREAD_S))
        return str(cursor)

    def _cache_control(self, method: str, *, is_first: bool, is_live: bool) -> str:
        options = self._options
        if method not in ("GET", "HEAD"):
            return "no-cache"
        if is_first:
            shared_age = f", s-maxage={options.snapshot_shared_cache_s}"
            return f"public, max-age={options.snapshot_cache_s}{shared_age}{_make_stale(options.snapshot_stale_s)}"
        if is_live:
            return f"public, max-age={options.live_cache_s}{_make_stale(options.live_stale_s)}"
        return f"public, max-age={options.log_cache_s}{_make_stale(options.log_stale_s)}"


def _make_stale(age_s: int) -> str:
    """Without an age, a cache must ask again: some caches give old answers by themselves."""
    return f", stale-while-revalidate={age_s}" if age_s else ", must-revalidate"


def answer_stream(blocks: Iterator[bytes], headers: Mapping[str, str], size: int | None = None) -> Response:
    """Send the body block by block as the client reads, so that a slow client holds little memory.

    A small body is sent at once. `size` is the body's size in bytes, if known.
    """
    first, is_all = take_first_blocks(blocks)
    if is_all:
        return Response(b"".join(first), 200, dict(headers), media_type="application/json")
    known = {} if size is None else {"content-length": str(size)}
    return StreamingResponse(_iterate(chain(first, blocks)), 200, {**headers, **known}, media_type="application/json")


def take_first_blocks(blocks: Iterator[bytes]) -> tuple[list[bytes], bool]:
    """The first blocks of a body, and whether they are the whole body: a small body is sent in one write."""
    first: list[bytes] = []
    size = 0
    for block in blocks:
        first.append(block)
        size += len(block)
        if size > _SMALL_BYTES or len(first) == _BLOCKS_MAX:
            return first, False
    return first, True


async def _iterate(blocks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block


def write_array(messages: Iterable[bytes], last: bytes | None = None) -> Iterator[bytes]:
    """A JSON array of messages, in blocks of bounded size."""
    held: list[bytes] = []
    size, before = 0, b"["
    for message in messages:
        held += (before, message)
        size, before = size + len(message), b","
        if size >= _BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if last is not None:
        held += (before, last)
        before = b","
    if before == b"[":
        held.append(b"[")
    yield b"".join([*held, b"]"])
