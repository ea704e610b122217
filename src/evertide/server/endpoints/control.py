"""`/v1/pause`, `/v1/resume`: between them, the pipeline starts no transaction. `/v1/views/{name}/retry`: a failed view.

The pause belongs to this process: its status shows it, also when read from the storage, and a restart ends it. A retry
is answered when the view is computed; transactions continue meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evertide.media import JSON
from evertide.pipeline.pipeline import Pipeline
from evertide.server.http.answers import answer_struct
from evertide.server.http.endpoint import Endpoint, NoQuery


class ControlAnswer(msgspec.Struct, frozen=True):
    state: str
    time: int


class ControlEndpoints:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def endpoints(self) -> Iterator[Endpoint]:
        area = "control"
        pause = "Start no transaction until the pipeline is resumed; the current one is completed."
        yield Endpoint("POST", "/v1/pause", area, pause, self._pause, {JSON: ControlAnswer})
        yield Endpoint("POST", "/v1/resume", area, "Resume a paused pipeline.", self._resume, {JSON: ControlAnswer})
        retry = "Recompute a failed view now, and wait for the result."
        yield Endpoint("POST", "/v1/views/{name}/retry", area, retry, self._retry, {JSON: ControlAnswer})

    async def _pause(self, _: Request, __: NoQuery) -> Response:
        await run_in_threadpool(self._pipeline.pause)
        return await self._answer()

    async def _resume(self, _: Request, __: NoQuery) -> Response:
        await run_in_threadpool(self._pipeline.resume)
        return await self._answer()

    async def _retry(self, request: Request, _: NoQuery) -> Response:
        await run_in_threadpool(self._pipeline.retry, request.path_params["name"])
        return await self._answer()

    async def _answer(self) -> Response:
        status = await run_in_threadpool(self._pipeline.status)
        return answer_struct(ControlAnswer(status.state, status.time))
