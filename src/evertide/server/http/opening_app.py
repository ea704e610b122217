"""The app that answers while the pipeline opens.

    /v1/health/live   200: the process makes progress, and a restart would only delay it; 503 if it hangs
    all others        503 with Retry-After, and `"status": "starting"` for health checks

Opening may take a while: it starts Spark, loads the newest checkpoint and replays the transactions after it. Requests
need no token meanwhile, because the answers contain nothing else.
"""

from __future__ import annotations

import anyio.to_thread
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from evertide.pipeline.replicas.liveness import find_opening_hang
from evertide.server.http.answers import answer_json

__all__ = ["answer_while_opening"]

_LIVE = "/v1/health/live"
_WHY = "the pipeline is opening"
_STARTING = {
    "status": "starting",
    "error_code": "starting",
    "message": f"The server cannot answer yet: {_WHY}",
    "remedy": "Retry after the number of seconds in the Retry-After header.",
}
_HEADERS = {"Retry-After": "2", "Cache-Control": "no-store"}


async def answer_while_opening(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI app."""
    if scope["type"] != "http":
        return
    if Request(scope).url.path == _LIVE and scope["method"] in ("GET", "HEAD"):
        hang = await anyio.to_thread.run_sync(find_opening_hang)  # may call Spark
        content: dict[str, object] = {
            "status": "hangs" if hang else "alive",
            "why": hang or _WHY,
            "remedy": "",
            "views": [],
        }
        answer = answer_json(content, 503 if hang else 200, _HEADERS)
    else:
        answer = answer_json(_STARTING, 503, _HEADERS)
    await answer(scope, receive, send)
