"""How the pipeline fares: `/v1/health`, `/v1/status`, `/v1/checkpoints`.

Health is for load balancers and orchestrators, which look at the code only:

    200   active; also reconnecting, stalled or paused, with the reason: to start the process again would not help
    202   it answers, and some views are still computed
    503   failed, diverged, frozen: it takes nothing more; or storage does not answer in time
"""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evertide.errors import Unavailable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.status import Status
from evertide.plain import plain
from evertide.server.answers import said

__all__ = ["Looking"]

_HEALTH_LIMIT_S = 5.0
_OVER = {"failed", "diverged", "frozen", "stopped"}


class Looking:
    def __init__(self, pipeline: Pipeline, health_limit_s: float = _HEALTH_LIMIT_S) -> None:
        self._pipeline = pipeline
        self._health_limit_s = health_limit_s

    async def health(self, _: Request) -> Response:
        with anyio.move_on_after(self._health_limit_s):
            status = await anyio.to_thread.run_sync(self._pipeline.status, abandon_on_cancel=True)
            return _health(status)
        why = f"it did not answer within {self._health_limit_s:g} s"
        raise Unavailable(path=str(self._pipeline.storage.root), why=why)

    async def status(self, _: Request) -> Response:
        status = await run_in_threadpool(self._pipeline.status)
        return said({**plain(status), "checkpoints": _numbered(status)})

    async def checkpoints(self, request: Request) -> Response:
        if request.method == "POST":
            entry = await run_in_threadpool(self._pipeline.checkpoint)
            return said({"number": entry.number, "time": entry.time, "made_at_s": entry.made_at_s})
        return said({"checkpoints": _numbered(await run_in_threadpool(self._pipeline.status))})


def _health(status: Status) -> Response:
    hydrating = [one.name for one in status.collections if one.state == "hydrating"]
    if status.state == "running":
        told: dict[str, Any] = {"status": "hydrating", "views": hydrating} if hydrating else {"status": "active"}
        return said(told, 202 if hydrating else 200)
    code = 503 if status.state in _OVER else 200
    told = {"status": status.state, "why": status.why, "remedy": status.remedy, "since_s": status.since_s}
    return said({**told, "error_code": status.problems[0].error_code} if status.problems else told, code)


def _numbered(status: Status) -> list[dict[str, int]]:
    return [{"number": number, "time": time} for number, time in status.checkpoints]
