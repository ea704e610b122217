"""`Standing`: how things stand, told at a scrape.

1. The storage is looked at at most once a second, however many scrape, and in a thread beside them: a scrape waits for
   it for a moment only. What it then has not got is told as it was last seen, with its age, and `evertide_up` is 0.
2. What is in memory (whether the process is alive, its shapes) is always told as it is now.
3. A scrape never fails, whatever the storage does, and takes no lock that a transaction needs.
"""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evertide import __version__
from evertide.errors import EvertideError
from evertide.metrics.catalog import ALL
from evertide.metrics.samples import Look, Seen, ShapesUse
from evertide.pipeline.replicas.liveness import Beat
from evertide.pipeline.status.status import CollectionStatus, SinkStatus, SourceStatus, Status
from evertide.problem import Problem
from evertide.runtime import Runtime
from evertide.threads.watched import Watched

__all__ = ["Glance", "Standing"]

logger = logging.getLogger(__name__)

_EVERY_S = 1.0
_WAIT_S = 1.0


class Glance:
    """The last look, not older than a second if the storage answers."""

    def __init__(self, look: Look, runtime: Runtime, every_s: float = _EVERY_S, wait_s: float = _WAIT_S) -> None:
        self._look = look
        self._clock = runtime.monotonic_s
        self._every_s = every_s
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._under_way: threading.Event | None = None
        self._seen: tuple[float, Seen] | None = None
        self._is_up = False
        self._asked_s = -every_s
        self._thread: Watched | None = None

    def troubles(self) -> list[Problem]:
        """What the last look died of."""
        return [] if self._thread is None else self._thread.troubles()

    def latest(self) -> tuple[Seen | None, float, bool]:
        """What was seen, its age, and whether the storage answers now."""
        over = self._asked()
        is_late = over is not None and not over.wait(self._wait_s)
        seen = self._seen
        age_s = 0.0 if seen is None else self._clock() - seen[0]
        return None if seen is None else seen[1], age_s, self._is_up and not is_late

    def _asked(self) -> threading.Event | None:
        """One that looks, if there is or should be one."""
        with self._lock:
            if self._under_way is None and self._clock() - self._asked_s >= self._every_s:
                self._asked_s, self._under_way = self._clock(), threading.Event()
                self._thread = Watched("evertide-metrics", self._run, self._under_way)
                self._thread.start()
            return self._under_way

    def _run(self, over: threading.Event) -> None:
        try:
            self._seen, self._is_up = (self._clock(), self._look()), True
        except EvertideError as error:
            self._is_up = False
            logger.info("what is scraped is as old as it is: %s", error)
        except BaseException:  # the thread dies of it, and says so
            self._is_up = False
            raise
        finally:
            with self._lock:
                self._under_way = None
            over.set()


class _Told:
    """Families of metrics that are being filled; those of which nothing is known are named all the same."""

    def __init__(self) -> None:
        self.families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for metric in ALL:
            if metric.is_seen:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                self.families[metric.name] = kind(metric.name, metric.says, labels=metric.labels)

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """None: not known, and not told."""
        if value is not None:
            self.families[f"evertide_{name}"].add_metric(labels, value)


class Standing(Collector):
    def __init__(
        self,
        look: Look,
        runtime: Runtime,
        *,
        pulse: Callable[[], Beat] | None = None,
        shapes: Callable[[], ShapesUse] | None = None,
        wait_s: float = _WAIT_S,
    ) -> None:
        self._glance = Glance(look, runtime, wait_s=wait_s)
        self._pulse = pulse
        self._shapes = shapes

    def troubles(self) -> list[Problem]:
        return self._glance.troubles()

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        told = _Told()
        seen, age_s, is_up = self._glance.latest()
        told.add("up", is_up)
        told.add("status_age_seconds", age_s)
        spark = seen.driver.version if seen is not None and seen.driver is not None else ""
        told.add("build_info", 1, __version__, platform.python_version(), spark)
        if self._pulse is not None:
            beat = self._pulse()
            told.add("alive", beat.is_alive)
            told.add("doing_seconds", beat.since_s, beat.phase)
        if self._shapes is not None:
            _tell_shapes(told, self._shapes())
        if seen is not None:
            _tell_process(told, seen)
            _tell_pipeline(told, seen.status)
        yield from told.families.values()


def _tell_shapes(told: _Told, use: ShapesUse) -> None:
    told.add("shapes", use.shapes)
    told.add("shape_clients", use.clients)
    told.add("shape_log_bytes", use.log_bytes)
    told.add("shape_log_entries_total", use.log_entries)
    told.add("shape_feeds_standing", use.standing)


def _tell_process(told: _Told, seen: Seen) -> None:
    told.add("leads", seen.leads)
    told.add("leases", seen.leases)
    told.add("leases_lost_total", seen.leases_lost)
    sizes: dict[str, tuple[int, int, int]] = {}
    for one in seen.arrangements:  # views that came later may have one of the same name
        rows, size, parts = sizes.get(one.name, (0, 0, 0))
        sizes[one.name] = (rows + one.rows, size + one.bytes, parts + one.parts)
    for name, (rows, size, parts) in sizes.items():
        told.add("arrangement_rows", rows, name)
        told.add("arrangement_bytes", size, name)
        told.add("arrangement_parts", parts, name)
    if seen.driver is not None:
        told.add("spark_jobs_total", seen.driver.jobs)
        for (area, kind), size in seen.driver.memory.items():
            told.add("jvm_memory_bytes", size, area, kind)


def _tell_pipeline(told: _Told, status: Status) -> None:
    told.add("state", 1, status.state)
    told.add("time", status.time)
    told.add("bound_time", status.bound)
    told.add("flushed_time", status.flushed)
    told.add("generation", status.generation)
    told.add("checkpoints", len(status.checkpoints))
    told.add("checkpoint_time", max((time for _, time in status.checkpoints), default=0))
    problems = {("pipeline", "", problem.error_code) for problem in status.problems if problem.error_code}
    for collection in status.collections:
        _tell_collection(told, collection)
    for source in status.sources:
        _tell_source(told, source)
        problems |= {("source", source.name, problem.error_code) for problem in source.problems if problem.error_code}
    for sink in status.sinks:
        _tell_sink(told, sink)
        if sink.problem is not None and sink.problem.error_code:
            problems.add(("sink", sink.name, sink.problem.error_code))
    for part, name, error_code in sorted(problems):
        told.add("problem", 1, part, name, error_code)
    _tell_replicas(told, status)


def _tell_collection(told: _Told, one: CollectionStatus) -> None:
    told.add("collection_upper", one.upper, one.name, one.kind)
    told.add("collection_since", one.since, one.name, one.kind)
    told.add("collection_changes", one.rows, one.name, one.kind)
    told.add("collection_bytes", one.bytes, one.name, one.kind)
    told.add("collection_parts", one.parts, one.name, one.kind)
    told.add("collection_state", 1, one.name, one.state)


def _tell_source(told: _Told, one: SourceStatus) -> None:
    told.add("source_state", 1, one.name, one.state or "unknown")
    if one.lag is not None:
        told.add("source_lag_bytes", one.lag.bytes, one.name)
        told.add("source_lag_rows", one.lag.rows, one.name)
        told.add("source_lag_files", one.lag.files, one.name)
        told.add("source_lag_seconds", one.lag.seconds, one.name)


def _tell_sink(told: _Told, one: SinkStatus) -> None:
    told.add("sink_state", 1, one.name, one.state or "unknown")
    told.add("sink_behind", one.behind, one.name)


def _tell_replicas(told: _Told, status: Status) -> None:
    """Of several on one host, the one that is furthest behind: numbers of processes would be labels without end."""
    roles: dict[str, int] = {}
    behind: dict[tuple[str, str], int] = {}
    for one in status.replicas:
        roles[one.role] = roles.get(one.role, 0) + 1
        behind[one.host, one.role] = max(one.behind, behind.get((one.host, one.role), 0))
    for role, count in roles.items():
        told.add("replicas", count, role)
    for (host, role), transactions in behind.items():
        told.add("replica_behind", transactions, host, role)
