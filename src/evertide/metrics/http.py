"""`/metrics`, and `RequestTimer`: ASGI middleware that times requests by route; paths would be unbounded labels."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evertide.metrics.metrics import Metrics
from evertide.observer import Observer, RequestEvent
from evertide.runtime import Runtime

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_SHAPE = "/v1/shape"
_CLIENT_DISCONNECTED = 499
"""Recorded if the client disconnected before the response began."""

PATH = "/metrics"


class RequestTimer:
    """The outermost middleware. A streamed response counts until its last byte."""

    def __init__(self, app: ASGIApp, observer: Observer, runtime: Runtime) -> None:
        self._app = app
        self._observer = observer
        self._clock = runtime.monotonic_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, code = self._clock(), _CLIENT_DISCONNECTED

        async def send_and_record(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_record)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", None) or "other"
            kind = _classify_shape_request(scope["query_string"]) if route == _SHAPE else ""
            traceparent = next((value for name, value in scope["headers"] if name == b"traceparent"), b"").decode(
                "latin-1"
            )
            self._observer.on_request(
                RequestEvent(method, route, code, began_s, self._clock() - began_s, kind, traceparent)
            )


def _classify_shape_request(query: bytes) -> str:
    params = parse_qs(query.decode("latin-1"), max_num_fields=None)
    is_live = params.get("live", [""])[-1] == "true"
    if is_live and "true" in (params.get("live_sse", [""])[-1], params.get("experimental_live_sse", [""])[-1]):
        return "stream"
    if is_live:
        return "live"
    return "snapshot" if params.get("offset", [""])[-1] == "-1" else "log"


def make_metrics_route(metrics: Metrics) -> Route:
    async def answer(request: Request) -> Response:
        content, kind = await run_in_threadpool(render_metrics, metrics.registry, request.headers.get("accept", ""))
        return Response(content, headers={"content-type": kind, "cache-control": "no-store"})

    return Route(PATH, answer, methods=["GET"])


def render_metrics(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """The body and its content type."""
    encode, kind = choose_encoder(accept)
    return encode(_WithoutCreatedSamples(registry)), kind


class _WithoutCreatedSamples(Collector):
    """Drops the `_created` samples: they are not used, and would double the number of series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
