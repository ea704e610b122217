"""What a server says until there is a pipeline behind it: that it is being opened.

    /v1/health/live   200: the process gets on, and to start it again would only make it begin anew; 503 if it hangs
    all others        503 with Retry-After, `"status": "starting"` for those who look at health, and as an error

Opening may take a while: Spark, the newest checkpoint, the transactions since. Nobody is asked for a token meanwhile:
nothing is told but this.
"""

from __future__ import annotations

import anyio.to_thread
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from evertide.pipeline.replicas.liveness import find_opening_hang
from evertide.server.http.answers import said

__all__ = ["opening"]

_LIVE = "/v1/health/live"
_WHY = "the pipeline is being opened"
_STARTING = {
    "status": "starting",
    "error_code": "starting",
    "message": f"It cannot be answered yet: {_WHY}",
    "remedy": "Come again, after the seconds that Retry-After names.",
}
_HEADERS = {"Retry-After": "2", "Cache-Control": "no-store"}


async def opening(scope: Scope, receive: Receive, send: Send) -> None:
    """An app."""
    if scope["type"] != "http":
        return
    if Request(scope).url.path == _LIVE and scope["method"] in ("GET", "HEAD"):
        hang = await anyio.to_thread.run_sync(find_opening_hang)  # it may ask Spark
        known: dict[str, object] = {
            "status": "hangs" if hang else "alive",
            "why": hang or _WHY,
            "remedy": "",
            "views": [],
        }
        answer = said(known, 503 if hang else 200, _HEADERS)
    else:
        answer = said(_STARTING, 503, _HEADERS)
    await answer(scope, receive, send)
