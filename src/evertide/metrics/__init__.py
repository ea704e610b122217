"""Metrics for Prometheus and traces for OpenTelemetry.

catalog        every metric: name, kind, labels, description
metrics        counts the events that an observer receives
tallies        the counters and histograms for it
request_times  times HTTP requests
gauges         samples the current state at a scrape
samples        the values that a scrape samples
watch          attaches metrics to a pipeline or a storage
endpoint       `/metrics`
traces         turns events into OpenTelemetry spans
"""

from evertide.metrics.endpoint import make_metrics_route
from evertide.metrics.metrics import Metrics
from evertide.metrics.request_times import RequestTimer
from evertide.metrics.watch import watch_pipeline, watch_reader

__all__ = ["Metrics", "RequestTimer", "make_metrics_route", "watch_pipeline", "watch_reader"]
