"""How the pipeline fares: `/v1/health`, `/v1/status`, `/v1/checkpoints`.

`/v1/health` is for load balancers and orchestrators, which look at the code only:

    200   active; also reconnecting, stalled or paused, with the reason: to start the process again would not help
    202   it answers, and some views are still computed
    503   failed, diverged, frozen: it takes nothing more; or storage does not answer

`/v1/status` is answered in any case: if storage does not answer, with what it said last.

For Kubernetes, `/v1/health/live` says whether the process gets on at all, without asking storage, and
`/v1/health/ready` whether it should be given requests: 200 or 503.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evertide.checkpoint.catalog import Checkpoints
from evertide.checkpoint.summary import CheckpointSummary, summarize_checkpoints
from evertide.errors import Unavailable
from evertide.json_values import to_json_value
from evertide.pgexpr.restriction import restriction_in
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.status.status import Status
from evertide.runtime import Runtime
from evertide.server.http.answers import JSON, said, told
from evertide.server.http.endpoint import Endpoint, NoQuery

__all__ = ["Looking"]

_HEALTH_LIMIT_S = 5.0
_OVER = {"failed", "diverged", "frozen", "stopped"}


class Health(msgspec.Struct, frozen=True):
    status: str
    why: str = ""
    remedy: str = ""
    views: list[str] = []


class StatusAnswer(msgspec.Struct, frozen=True):
    """The whole status, as `evertide status --json` says it."""

    state: str
    since_s: float
    why: str
    remedy: str
    time: int
    bound: int
    generation: int
    sources: list[Any]
    collections: list[Any]
    checkpoints: list[Any]
    problems: list[Any]
    sinks: list[Any]
    replicas: list[Any]
    stored_at_s: float | None
    """When storage last answered, if it does not now."""


class Checkpoint(msgspec.Struct, frozen=True):
    number: int
    time: int
    made_at_s: float


class KeptCheckpoints(msgspec.Struct, frozen=True):
    checkpoints: list[CheckpointSummary]


class Looking:
    """The endpoints."""

    def __init__(self, pipeline: Pipeline, runtime: Runtime, health_limit_s: float = _HEALTH_LIMIT_S) -> None:
        self._pipeline = pipeline
        self._health_limit_s = health_limit_s
        storage = pipeline.storage
        self._catalog = Checkpoints(storage.blob, storage.meta, runtime=runtime, settings=pipeline.settings)

    def endpoints(self) -> Iterator[Endpoint]:
        area = "status"
        over = {202: "Some views are still computed.", 503: "It takes nothing more."}
        yield Endpoint("GET", "/v1/health", area, "For load balancers.", self.health, {JSON: Health}, statuses=over)
        dead = {503: "No."}
        alive = "Whether the process gets on."
        yield Endpoint("GET", "/v1/health/live", area, alive, self._live, {JSON: Health}, statuses=dead)
        ready = "Whether to give it requests."
        yield Endpoint("GET", "/v1/health/ready", area, ready, self._ready, {JSON: Health}, statuses=dead)
        yield Endpoint("GET", "/v1/status", area, "The whole status.", self._status, {JSON: StatusAnswer})
        summary = "The checkpoints, the newest first."
        yield Endpoint("GET", "/v1/checkpoints", area, summary, self._checkpoints, {JSON: KeptCheckpoints})
        make = "Make a checkpoint, if anything happened since the last one."
        yield Endpoint("POST", "/v1/checkpoints", area, make, self._checkpoint, {JSON: Checkpoint}, refusals=(409,))

    async def health(self, request: Request, _: NoQuery) -> Response:
        return _health(await self._asked(), is_told=restriction_in(request.scope).is_free)

    async def _asked(self) -> Status:
        """If storage does not answer in time, what it said last."""
        with anyio.move_on_after(self._health_limit_s):
            return await anyio.to_thread.run_sync(self._pipeline.status, abandon_on_cancel=True)
        why = f"it did not answer within {self._health_limit_s:g} s"
        return self._pipeline.status(Unavailable(path=str(self._pipeline.storage.root), why=why))

    async def _live(self, _: Request, __: NoQuery) -> Response:
        beat = self._pipeline.liveness.report()
        return told(Health("alive" if beat.is_alive else "hangs", beat.why), 200 if beat.is_alive else 503)

    async def _ready(self, request: Request, _: NoQuery) -> Response:
        answer = _health(await self._asked(), is_told=restriction_in(request.scope).is_free)
        if answer.status_code == 202:  # it serves what it has
            answer.status_code = 200
        return answer

    async def _status(self, _: Request, __: NoQuery) -> Response:
        status = await self._asked()
        numbered = [{"number": number, "time": time} for number, time in status.checkpoints]
        return said({**to_json_value(status), "checkpoints": numbered})

    async def _checkpoint(self, _: Request, __: NoQuery) -> Response:
        entry = await run_in_threadpool(self._pipeline.checkpoint)
        return told(Checkpoint(entry.number, entry.time, entry.made_at_s))

    async def _checkpoints(self, _: Request, __: NoQuery) -> Response:
        return told(KeptCheckpoints(await run_in_threadpool(summarize_checkpoints, self._catalog)))


def _health(status: Status, *, is_told: bool) -> Response:
    """Where tokens are asked for, the reason is not told here: nobody has to say who he is. `/v1/status` has it."""
    hydrating = [one.name for one in status.collections if one.state == "hydrating"]
    if status.state == "running":
        known: dict[str, Any] = {"status": "hydrating", "views": hydrating} if hydrating else {"status": "active"}
        return said(known if is_told else {"status": known["status"]}, 202 if hydrating else 200)
    code = 503 if status.state in _OVER or status.stored_at_s is not None else 200
    if not is_told:
        return said({"status": status.state}, code)
    known = {"status": status.state, "why": status.why, "remedy": status.remedy, "since_s": status.since_s}
    return said({**known, "error_code": status.problems[0].error_code} if status.problems else known, code)
