"""Metrics for Prometheus and traces for OpenTelemetry.

`catalog` lists every metric; `metrics` counts the events that observers receive; `gauges` samples the current state at
a scrape; `request_times` times HTTP requests; `endpoint` serves the metrics; `traces` turns the same events into spans.
"""

from evertide.metrics.endpoint import metrics_route
from evertide.metrics.metrics import Metrics
from evertide.metrics.request_times import RequestTimer
from evertide.metrics.watch import watch_pipeline, watch_reader

__all__ = ["Metrics", "RequestTimer", "metrics_route", "watch_pipeline", "watch_reader"]
