"""`watch` while storage fails, views fail and recover, and another process takes the lead.

The cell is right in the end, and says so while it is not current.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.reading.watching import Watch
from evertide.runtime import SystemRuntime
from evertide.sources.generated.seeded import RandomStream
from evertide.store.memory import MemoryBlob, MemoryMeta
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.pipeline.kit import SETTINGS, Row, crash, engine, open_pipeline, storage
from tests.pipeline.replica_kit import pair, shared
from tests.pipeline.test_threads import wait_until

VIEWS = ("revenue", "share", "counts")
QUICK = replace(SETTINGS, retry_limit_s=0.05)


class FakeCell:
    """A cell of a notebook, with everything that it has shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def show(self, html: str) -> None:
        self.shown.append(html)


@pytest.fixture(autouse=True)
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("evertide.pipeline.reading.collections.is_notebook", lambda: True)
    monkeypatch.setattr("evertide.pipeline.reading.watching.Cell", FakeCell)
    monkeypatch.setattr("evertide.pipeline.reading.watching._EVERY_S", 0.01)
    with warnings.catch_warnings(action="error"):  # the cell says it, not a warning of the thread
        yield


def cell_of(watch: Watch) -> list[str]:
    shown: list[str] = watch._cell.shown  # type: ignore[attr-defined]
    return shown


def shows(watch: Watch, is_so: Callable[[str], bool]) -> Callable[[], bool]:
    return lambda: bool(cell_of(watch)) and is_so(cell_of(watch)[-1])


def is_current(watch: Watch, p: Pipeline, name: str) -> Callable[[], bool]:
    return shows(watch, lambda html: html == p.view(name)._repr_html_())


def order(number: int, amount: int) -> Row:
    return {"id": number, "customer": "ann", "amount": amount}


def test_a_watch_says_that_its_view_failed_and_continues_when_it_recovers() -> None:
    """Fails if only the upper is watched, which stands still."""
    with open_pipeline(storage(), engine(*VIEWS), threads=True) as p:
        p.push("orders", [order(1, 50)])
        p.commit()
        watch = p.view("share").watch()
        wait_until(is_current(watch, p, "share"))
        p.push("orders", [order(2, 0)])
        p.commit()
        stale = f"view &#x27;share&#x27; is failed, and its content is that of transaction {p.time - 1}"
        wait_until(shows(watch, lambda html: stale in html and "<td" in html))
        p.push("orders", [order(2, 4)])
        p.commit()
        assert p.wait_until_hydrated(20)
        wait_until(is_current(watch, p, "share"))
        assert repr(watch) == "<Watch active>"
    assert repr(watch) == "<Watch stopped>"


def test_a_watch_of_a_follower_continues_after_a_takeover() -> None:
    with pair(shared(), *VIEWS) as (first, second):
        watch = second.view("revenue").watch()
        first.push("orders", [order(1, 50)])
        first.commit()
        wait_until(shows(watch, lambda html: "50" in html))
        crash(first)
        second.push("orders", [order(2, 7)])
        second.commit()
        wait_until(is_current(watch, second, "revenue"))
        assert second.leads


def test_a_watch_shows_that_storage_does_not_answer_and_continues() -> None:
    """Fails if an error ends the watch."""
    is_off = threading.Event()

    def choose(_operation: str, _key: str) -> Fault:
        return Fault.REFUSED if is_off.is_set() else Fault.DONE

    kept = storage(meta=FaultyMeta(MemoryMeta(SystemRuntime()), Faults(choose, choose)))
    with open_pipeline(kept, engine(*VIEWS), threads=True, settings=QUICK) as p:
        watch = p.view("revenue").watch()
        wait_until(is_current(watch, p, "revenue"))
        is_off.set()
        wait_until(shows(watch, lambda html: "unavailable" in html))
        is_off.clear()
        wait_until(lambda: commit(p, [order(1, 50)]))
        wait_until(is_current(watch, p, "revenue"))


@pytest.mark.parametrize("seed", range(4))
def test_watches_and_frames_are_right_after_random_faults(seed: int) -> None:
    chance, rate, lock = RandomStream(seed), [0.0], threading.Lock()

    def choose(_operation: str, _key: str) -> Fault:
        with lock:
            return Fault.REFUSED if rate[0] and chance.random() < rate[0] else Fault.DONE

    faults, runtime = Faults(choose, choose), SystemRuntime()
    kept = storage(FaultyBlob(MemoryBlob(), faults), FaultyMeta(MemoryMeta(runtime), faults))
    reading = threading.Event()
    reading.set()

    def read_frames(p: Pipeline, failures: list[BaseException]) -> None:
        while reading.is_set():
            try:
                with suppress(Unavailable, OutcomeUnknown):
                    p.view("counts").to_pandas()
            except BaseException as error:  # noqa: BLE001 - reported below
                failures.append(error)
                return

    failures: list[BaseException] = []
    with open_pipeline(kept, engine(*VIEWS), threads=True, settings=QUICK) as p:
        p.push("orders", [order(0, 5)])
        p.commit()
        p.start()
        watches = {name: p.view(name).watch() for name in VIEWS}
        frames = threading.Thread(target=read_frames, args=(p, failures))
        frames.start()
        for number in range(60):
            with lock:
                rate[0] = (0.0, 0.0, 0.3, 1.0)[chance.below(4)]
                amount, key = (0, 1, 2, 50)[chance.below(4)], chance.below(8)
            with suppress(Unavailable, OutcomeUnknown), p.transaction("run", number) as pushed:
                pushed.push("orders", [order(key, amount)])
            runtime.sleep_s(0.005)
        rate[0] = 0.0
        repaired = [order(key, 10) for key in range(8)]
        wait_until(lambda: commit(p, repaired))
        wait_until(lambda: all(one.state == "running" for one in p.status().collections))
        for name, watch in watches.items():
            wait_until(is_current(watch, p, name))
        reading.clear()
        frames.join()
    assert not failures
    assert {repr(watch) for watch in watches.values()} == {"<Watch stopped>"}


def commit(p: Pipeline, rows: list[Row]) -> bool:
    with suppress(Unavailable, OutcomeUnknown):
        p.push("orders", rows)
        p.commit()
        return True
    return False
