"""What a process does and how it fares, for Prometheus and OpenTelemetry.

`catalog` names every metric there is; `metrics` counts what observers are told; `standing` says at a scrape what is so;
`measured` times requests; `endpoint` serves it all; `traces` makes spans of the same.
"""

from evertide.metrics.endpoint import metrics_route
from evertide.metrics.metrics import Metrics
from evertide.metrics.request_times import Measured
from evertide.metrics.watch import watch_pipeline, watch_reader

__all__ = ["Measured", "Metrics", "metrics_route", "watch_pipeline", "watch_reader"]
