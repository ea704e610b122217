"""A report that storage refuses is written when storage answers again, although nothing has changed since (I13)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.replica_record import ReplicaReporter, read_replica_statuses
from evertide.pipeline.records.state_record import PipelineStateReporter, read_pipeline_state
from evertide.problem import ComponentState, Problem
from evertide.runtime import SystemRuntime
from evertide.sources.contract import Lag
from evertide.store.memory import MemoryMeta
from evertide.store.meta import Record, Write
from evertide.store.open import Storage
from evertide.store.paths import HEALTH, SOURCES, replica_key, writer_key
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.pipeline.kit import ORDERS, SETTINGS, CandidSource, batch, open_pipeline, storage, with_sources
from tests.pipeline.test_source_record import AWAY, one, read_stored_status, reporter_of

QUICK = replace(SETTINGS, retry_limit_s=0.02)
RUNTIME = SystemRuntime()
LIMIT_S = 30.0
RUNNING = Problem(ComponentState.RUNNING, "", "", "", 1.0)
STALLED = Problem(ComponentState.STALLED, "unavailable", "it does not answer", "wait", 2.0)


class Outage:
    """Refuses commits of some keys while it lasts."""

    def __init__(self) -> None:
        self.refused: tuple[str, ...] = ()
        self.meta = FaultyMeta(MemoryMeta(RUNTIME), Faults(self._choose, lambda *_: Fault.DONE))
        self.storage: Storage = storage(meta=self.meta)

    def _choose(self, _operation: str, key: str) -> Fault:
        return Fault.REFUSED if self.refused and key.startswith(self.refused) else Fault.DONE

    @contextmanager
    def of(self, *keys: str) -> Iterator[None]:
        self.refused = keys
        try:
            yield
        finally:
            self.refused = ()


def test_s4_the_state_of_a_source_that_could_not_be_recorded_is_recorded_later() -> None:
    """Otherwise `evertide status --storage` and followers would show the source as running."""
    outage, source = Outage(), CandidSource("shop", ("orders",), [batch(ORDERS, [{"id": 1}])])
    with with_sources(source), open_pipeline(outage.storage, settings=QUICK) as p:
        with outage.of(SOURCES):
            source.lag, source.problems = Lag(bytes=7), (AWAY,)
            assert reporter_of(p).tick()
        assert one(read_stored_status(outage.storage, p)).state == "running"
        assert reporter_of(p).tick()
        assert one(read_stored_status(outage.storage, p)).state == "reconnecting"


def test_s4_a_pause_that_could_not_be_recorded_is_recorded_later() -> None:
    outage = Outage()
    with open_pipeline(outage.storage, settings=QUICK) as p:
        with outage.of(HEALTH):
            p.pause()
        assert read_stored_status(outage.storage, p).state == "running"
        p._process_state.publish()
        assert read_stored_status(outage.storage, p).state == "paused"


def test_s4_the_time_of_a_replica_that_could_not_be_recorded_is_recorded_later() -> None:
    outage = Outage()
    with open_pipeline(outage.storage, settings=QUICK) as p:
        p.push("orders", [{"id": 1, "customer": "ann", "amount": 1}])
        p.commit()
        with outage.of(replica_key("")):
            assert replica_reporter_of(p).tick()
        assert read_replica_statuses(outage.meta, p.time + 1, RUNTIME, QUICK) == ()
        assert replica_reporter_of(p).tick()
        assert [each.time for each in read_replica_statuses(outage.meta, p.time + 1, RUNTIME, QUICK)] == [p.time]


def replica_reporter_of(p: Pipeline) -> ReplicaReporter:
    return next(each for each in p._threads if isinstance(each, ReplicaReporter))


class WaitingMeta(MemoryMeta):
    """The thread `waiting` does not read the record before `go_on` is set."""

    def __init__(self) -> None:
        super().__init__(RUNTIME)
        self.waiting: threading.Thread | None = None
        self.reached, self.go_on = threading.Event(), threading.Event()

    def head(self, key: str) -> Record | None:
        if key == HEALTH and threading.current_thread() is self.waiting:
            self.reached.set()
            assert self.go_on.wait(LIMIT_S)
        return super().head(key)


def test_s4_the_last_of_two_states_that_threads_report_at_once_is_recorded() -> None:
    """The thread that reports first is slower."""
    meta = WaitingMeta()
    assert meta.commit([Write(writer_key("aa"), 0, b"{}")]) is None
    report = PipelineStateReporter(meta, "aa", RUNTIME, QUICK)
    first = meta.waiting = threading.Thread(target=report, args=(STALLED,))
    first.start()
    assert meta.reached.wait(LIMIT_S)
    report(RUNNING)
    meta.go_on.set()
    first.join()
    for now in (RUNNING, STALLED):
        report(now)
        found = read_pipeline_state(meta)
        assert found is not None
        assert found.state == now.state
