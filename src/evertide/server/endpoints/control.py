"""`/v1/pause` and `/v1/resume`: the pipeline takes no new transaction in between.

It is this process that waits. It says so in its status, also to those who ask the storage; a restart ends it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evertide.media import JSON
from evertide.pipeline.pipeline import Pipeline
from evertide.server.http.answers import told
from evertide.server.http.endpoint import Endpoint, NoQuery

__all__ = ["Control"]


class Going(msgspec.Struct, frozen=True):
    state: str
    time: int


class Control:
    """The endpoints."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def endpoints(self) -> Iterator[Endpoint]:
        area = "control"
        pause = "Take no new transaction until resumed; one that is under way is completed."
        yield Endpoint("POST", "/v1/pause", area, pause, self._pause, {JSON: Going})
        yield Endpoint("POST", "/v1/resume", area, "Go on.", self._resume, {JSON: Going})

    async def _pause(self, _: Request, __: NoQuery) -> Response:
        await run_in_threadpool(self._pipeline.pause)
        return await self._told()

    async def _resume(self, _: Request, __: NoQuery) -> Response:
        await run_in_threadpool(self._pipeline.resume)
        return await self._told()

    async def _told(self) -> Response:
        status = await run_in_threadpool(self._pipeline.status)
        return told(Going(status.state, status.time))
