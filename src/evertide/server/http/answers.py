"""Responses: JSON values, streams, and errors in one form.

1. An error is a JSON object with `error_code`, `message`, `remedy` and the facts of the error, as on the command line.
   The HTTP status follows from the kind of the error (`STATUS`).
2. Errors of HTTP itself (unknown address, wrong method, body too large) have the same form.
3. An unexpected exception is a bug: 500 without a traceback, with an `id` under which the log has the traceback.
4. The log has responses of 500 and more as errors, other refusals as information; so it has the same error of the same
   address, which clients repeat, until the address answers without one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import anyio
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evertide import errors
from evertide.errors import EvertideError
from evertide.json_values import to_json_value
from evertide.media import CONTENT_HEADER, FORMATS, JSON, STALE_HEADER, TIME_HEADER
from evertide.pgexpr.restriction import read_restriction
from evertide.pipeline.reading.stale import make_stale_header
from evertide.runtime import Runtime
from evertide.shapes.http.answers import take_first_blocks

__all__ = [
    "JSON",
    "STATUS",
    "ErrorGuard",
    "answer_error",
    "answer_head",
    "answer_http_error",
    "answer_json",
    "answer_stream",
    "answer_struct",
    "choose_media",
    "choose_status",
    "make_content_headers",
    "make_not_found",
]

logger = logging.getLogger(__name__)

STATUS: Mapping[type[EvertideError], int] = {
    errors.EvertideError: 500,
    errors.InvalidInput: 400,
    errors.NotAllowedNow: 409,
    errors.Closed: 503,
    errors.Conflict: 409,
    errors.TimeCompacted: 410,
    errors.Fenced: 500,
    errors.LeaseLost: 503,
    errors.Unavailable: 503,
    errors.StorageFull: 507,
    errors.OutcomeUnknown: 504,
    errors.SourceFailed: 502,
    errors.SinkFailed: 502,
    errors.Diverged: 500,
    errors.ViewFailed: 500,
    errors.Damaged: 500,
    errors.UnsupportedFormat: 500,
    errors.LimitExceeded: 422,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
}
"""By kind. A class that is not listed has the status of its base class."""

_RETRY_AFTER_S = "1"
_FAILING = "evertide.failing"
_FAILING_MAX = 1000
_REFUSALS = {
    404: (
        "not_found",
        "The server has nothing at this address",
        "docs/http.md and /v1/openapi.json list the addresses.",
    ),
    405: (
        "method_not_allowed",
        "This address does not support the method",
        "The Allow header lists the methods that it supports.",
    ),
    406: ("not_acceptable", "The format is not available", "Choose an available one with ?format= or Accept."),
    408: ("request_timeout", "The request did not arrive in time", "Retry, without pauses."),
    413: ("body_too_large", "The body is too large", "Send the rows in several requests, or as an Arrow stream."),
    415: ("unsupported_media_type", "The type of the body is not supported", "Set the Content-Type header."),
    503: ("busy", "The server is busy", "Retry after the number of seconds in the Retry-After header."),
}


def choose_status(error: EvertideError) -> int:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def answer_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(to_json_value(value), status, headers)


def answer_struct(value: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` contains only types that JSON has."""
    return Response(msgspec.json.encode(value), status, headers, JSON)


def make_not_found(what: str, why: str) -> HTTPException:
    return HTTPException(404, f"{what}: {why}")


def make_content_headers(time: int, stale: Sequence[str], content: str = "") -> dict[str, str]:
    """The headers of rows: their time, their content's id, and which views stand at an earlier transaction."""
    headers = {TIME_HEADER: str(time)}
    if content:
        headers[CONTENT_HEADER] = content
    if stale:
        headers[STALE_HEADER] = make_stale_header(stale)
    return headers


def answer_head(media: str, headers: Mapping[str, str]) -> Response:
    """The response to HEAD for content that would be streamed: it has no length."""
    return StreamingResponse(iter(()), 200, headers, media)


async def answer_stream(blocks: Iterator[bytes], media: str, headers: Mapping[str, str]) -> Response:
    """Compute the first blocks before the response starts, so that content that cannot be read gets an error status.

    Small content is not streamed: its length is known, and it is written at once.
    """
    first, is_all = await run_in_threadpool(take_first_blocks, blocks)
    if is_all:
        return Response(b"".join(first), 200, headers, media)
    return _ClosingStream(chain(first, blocks), blocks, media, headers)


class _ClosingStream(StreamingResponse):
    """Closes its iterator even if the client disconnects: the iterator holds a lease."""

    def __init__(self, content: Iterator[bytes], blocks: Any, media: str, headers: Mapping[str, str]) -> None:
        super().__init__(content, 200, headers, media)
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except EvertideError as error:  # the response has started: the client sees that its end is missing
            logger.log(logging.ERROR, "%s %s: the response was cut off: %s", scope["method"], scope["path"], error)
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(self._blocks.close)


def answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, EvertideError)  # noqa: S101 - starlette calls this for the registered class only
    status = choose_status(error)
    is_news = status >= 500 and _note_failure(request.scope, error.error_code)
    level = logging.ERROR if is_news else logging.INFO
    logger.log(level, "%s %s: %d %s: %s", request.method, request.url.path, status, error.error_code, error)
    headers = {"Retry-After": _RETRY_AFTER_S} if isinstance(error, errors.Unavailable) else None
    return answer_json(read_restriction(request.scope).error_json(error), status, headers)


def _note_failure(scope: Scope, error_code: str) -> bool:
    """Whether the last answer of the address was not this error. Only `ErrorGuard` knows when the error is over."""
    failing: dict[str, str] | None = scope.get(_FAILING)
    if failing is None:
        return True
    address = f"{scope['method']} {scope['path']}"
    if len(failing) > _FAILING_MAX:
        failing.clear()
    before, failing[address] = failing.get(address), error_code
    return before != error_code


def answer_http_error(request: Request, error: Exception) -> Response:
    """For an `HTTPException` of starlette or of a handler; its detail is the reason."""
    assert isinstance(error, HTTPException)  # noqa: S101 - starlette calls this for the registered class only
    fallback = ("http_error", "The server cannot serve the request", "Correct the request and retry.")
    code, what, remedy = _REFUSALS.get(error.status_code, fallback)
    has_reason = error.status_code in (406, 413, 415, 503) or (error.status_code == 404 and error.detail != "Not Found")
    why = error.detail if has_reason else f"{request.method} {request.url.path}"
    return answer_json(
        {"error_code": code, "message": f"{what}: {why}", "remedy": remedy}, error.status_code, error.headers
    )


class ErrorGuard:
    """The outermost middleware: answers unexpected exceptions as well."""

    def __init__(self, app: ASGIApp, runtime: Runtime) -> None:
        self._app = app
        self._runtime = runtime
        self._failing: dict[str, str] = {}
        """The error codes of addresses whose last answer was an error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def record_start(message: Message) -> None:
            nonlocal has_started
            has_started = True
            if message.get("status", 500) < 500:
                self._failing.pop(f"{scope.get('method')} {scope['path']}", None)
            await send(message)

        try:
            scope[_FAILING] = self._failing  # the scope itself: the observer of requests reads what the endpoint adds
            await self._app(scope, receive, record_start)
        except ClientDisconnect:
            logger.info("%s %s: the client disconnected", scope.get("method"), scope["path"])
        except Exception:  # the log has the traceback, the response only its id
            id_ = self._runtime.new_id()
            logger.exception("%s %s: unexpected error, id %s", scope.get("method"), scope["path"], id_)
            if not has_started:
                message = f"internal error in {scope.get('method')} {scope['path']}"
                remedy = "Report this as a bug, with the lines of the log that have the id."
                content = {"error_code": EvertideError.error_code, "message": message, "remedy": remedy, "id": id_}
                await answer_json(content, 500)(scope, receive, send)


def choose_media(request: Request, format_: str | None, available: Sequence[str]) -> str:
    """One of `available`; the first is the default.

    `?format=` takes precedence over the `Accept` header. Without both, the answer is JSON. A format that is not
    available is refused with 406 and the list of those that are.
    """
    if format_ is not None:
        named = FORMATS.get(format_, "")
        if named in available:
            return named
        raise HTTPException(406, f"{format_!r}; available are {_list_formats(available)}")
    accepted = request.headers.get("accept", "*/*")
    wanted = sorted(map(_parse_weight, accepted.split(",")), key=lambda each: -each[1])
    for media, weight in wanted:
        for one in available if weight > 0 else ():
            if media in (one, "*/*", "", f"{one.partition('/')[0]}/*"):
                return one
    raise HTTPException(406, f"{accepted!r}; available are {_list_formats(available)}")


def _parse_weight(accepted: str) -> tuple[str, float]:
    media, *parameters = (each.strip().lower() for each in accepted.split(";"))
    weight = next((each.removeprefix("q=") for each in parameters if each.startswith("q=")), "1")
    try:
        return media, float(weight)
    except ValueError:
        return media, 1.0


def _list_formats(available: Sequence[str]) -> str:
    names = {media: name for name, media in FORMATS.items()}
    return ", ".join(f"{names[media]} ({media})" for media in available)
