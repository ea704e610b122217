"""`Metrics`: an observer that counts events in its own Prometheus registry.

Counting a transaction costs about ten microseconds. Labels are names declared by the script, so there are few
(`evertide.metrics.catalog`). Values that are only needed at a scrape are not counted but sampled then, by a
`StatusCollector`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from evertide.metrics.catalog import BY_NAME
from evertide.observer import (
    CheckpointEvent,
    DeliveryEvent,
    FailureEvent,
    Observer,
    RequestEvent,
    TransactionEvent,
    TransactionOrigin,
)

_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_STORAGE_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)

Labels = tuple[str, ...]


class Metrics(Observer, Collector):
    """Safe to call from any thread. One per process and pipeline, with its own registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._lock = threading.Lock()
        self._tallies: list[Counts | Times] = []
        self._transactions = self._add_counts("transactions")
        self._transaction_s = self._add_times("transaction")
        self._phase_s = self._add_times("transaction_phase")
        self._source_rows = self._add_counts("source_rows")
        self._changes = self._add_counts("changes")
        self._changes_bytes = self._add_counts("changes_bytes")
        self._failures = self._add_counts("faults")
        self._sink_rows = self._add_counts("sink_rows")
        self._sink_s = self._add_times("sink_delivery")
        self._checkpoint_s = self._add_times("checkpoint")
        self._checkpoint_bytes = self._add_counts("checkpoint_files_bytes")
        self._storage_s = self._add_times("storage", _STORAGE_BOUNDS_S)
        self._storage_bytes = self._add_counts("storage_bytes")
        self._storage_failures = self._add_counts("storage_faults")
        self._requests = self._add_counts("http_requests")
        self._request_s = self._add_times("http_request")
        self._shape_requests = self._add_counts("shape_requests")
        self._shape_s = self._add_times("shape_request")
        self.registry.register(self)

    def watch(self, collector: Collector) -> None:
        """Add a collector that is sampled at each scrape."""
        self.registry.register(collector)

    # Events

    def on_transaction(self, event: TransactionEvent) -> None:
        phases: dict[str, float] = {}
        for phase, _, took_s in event.phases:  # a phase that occurred several times counts once
            phases[phase] = phases.get(phase, 0.0) + took_s
        with self._lock:
            self._transactions.add(1, event.how)
            for phase, took_s in phases.items():
                self._phase_s.add(took_s, phase)
            if event.how is not TransactionOrigin.COMMITTED:  # otherwise every replica would count the same rows
                return
            self._transaction_s.add(event.took_s)
            for source, rows in event.sources.items():
                if rows:
                    self._source_rows.add(rows, source)
            for collection, written in event.collections.items():
                if written.rows:
                    self._changes.add(written.rows, collection)
                    self._changes_bytes.add(written.bytes, collection)

    def on_delivery(self, event: DeliveryEvent) -> None:
        with self._lock:
            self._sink_rows.add(event.rows, event.sink)
            self._sink_s.add(event.took_s, event.sink)

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        with self._lock:
            self._checkpoint_s.add(event.took_s)
            self._checkpoint_bytes.add(event.bytes)

    def on_storage_call(self, call: str, took_s: float, size: int, error_code: str) -> None:
        with self._lock:
            self._storage_s.add(took_s, call)
            if size:
                self._storage_bytes.add(size, call)
            if error_code:
                self._storage_failures.add(1, call, error_code)

    def on_failure(self, event: FailureEvent) -> None:
        with self._lock:
            self._failures.add(1, event.part, event.name, event.error_code)

    def on_request(self, event: RequestEvent) -> None:
        code = str(event.code)
        with self._lock:
            self._requests.add(1, event.method, event.route, code)
            if event.kind:
                self._shape_requests.add(1, event.kind, code)
                self._shape_s.add(event.took_s, event.kind)
            else:
                self._request_s.add(event.took_s, event.method, event.route)

    # Scrapes

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            families = [tally.make_family() for tally in self._tallies]
        yield from families

    def _add_counts(self, name: str) -> Counts:
        self._tallies.append(counts := Counts(f"evertide_{name}_total"))
        return counts

    def _add_times(self, name: str, bounds_s: tuple[float, ...] = _BOUNDS_S) -> Times:
        self._tallies.append(times := Times(f"evertide_{name}_seconds", bounds_s))
        return times


class Counts:
    """A counter per combination of labels. The caller of `add` holds the owner's lock.

    This class and `Times` hold plain numbers, so that an addition costs a fraction of a microsecond, and are converted
    to Prometheus families only at a scrape. The client library's own classes take a lock and a lookup per addition, and
    a transaction makes about thirty.
    """

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
