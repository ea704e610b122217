"""`/v1/health`, `/v1/status`, `/v1/checkpoints` and `/v1/logs`.

`/v1/health` is for load balancers and orchestrators, which read only the status code:

    200   active; also reconnecting, stalled or paused, with the reason: a restart would not help
    202   the server answers, but some views are still hydrating
    503   failed, diverged or frozen: the pipeline has stopped; or storage does not answer

`/v1/status` always answers: if storage does not, with the last known status.

For Kubernetes, `/v1/health/live` reports whether the process makes progress, without reading storage, and
`/v1/health/ready` whether it should receive requests: 200 or 503.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evertide.checkpoint.catalog import Checkpoints, CheckpointSummary
from evertide.errors import Unavailable
from evertide.json_values import to_json_value
from evertide.logs import LogLine, Ring
from evertide.pgexpr.restriction import read_restriction
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.status.status import Status
from evertide.problem import ComponentState
from evertide.runtime import Runtime
from evertide.server.http.answers import JSON, answer_json, answer_struct
from evertide.server.http.endpoint import Endpoint, NoQuery
from evertide.types import Generation, Time

_HEALTH_LIMIT_S = 5.0
_STOPPED = {ComponentState.FAILED, ComponentState.DIVERGED, ComponentState.FROZEN, ComponentState.STOPPED}


class Health(msgspec.Struct, frozen=True):
    status: str
    why: str = ""
    remedy: str = ""
    views: list[str] = []


class StatusAnswer(msgspec.Struct, frozen=True):
    """The output of `evertide status --json`."""

    state: str
    since_s: float
    why: str
    remedy: str
    time: Time
    bound: int
    generation: Generation
    sources: list[Any]
    collections: list[Any]
    checkpoints: list[Any]
    problems: list[Any]
    sinks: list[Any]
    replicas: list[Any]
    stored_at_s: float | None
    """When storage last answered; null if it answers now."""


class Checkpoint(msgspec.Struct, frozen=True):
    number: int
    time: int
    made_at_s: float


class CheckpointsAnswer(msgspec.Struct, frozen=True):
    checkpoints: list[CheckpointSummary]


class StatusEndpoints:
    def __init__(self, pipeline: Pipeline, runtime: Runtime, health_limit_s: float = _HEALTH_LIMIT_S) -> None:
        self._pipeline = pipeline
        self._health_limit_s = health_limit_s
        storage = pipeline.storage
        self._catalog = Checkpoints(storage.blob, storage.meta, runtime=runtime, settings=pipeline.settings)

    def endpoints(self) -> Iterator[Endpoint]:
        area = "status"
        codes = {202: "Some views are still hydrating.", 503: "The pipeline has stopped."}
        yield Endpoint("GET", "/v1/health", area, "For load balancers.", self.health, {JSON: Health}, statuses=codes)
        alive, hangs = "Whether the process makes progress.", {503: "The process hangs."}
        yield Endpoint("GET", "/v1/health/live", area, alive, self._live, {JSON: Health}, statuses=hangs)
        ready, unready = "Whether the process should receive requests.", {503: "The pipeline has stopped."}
        yield Endpoint("GET", "/v1/health/ready", area, ready, self._ready, {JSON: Health}, statuses=unready)
        yield Endpoint("GET", "/v1/status", area, "The whole status.", self._status, {JSON: StatusAnswer})
        kept = "The checkpoints, the newest first."
        yield Endpoint("GET", "/v1/checkpoints", area, kept, self._checkpoints, {JSON: CheckpointsAnswer})
        make = "Make a checkpoint, if there were transactions since the last one."
        yield Endpoint("POST", "/v1/checkpoints", area, make, self._checkpoint, {JSON: Checkpoint}, refusals=(409,))

    async def health(self, request: Request, _: NoQuery) -> Response:
        return _answer_health(await self._read_status(), has_reason=read_restriction(request.scope).is_unrestricted)

    async def _read_status(self) -> Status:
        """The last known status if storage does not answer in time."""
        with anyio.move_on_after(self._health_limit_s):
            return await anyio.to_thread.run_sync(self._pipeline.status, abandon_on_cancel=True)
        why = f"no answer within {self._health_limit_s:g} s"
        return self._pipeline.status(Unavailable(path=str(self._pipeline.storage.root), why=why))

    async def _live(self, _: Request, __: NoQuery) -> Response:
        report = self._pipeline.liveness.report()
        return answer_struct(
            Health("alive" if report.is_alive else "hangs", report.why), 200 if report.is_alive else 503
        )

    async def _ready(self, request: Request, _: NoQuery) -> Response:
        answer = _answer_health(await self._read_status(), has_reason=read_restriction(request.scope).is_unrestricted)
        if answer.status_code == 202:  # the other views can be read
            answer.status_code = 200
        return answer

    async def _status(self, _: Request, __: NoQuery) -> Response:
        status = await self._read_status()
        numbered = [{"number": number, "time": time} for number, time in status.checkpoints]
        return answer_json({**to_json_value(status), "checkpoints": numbered})

    async def _checkpoint(self, _: Request, __: NoQuery) -> Response:
        entry = await run_in_threadpool(self._pipeline.checkpoint)
        return answer_struct(Checkpoint(entry.number, entry.time, entry.made_at_s))

    async def _checkpoints(self, _: Request, __: NoQuery) -> Response:
        return answer_struct(CheckpointsAnswer(await run_in_threadpool(self._catalog.summarize)))


def _answer_health(status: Status, *, has_reason: bool) -> Response:
    """If the server has tokens, the answer has no reason, because health needs no token. `/v1/status` has it."""
    hydrating = [one.name for one in status.collections if one.state == ComponentState.HYDRATING]
    if status.state == ComponentState.RUNNING:
        known: dict[str, Any] = {"status": "hydrating", "views": hydrating} if hydrating else {"status": "active"}
        return answer_json(known if has_reason else {"status": known["status"]}, 202 if hydrating else 200)
    code = 503 if status.state in _STOPPED or status.stored_at_s is not None else 200
    if not has_reason:
        return answer_json({"status": status.state}, code)
    known = {"status": status.state, "why": status.why, "remedy": status.remedy, "since_s": status.since_s}
    return answer_json({**known, "error_code": status.problems[0].error_code} if status.problems else known, code)


class LogsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=2000, description="The largest number of lines.")] = 100
    level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"], msgspec.Meta(description="The lowest level.")
    ] = "info"


class LogLines(msgspec.Struct, frozen=True):
    logs: list[LogLine]


class LogEndpoints:
    """The last log lines of this process, as records (`evertide.logs`). They contain no secrets."""

    def __init__(self, ring: Ring | None) -> None:
        self._ring = ring

    def endpoints(self) -> Iterator[Endpoint]:
        last = "The last log lines of this process, the newest first."
        yield Endpoint("GET", "/v1/logs", "status", last, self._logs, {JSON: LogLines}, LogsQuery)

    async def _logs(self, _: Request, query: LogsQuery) -> Response:
        return answer_struct(LogLines([] if self._ring is None else self._ring.lines(query.limit, query.level)))
