"""Serve `/metrics` for Prometheus, in its text format, or as OpenMetrics if the client accepts it."""

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

__all__ = ["PATH", "make_metrics_route", "render_metrics"]

PATH = "/metrics"


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
