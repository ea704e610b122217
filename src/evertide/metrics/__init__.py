"""Metrics for Prometheus and traces for OpenTelemetry.

catalog  every metric: name, kind, labels, description
metrics  counts the events that an observer receives
gauges   samples the current state of a pipeline or a storage at a scrape
samples  the values that a scrape samples
http     `/metrics`, and the durations of HTTP requests
traces   turns events into OpenTelemetry spans
"""

from evertide.metrics.gauges import watch_pipeline, watch_reader
from evertide.metrics.http import RequestTimer, make_metrics_route
from evertide.metrics.metrics import Metrics

__all__ = ["Metrics", "RequestTimer", "make_metrics_route", "watch_pipeline", "watch_reader"]
