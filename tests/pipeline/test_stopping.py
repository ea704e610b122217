"""A pipeline that is stopped while its storage does not answer ends soon, and reports that it made no checkpoint."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest

from evertide.errors import Unavailable
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import STOP_LIMIT_S, StoppableRuntime, SystemRuntime
from evertide.settings import Settings
from evertide.store.memory import MemoryBlob, MemoryMeta
from evertide.store.open import Storage
from tests.kit.delivering import deliver_once
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.kit.runtime import ManualRuntime
from tests.pipeline.kit import VIEWS, Row, by_customer, engine, open_pipeline, rows_of
from tests.pipeline.sink_kit import Bucket, into, with_sink

FOREVER = Settings(
    retry_limit_s=1e9, retry_wait_max_s=1e9, retry_wait_s=0.01, heartbeat_interval_s=1, maintenance_interval_s=0.01
)
"""A call that fails is retried until the pipeline stops."""
LIMIT_S = 60.0


class Outage:
    """A storage in memory whose outages a test begins and ends."""

    def __init__(self) -> None:
        self.is_on = False
        self.refused = threading.Event()
        self.inner = Storage(MemoryBlob(), MemoryMeta(SystemRuntime()), "memory")
        faults = Faults(self._choose, self._choose)
        blob, meta = FaultyBlob(self.inner.blob, faults), FaultyMeta(self.inner.meta, faults)
        self.storage = Storage(blob, meta, "memory")

    def begin(self) -> None:
        self.is_on = True
        assert self.refused.wait(LIMIT_S)

    def _choose(self, *_: str) -> Fault:
        if self.is_on:
            self.refused.set()
        return Fault.REFUSED if self.is_on else Fault.DONE


def end(p: Pipeline, running: threading.Thread | None = None) -> None:
    """End the pipeline as `evertide run` does after a signal."""
    p.stop()
    if running is not None:
        running.join(LIMIT_S)
        assert not running.is_alive()
    with pytest.raises(Unavailable, match="stops without a checkpoint; nothing is lost"):
        p.checkpoint()
    closing = threading.Thread(target=p.close, kwargs={"checkpoint": False})
    closing.start()
    closing.join(LIMIT_S)
    assert not closing.is_alive()


def order(number: int, amount: int = 10) -> Row:
    return {"id": number, "customer": "ann", "amount": amount}


def test_a_loop_whose_storage_is_unavailable_ends_when_it_is_stopped() -> None:
    """Seen to fail: each call waited for `retry_limit_s`, and the end makes several calls, one after the other."""
    outage = Outage()
    p = open_pipeline(outage.storage, threads=True, settings=FOREVER)
    p.push("orders", [order(1)])
    p.commit()
    p.push("orders", [order(2)])
    p._pushes.offer_pushed(p._pushed)
    running = threading.Thread(target=p.run)
    outage.is_on = True
    running.start()
    assert outage.refused.wait(LIMIT_S)
    end(p, running)
    with open_pipeline(outage.inner) as p:
        assert (1, "ann", 10) in rows_of(p, "orders")


def test_a_running_backfill_and_a_running_sink_end_with_the_pipeline() -> None:
    begun, go_on = threading.Event(), threading.Event()
    here = threading.get_ident()

    def slow(tables: Mapping[str, list[Row]]) -> list[Row]:
        if threading.get_ident() != here:
            begun.set()
            assert go_on.wait(LIMIT_S)
        return by_customer(tables)

    outage, bucket = Outage(), Bucket()
    with open_pipeline(outage.storage, engine("revenue")) as p:
        p.push("orders", [order(1)])
        p.commit()
    views = [with_sink(VIEWS["revenue"]), replace(VIEWS["revenue"], name="again", function=slow)]
    made = engine("revenue")
    made.small_views = views
    with into(lake=bucket):
        p = open_pipeline(outage.storage, made, threads=True, settings=FOREVER)
        assert begun.wait(LIMIT_S)
        outage.begin()
        go_on.set()
        end(p)
    with into(lake=bucket), open_pipeline(outage.inner, made) as p:
        deliver_once(p)
        assert rows_of(p, "again") == rows_of(p, "revenue") == [("ann", 10)]
        assert bucket.numbers == [1]


def test_after_the_stop_all_calls_give_up_once_one_took_too_long() -> None:
    clock, stopping = ManualRuntime(), threading.Event()
    runtime = StoppableRuntime(clock, stopping)
    began_s = runtime.monotonic_s()
    clock.advance_s(10 * STOP_LIMIT_S)
    assert not runtime.is_giving_up(began_s)
    stopping.set()
    assert not runtime.is_giving_up(runtime.monotonic_s())
    assert runtime.is_giving_up(began_s)
    assert runtime.is_giving_up(runtime.monotonic_s())


def test_a_sleep_ends_when_the_pipeline_stops_and_executors_get_the_runtime_without_it() -> None:
    stopping = threading.Event()
    runtime = StoppableRuntime(SystemRuntime(), stopping)
    asleep = threading.Thread(target=runtime.sleep_s, args=(1e9,))
    asleep.start()
    stopping.set()
    asleep.join(LIMIT_S)
    assert not asleep.is_alive()
    assert isinstance(pickle.loads(pickle.dumps(runtime)), SystemRuntime)
