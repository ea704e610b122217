"""What is said when a request cannot be served: the same JSON object whatever went wrong.

1. `error_code`, `message`, `remedy`, and the facts of the error, as on the command line. The HTTP code follows from
   the kind of the error (`STATUS`), and never changes for one.
2. What HTTP itself refuses (no such address, wrong method, body too large, too many at once) has the same shape.
3. Something unexpected is a bug: 500, without a trace, with an `id` that is in the log beside the trace.
4. Everything that is answered with 500 or more is in the log as an error, what the client did wrong as information.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
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
from evertide.json_values import error_to_json, to_json_value
from evertide.media import JSON
from evertide.runtime import Runtime
from evertide.shapes.http.answers import first_pieces

__all__ = [
    "JSON",
    "STATUS",
    "Guard",
    "headed",
    "http_refusal",
    "no_such",
    "refused",
    "said",
    "status_of",
    "streamed",
    "told",
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
"""By kind; a class that is not listed is as the one above it in the tree."""

_RETRY_AFTER_S = "1"
_REFUSALS = {
    404: (
        "not_found",
        "Nothing is at this address",
        "GET /v1/status says what runs here; docs/http.md lists addresses.",
    ),
    405: (
        "method_not_allowed",
        "This address does not take that method",
        "The header Allow names those that it takes.",
    ),
    406: ("not_acceptable", "It is not given in that format", "Ask for one that is named, by ?format= or Accept."),
    408: ("request_timeout", "The request did not come in time", "Send it again, without a pause."),
    413: ("body_too_large", "The body is too large", "Send the rows in several requests, or as an Arrow stream."),
    415: ("unsupported_media_type", "The body's type is not known", "Name it in the header Content-Type."),
    503: ("busy", "There is no room for it at the moment", "Come again, after the seconds that Retry-After names."),
}


def status_of(error: EvertideError) -> int:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def said(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(to_json_value(value), status, headers)


def told(value: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A Struct that holds nothing but what JSON has."""
    return Response(msgspec.json.encode(value), status, headers, JSON)


def no_such(what: str, why: str) -> HTTPException:
    return HTTPException(404, f"{what}: {why}")


def headed(media: str, headers: Mapping[str, str]) -> Response:
    """For HEAD, of what would be streamed: how long it would be is not known, and not said."""
    return StreamingResponse(iter(()), 200, headers, media)


async def streamed(pieces: Iterator[bytes], media: str, headers: Mapping[str, str]) -> Response:
    """The first pieces are made before anything is answered: what cannot be read is told as an error, by its code.

    A small answer is not streamed: its length is known, and it is written at once.
    """
    first, is_all = await run_in_threadpool(first_pieces, pieces)
    if is_all:
        return Response(b"".join(first), 200, headers, media)
    return _Streamed(chain(first, pieces), pieces, media, headers)


class _Streamed(StreamingResponse):
    """Closes what it reads from, also if the client goes away: a lease lies behind it."""

    def __init__(self, content: Iterator[bytes], pieces: Any, media: str, headers: Mapping[str, str]) -> None:
        super().__init__(content, 200, headers, media)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except EvertideError as error:  # an answer that has begun can only be cut off: the client sees that it was
            logger.log(logging.ERROR, "%s %s was cut off: %s", scope["method"], scope["path"], error)
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(self._pieces.close)


def refused(request: Request, error: Exception) -> Response:
    """For an `EvertideError`."""
    assert isinstance(error, EvertideError)  # noqa: S101 - starlette hands over what it was told to
    status = status_of(error)
    level = logging.ERROR if status >= 500 else logging.INFO
    logger.log(level, "%s %s: %d %s: %s", request.method, request.url.path, status, error.error_code, error)
    headers = {"Retry-After": _RETRY_AFTER_S} if isinstance(error, errors.Unavailable) else None
    return said(error_to_json(error), status, headers)


def http_refusal(request: Request, error: Exception) -> Response:
    """For what starlette and the handlers refuse by an `HTTPException`; its detail says why."""
    assert isinstance(error, HTTPException)  # noqa: S101 - starlette hands over what it was told to
    fallback = ("http_error", "The request cannot be served", "Correct it and try again.")
    code, what, remedy = _REFUSALS.get(error.status_code, fallback)
    is_own = error.status_code in (406, 413, 415, 503) or (error.status_code == 404 and error.detail != "Not Found")
    why = error.detail if is_own else f"{request.method} {request.url.path}"
    return said({"error_code": code, "message": f"{what}: {why}", "remedy": remedy}, error.status_code, error.headers)


class Guard:
    """The outermost of ours: whatever nobody expected is answered, too."""

    def __init__(self, app: ASGIApp, runtime: Runtime) -> None:
        self._app = app
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:
            logger.info("%s %s: the client went away", scope.get("method"), scope["path"])
        except Exception:  # told to the client without a trace, to the log with it
            number = self._runtime.new_id()
            logger.exception("%s %s failed unexpectedly, id %s", scope.get("method"), scope["path"], number)
            if not has_begun:
                known = {"error_code": EvertideError.error_code, "message": "Something unexpected went wrong"}
                remedy = "Report this as a bug, with what the log says about the id."
                await said({**known, "remedy": remedy, "id": number}, 500)(scope, receive, send)
