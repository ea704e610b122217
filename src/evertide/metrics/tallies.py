"""`Counts` and `Times`: counters and histograms that cost a fraction of a microsecond per addition.

They hold plain numbers under one lock, which the owner takes once for all additions of an event, and are converted to
Prometheus families only at a scrape. The client library's own classes take a lock and a lookup per addition, and a
transaction makes about thirty.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

from evertide.metrics.catalog import BY_NAME

__all__ = ["Counts", "Labels", "Times"]

Labels = tuple[str, ...]


class Counts:
    """A counter per combination of labels. The caller of `add` holds the owner's lock."""

    def __init__(self, name: str) -> None:
        self._metric = BY_NAME[name]
        self._values: dict[Labels, float] = {}

    def add(self, amount: float, *labels: str) -> None:
        self._values[labels] = self._values.get(labels, 0) + amount

    def make_family(self) -> CounterMetricFamily:
        family = CounterMetricFamily(self._metric.name, self._metric.description, labels=self._metric.labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class Times:
    """A histogram of seconds per combination of labels. The caller of `add` holds the owner's lock."""

    def __init__(self, name: str, bounds_s: Sequence[float]) -> None:
        self._metric = BY_NAME[name]
        self._bounds_s = tuple(bounds_s)
        self._names = [*(str(float(bound)) for bound in bounds_s), "+Inf"]
        self._values: dict[Labels, tuple[list[int], list[float]]] = {}

    def add(self, seconds: float, *labels: str) -> None:
        histogram = self._values.get(labels)
        if histogram is None:
            histogram = self._values[labels] = ([0] * len(self._names), [0.0])
        histogram[0][bisect_left(self._bounds_s, seconds)] += 1
        histogram[1][0] += seconds

    def make_family(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self._metric.name, self._metric.description, labels=self._metric.labels)
        for labels, (counts, [total]) in self._values.items():
            buckets, below = [], 0
            for name, count in zip(self._names, counts, strict=True):
                below += count
                buckets.append((name, float(below)))
            family.add_metric(labels, buckets, total)
        return family
