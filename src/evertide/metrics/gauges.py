"""`StatusCollector`: samples the current state of the pipeline and the process at each scrape.

1. The storage is sampled at most once per second, however many clients scrape, and in a separate thread: a scrape waits
   for it at most `_WAIT_S`. If no new sample arrives, the scrape serves the last one with its age, and `evertide_up`
   is 0. If the storage does not answer, `evertide_up` is 0 as well; values from storage are the last known ones, and
   those from the memory of the process are current.
2. Values in memory (liveness, shapes) are always current.
3. A scrape never fails, whatever the storage does, and takes no lock that a transaction needs.
"""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evertide import __version__
from evertide.errors import EvertideError
from evertide.metrics.catalog import ALL
from evertide.metrics.metrics import Metrics
from evertide.metrics.samples import (
    Sample,
    ShapesUsage,
    TakeSample,
    make_pipeline_sampler,
    make_reader_sampler,
    measure_shapes,
)
from evertide.pipeline.reading.reader import StorageReader
from evertide.pipeline.replicas.liveness import LivenessReport
from evertide.pipeline.sinks.sink_status import SinkStatus
from evertide.pipeline.status.status import CollectionStatus, SourceStatus, Status
from evertide.problem import Problem
from evertide.runtime import Runtime, SystemRuntime
from evertide.shapes.service import ShapeService
from evertide.threads.watched import WatchedThread

logger = logging.getLogger(__name__)

_EVERY_S = 1.0
_WAIT_S = 1.0

if TYPE_CHECKING:  # pyspark, not needed to serve shapes
    from evertide.pipeline.pipeline import Pipeline


class SampleCache:
    """The last sample, at most a second old while the storage answers."""

    def __init__(
        self, take_sample: TakeSample, runtime: Runtime, every_s: float = _EVERY_S, wait_s: float = _WAIT_S
    ) -> None:
        self._take_sample = take_sample
        self._clock = runtime.monotonic_s
        self._every_s = every_s
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._running: threading.Event | None = None
        self._latest: tuple[float, Sample] | None = None
        self._is_up = False
        self._started_s = -every_s
        self._thread: WatchedThread | None = None

    def list_thread_problems(self) -> list[Problem]:
        """The error that ended the last sampling thread, if any."""
        return [] if self._thread is None else self._thread.list_thread_problems()

    def latest(self) -> tuple[Sample | None, float, bool]:
        """The last sample, its age, and whether the storage answers now."""
        done = self._start_sample()
        is_late = done is not None and not done.wait(self._wait_s)
        sample = self._latest
        age_s = 0.0 if sample is None else self._clock() - sample[0]
        return None if sample is None else sample[1], age_s, self._is_up and not is_late

    def _start_sample(self) -> threading.Event | None:
        """Start a sampling thread if one is due. Returns the event of the running one, if any."""
        with self._lock:
            if self._running is None and self._clock() - self._started_s >= self._every_s:
                self._started_s, self._running = self._clock(), threading.Event()
                self._thread = WatchedThread("evertide-metrics", self._run, self._running)
                self._thread.start()
            return self._running

    def _run(self, done: threading.Event) -> None:
        try:
            sample = self._take_sample()
            self._is_up = sample.has_storage
            read_s = self._clock() if self._is_up or self._latest is None else self._latest[0]
            self._latest = read_s, sample
        except EvertideError as error:
            self._is_up = False
            logger.info("storage did not answer, serving metrics from the last sample: %s", error)
        except BaseException:  # ends the thread, which logs it
            self._is_up = False
            raise
        finally:
            with self._lock:
                self._running = None
            done.set()


class _Families:
    """The metric families of one scrape. Every sampled metric has a family, even without values."""

    def __init__(self) -> None:
        self.by_name: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for metric in ALL:
            if metric.is_sampled:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                self.by_name[metric.name] = kind(metric.name, metric.description, labels=metric.labels)

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """None: unknown, so no value is added."""
        if value is not None:
            self.by_name[f"evertide_{name}"].add_metric(labels, value)


class StatusCollector(Collector):
    def __init__(
        self,
        take_sample: TakeSample,
        runtime: Runtime,
        *,
        liveness: Callable[[], LivenessReport] | None = None,
        shapes: Callable[[], ShapesUsage] | None = None,
        wait_s: float = _WAIT_S,
    ) -> None:
        self._cache = SampleCache(take_sample, runtime, wait_s=wait_s)
        self._liveness = liveness
        self._shapes = shapes

    def list_thread_problems(self) -> list[Problem]:
        return self._cache.list_thread_problems()

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        families = _Families()
        sample, age_s, is_up = self._cache.latest()
        families.add("up", is_up)
        families.add("status_age_seconds", age_s)
        spark = sample.driver.version if sample is not None and sample.driver is not None else ""
        families.add("build_info", 1, __version__, platform.python_version(), spark)
        if self._liveness is not None:
            report = self._liveness()
            families.add("alive", report.is_alive)
            families.add("doing_seconds", report.since_s, report.phase)
        if self._shapes is not None:
            _add_shapes(families, self._shapes())
        if sample is not None:
            _add_process(families, sample)
            _add_pipeline(families, sample.status)
        yield from families.by_name.values()


def _add_shapes(families: _Families, use: ShapesUsage) -> None:
    families.add("shapes", use.shapes)
    families.add("shape_clients", use.clients)
    families.add("shape_log_bytes", use.log_bytes)
    families.add("shape_log_entries_total", use.log_entries)
    families.add("shape_feeds_standing", use.failed_feeds)


def _add_process(families: _Families, sample: Sample) -> None:
    families.add("leads", sample.leads)
    families.add("leases", sample.leases)
    families.add("leases_lost_total", sample.leases_lost)
    sizes: dict[str, tuple[int, int, int]] = {}
    for one in sample.arrangements:  # views added later may have an arrangement of the same name
        rows, size, parts = sizes.get(one.name, (0, 0, 0))
        sizes[one.name] = (rows + one.rows, size + one.bytes, parts + one.parts)
    for name, (rows, size, parts) in sizes.items():
        families.add("arrangement_rows", rows, name)
        families.add("arrangement_bytes", size, name)
        families.add("arrangement_parts", parts, name)
    if sample.driver is not None:
        families.add("spark_jobs_total", sample.driver.jobs)
        for (area, kind), size in sample.driver.memory.items():
            families.add("jvm_memory_bytes", size, area, kind)


def _add_pipeline(families: _Families, status: Status) -> None:
    families.add("state", 1, status.state)
    families.add("time", status.time)
    families.add("bound_time", status.bound)
    families.add("flushed_time", status.flushed)
    families.add("generation", status.generation)
    families.add("checkpoints", len(status.checkpoints))
    families.add("checkpoint_time", max((time for _, time in status.checkpoints), default=0))
    problems = {("pipeline", "", problem.error_code) for problem in status.problems if problem.error_code}
    for collection in status.collections:
        _add_collection(families, collection)
    for source in status.sources:
        _add_source(families, source)
        problems |= {("source", source.name, problem.error_code) for problem in source.problems if problem.error_code}
    for sink in status.sinks:
        _add_sink(families, sink)
        if sink.problem is not None and sink.problem.error_code:
            problems.add(("sink", sink.name, sink.problem.error_code))
    for part, name, error_code in sorted(problems):
        families.add("problem", 1, part, name, error_code)
    _add_replicas(families, status)


def _add_collection(families: _Families, one: CollectionStatus) -> None:
    families.add("collection_upper", one.upper, one.name, one.kind)
    families.add("collection_since", one.since, one.name, one.kind)
    families.add("collection_changes", one.rows, one.name, one.kind)
    families.add("collection_bytes", one.bytes, one.name, one.kind)
    families.add("collection_parts", one.parts, one.name, one.kind)
    families.add("collection_state", 1, one.name, one.state)


def _add_source(families: _Families, one: SourceStatus) -> None:
    families.add("source_state", 1, one.name, one.state or "unknown")
    if one.lag is not None:
        families.add("source_lag_bytes", one.lag.bytes, one.name)
        families.add("source_lag_rows", one.lag.rows, one.name)
        families.add("source_lag_files", one.lag.files, one.name)
        families.add("source_lag_seconds", one.lag.seconds, one.name)


def _add_sink(families: _Families, one: SinkStatus) -> None:
    families.add("sink_state", 1, one.name, one.state or "unknown")
    families.add("sink_behind", one.behind, one.name)


def _add_replicas(families: _Families, status: Status) -> None:
    """Of several replicas on one host, report the one furthest behind: process ids would be unbounded labels."""
    roles: dict[str, int] = {}
    behind: dict[tuple[str, str], int] = {}
    for one in status.replicas:
        roles[one.role] = roles.get(one.role, 0) + 1
        behind[one.host, one.role] = max(one.behind, behind.get((one.host, one.role), 0))
    for role, count in roles.items():
        families.add("replicas", count, role)
    for (host, role), transactions in behind.items():
        families.add("replica_behind", transactions, host, role)


def watch_pipeline(
    metrics: Metrics, pipeline: Pipeline, shapes: ShapeService | None = None, *, runtime: Runtime | None = None
) -> None:
    """Sample an open pipeline. Its events are counted only if `metrics` is also its observer."""
    measure = None if shapes is None else lambda: measure_shapes(shapes.shapes)
    collector = StatusCollector(
        make_pipeline_sampler(pipeline), runtime or SystemRuntime(), liveness=pipeline.liveness.report, shapes=measure
    )
    metrics.watch(collector)
    pipeline.watch(collector.list_thread_problems)


def watch_reader(metrics: Metrics, reader: StorageReader, shapes: ShapeService) -> None:
    metrics.watch(
        StatusCollector(make_reader_sampler(reader), reader.runtime, shapes=lambda: measure_shapes(shapes.shapes))
    )
