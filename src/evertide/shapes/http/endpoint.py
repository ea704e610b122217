"""`ShapeEndpoint`: the ASGI app for `/v1/shape`, which dispatches by method and turns errors into answers.

1. `evertide.server.access` authenticates the request before. The token's restriction is in the request's state and is
   part of the shape request from here on.
2. The answer to a request with a token in a header is private: shared caches, which only know the URL, must not store
   it.
3. A client error is 4xx with a reason. If the storage does not answer, or lacks a part, the answer is 503 with a time
   to retry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from evertide.errors import (
    Conflict,
    Damaged,
    EvertideError,
    Forbidden,
    LeaseLost,
    NotAllowedNow,
    OutcomeUnknown,
    Unavailable,
)
from evertide.pgexpr.restriction import read_restriction
from evertide.shapes.http.answers import answer_options, answer_refusal, make_cors_headers
from evertide.shapes.http.exchange import Admission, Exchange
from evertide.shapes.log.registry import Shapes
from evertide.shapes.log.shape_definition import ShapeDefinition
from evertide.shapes.protocol.requests import (
    Refusal,
    ShapeRequest,
    parse_request,
    parse_subset_body,
    refuse_error,
    refuse_invalid,
)

logger = logging.getLogger(__name__)

_METHODS = ("GET", "HEAD", "POST", "DELETE")
_TRANSIENT = (Conflict, Damaged, LeaseLost, NotAllowedNow, OutcomeUnknown, Unavailable)
"""Errors that may pass, a missing part included: clients keep their offset and retry."""


class ShapeEndpoint:
    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._options = shapes.options
        self._admission = Admission(shapes.options, shapes.runtime)
        self._exchange = Exchange(shapes, self._admission)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        origin = request.headers.get("origin")
        self._shapes.serve_in(asyncio.get_running_loop())
        try:
            answer = await self._answer(request)
            answer.headers.update(make_cors_headers(origin))
        except ClientDisconnect:
            return
        except Refusal as refusal:
            answer = answer_refusal(refusal, origin, request.method)
        except Forbidden as error:
            logger.info("%s %s: %s", request.method, request.url.path, error)
            answer = answer_refusal(refuse_error(error, 403, read_restriction(scope)), origin, request.method)
        except EvertideError as error:
            status = 503 if isinstance(error, _TRANSIENT) else 500
            level = logging.INFO if status == 503 else logging.WARNING  # the feed logs the outage, once
            logger.log(level, "%s %s: %s", request.method, request.url.path, error)
            answer = answer_refusal(refuse_error(error, status, read_restriction(scope)), origin, request.method)
        if "authorization" in request.headers:
            _make_private(answer)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            requested_headers = request.headers.get("access-control-request-headers", "")
            return answer_options(requested_headers)
        if request.method not in _METHODS:
            raise Refusal(404, {"message": "Not found"})
        query = request.query_params
        if request.method == "DELETE":
            return await self._handle_delete(query)
        shape_request = replace(parse_request(query), restriction=read_restriction(request.scope))
        if request.method == "POST" and shape_request.subset is None:
            shape_request = await self._add_body(request, shape_request)
        with self._admission.admit(is_new_client=shape_request.begins):
            return await self._exchange.answer(request, shape_request)

    async def _add_body(self, request: Request, shape_request: ShapeRequest) -> ShapeRequest:
        content = b""
        async for block in request.stream():
            content += block
            if len(content) > self._options.body_bytes_max:
                raise Refusal(413, {"error": "Request body too large"}, {"connection": "close"})
        subset = parse_subset_body(content)
        return shape_request if subset is None else replace(shape_request, subset=subset)

    async def _handle_delete(self, query: Mapping[str, str]) -> Response:
        if not self._options.deletion:
            raise Refusal(405, {"message": "DELETE not allowed"})
        shape_request = parse_request(query, needs_offset=False)
        definition = await self._exchange.find_definition(shape_request) if shape_request.table else None
        await self._exchange.run_in_thread(lambda: self._delete(definition, shape_request.handle))
        return Response(status_code=202, headers={"cache-control": "no-cache"})

    def _delete(self, definition: ShapeDefinition | None, handle: str) -> None:
        records = self._shapes.records
        record = records.find(handle) if handle else None
        if definition is not None and not handle:
            record = records.find_by_definition(definition)
        if record is None:
            raise Refusal(404, {"message": "No existing shape found"})
        if definition is not None and record.definition != definition.canonical:
            raise refuse_invalid({"handle": ["belongs to a shape with another definition"]})
        self._shapes.end(record.handle, "a client ended it")


def _make_private(answer: Response) -> None:
    kept = answer.headers.get("cache-control", "")
    answer.headers["cache-control"] = kept.replace("public", "private") or "no-store"
    answer.headers["vary"] = "Origin, Authorization"
