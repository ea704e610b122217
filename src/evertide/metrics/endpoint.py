"""`/metrics`: what Prometheus scrapes, in its own format, or as OpenMetrics if it is asked for that."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from evertide.metrics.metrics import Metrics

__all__ = ["PATH", "metrics_route", "scraped"]

PATH = "/metrics"


def metrics_route(metrics: Metrics) -> Route:
    async def answer(request: Request) -> Response:
        content, kind = await run_in_threadpool(scraped, metrics.registry, request.headers.get("accept", ""))
        return Response(content, headers={"content-type": kind, "cache-control": "no-store"})

    return Route(PATH, answer, methods=["GET"])


def scraped(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """The text, and its type."""
    encode, kind = choose_encoder(accept)
    return encode(_Lean(registry)), kind


class _Lean(Collector):
    """Without the moments at which series began: nobody asks for them, and they are as many again."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
