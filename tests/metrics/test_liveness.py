"""Liveness and readiness of a process, for Kubernetes' probes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evertide.errors import Unavailable
from evertide.observer import NO_OBSERVER
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.replicas.liveness import Liveness
from evertide.pipeline.state.machine import Machine
from evertide.pipeline.transaction.phases import Phase, PhaseTracker
from evertide.runtime import SystemRuntime
from evertide.threads.steps import note_step, watch_steps
from evertide.threads.ticker import Ticker
from tests.metrics.kit import order, wait_for
from tests.pipeline.kit import SETTINGS, open_pipeline, storage
from tests.server.kit import served

LIVE, READY = "/v1/health/live", "/v1/health/ready"


class Clock(SystemRuntime):
    now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def liveness_of(clock: Clock, ended: Callable[[], list[str]] = list) -> tuple[Liveness, PhaseTracker]:
    phases = PhaseTracker(NO_OBSERVER, clock, SETTINGS, 0)
    return Liveness(lambda: phases.current, ended, clock, 60.0), phases


def test_a_waiting_pipeline_is_alive_while_its_loop_runs(clock: Clock) -> None:
    liveness, _ = liveness_of(clock)
    clock.now_s += 10_000
    assert liveness.report().is_alive, "without a loop, pushes make the transactions"
    liveness.note_round()
    clock.now_s += 59
    assert liveness.report().is_alive
    clock.now_s += 2
    beat = liveness.report()
    assert not beat.is_alive
    assert "the loop has made no step for 61 s" in beat.why
    liveness.end_loop()
    assert liveness.report().is_alive


def test_a_phase_without_progress_is_alive_up_to_its_limit(clock: Clock) -> None:
    liveness, phases = liveness_of(clock)
    liveness.note_round()
    clock.now_s += 50
    phases.enter(Phase.COMPUTE, 7)
    clock.now_s += 50
    beat = liveness.report()
    assert (beat.is_alive, beat.phase, beat.transaction, beat.since_s) == (True, "compute", 7, 50)
    clock.now_s += 11
    beat = liveness.report()
    assert (beat.is_alive, beat.why) == (False, "transaction 7 has made no step in phase 'compute' for 61 s")
    phases.enter(Phase.COMMIT, 7)
    assert liveness.report().is_alive, "the phase made progress"


def test_steps_within_a_long_phase_are_progress(clock: Clock) -> None:
    """Steps of the thread and finished Spark tasks are progress; polling Spark without a change is not."""
    tasks = [0]
    phases = PhaseTracker(NO_OBSERVER, clock, SETTINGS, 0)
    liveness = Liveness(lambda: phases.current, list, clock, 60.0, lambda: tasks[0])
    phases.enter(Phase.COMPUTE, 7)
    for _ in range(5):
        clock.now_s += 50
        assert liveness.find_hang() == ""
        with watch_steps(liveness.note_step):
            note_step()
    note_step()  # a thread that is not watched
    for _ in range(5):
        clock.now_s += 50
        tasks[0] += 1
        assert liveness.find_hang() == ""
    clock.now_s += 61
    assert "has made no step" in liveness.find_hang()
    assert liveness.find_stall(5.0) is None, "the bound transaction is in the journal"


def test_a_source_that_does_not_return_stalls_before_the_bind(clock: Clock) -> None:
    liveness, phases = liveness_of(clock)
    phases.enter(Phase.READ, 7)
    clock.now_s += 4
    assert liveness.find_stall(5.0) is None
    clock.now_s += 2
    assert liveness.find_stall(5.0) == (
        "transaction 7 makes no progress while its sources are read: a call does not return",
        6.0,
    )


def test_an_ended_thread_is_not_alive(clock: Clock) -> None:
    liveness, _ = liveness_of(clock, lambda: ["evertide-heartbeat"])
    assert liveness.report().why == "the threads ['evertide-heartbeat'] have ended; the log has the error"


def test_a_ticker_that_dies_is_named_and_one_that_is_stopped_is_not() -> None:
    class Broken(Ticker):
        def tick(self) -> bool:
            return False

    broken = Broken("broken", 0.001)
    assert broken.list_ended() == [], "the ticker was not started"
    broken.start()
    wait_for(lambda: broken.list_ended() == ["broken"])
    broken.stop()
    assert broken.list_ended() == []


def test_health_of_a_pipeline_whose_thread_died_is_503_for_the_liveness_probe_only() -> None:
    """Fails if the threads are not checked: a dead one would be a silent stall (I13)."""
    with open_pipeline(storage(), threads=True) as p, served(p) as client:
        assert client.get(LIVE).status == 200
        assert client.get(READY).status == 200
        heart = p._heartbeat
        assert heart is not None
        heart.tick = lambda: False  # type: ignore[method-assign]
        heart._interval_s = 0.001
        heart._stopping.set()  # wakes the thread
        wait_for(lambda: not heart._thread.is_alive())
        heart._stopping.clear()
        answer = client.get(LIVE)
        assert answer.status == 503
        assert "evertide-heartbeat" in answer.body["why"]
        assert client.get(READY).status == 200, "the process still serves its content"


def test_a_hung_step_is_not_alive_and_an_outage_of_storage_is(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = replace(SETTINGS, hang_after_s=0.2)
    over, entered = threading.Event(), threading.Event()

    with open_pipeline(storage(), settings=quick) as p, served(p) as client:
        p.push("orders", [order(1)])
        with monkeypatch.context() as patch:
            step = Machine.step

            def hang(*args: Any, **kwargs: Any) -> Any:
                entered.set()
                over.wait(60)
                return step(*args, **kwargs)

            patch.setattr(Machine, "step", hang)
            thread = threading.Thread(target=p.commit, daemon=True)
            thread.start()
            assert entered.wait(60)
            wait_for(lambda: client.get(LIVE).status == 503)
            assert "'compute'" in client.get(LIVE).body["why"]
            over.set()
            thread.join(60)
        wait_for(lambda: client.get(LIVE).status == 200)

        def away(_: Any) -> None:
            raise Unavailable(path="memory", why="away")

        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "status", away)
            assert client.get(LIVE).status == 200, "a restart would not make storage available"
            assert client.get(READY).status == 503


def test_a_pipeline_that_failed_is_not_ready() -> None:
    with open_pipeline(storage()) as p, served(p) as client:
        p._fail(Unavailable(path="x", why="y"))
        assert client.get(READY).status == 503
