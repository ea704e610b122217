"""A thread that dies, or whose work fails, from an error of any class: the error is logged and reported."""

from __future__ import annotations

import logging
import threading

import pytest

from evertide.errors import Unexpected
from evertide.threads.ticker import Ticker
from evertide.threads.watched import WatchedThread

LIMIT_S = 30.0


def test_a_thread_that_dies_is_logged_with_its_traceback_and_reports_why(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Unexpected] = []

    def run(text: str) -> None:
        raise MemoryError(text)

    thread = WatchedThread("evertide-one", run, "no room", on_death=told.append)
    thread.start()
    thread.join()
    [problem] = thread.list_thread_problems()
    assert (problem.state, problem.error_code) == ("warning", "unexpected")
    assert problem.why == "the thread evertide-one died: MemoryError: no room"
    assert problem.since_s > 0
    assert problem.remedy
    assert [error.why for error in told] == ["MemoryError: no room"]
    [logged] = [record for record in caplog.records if record.name == "evertide.threads.watched"]
    assert logged.exc_info is not None
    assert logged.exc_info[0] is MemoryError


def test_a_thread_that_ends_has_no_problem() -> None:
    thread = WatchedThread("evertide-one", lambda: None)
    thread.start()
    thread.join()
    assert not thread.list_thread_problems()


class Failing(Ticker):
    def __init__(self) -> None:
        super().__init__("evertide-failing", 0.001)
        self.ticks = 0
        self.has_failed, self.may_go_on, self.is_well = (threading.Event() for _ in range(3))

    def tick(self) -> bool:
        self.ticks += 1
        if self.is_well.is_set():
            return False
        if self.may_go_on.is_set():
            self.is_well.set()
            return True
        if self.ticks > 3:
            self.has_failed.set()
        raise KeyError("bug")


def test_a_ticker_continues_after_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the first unexpected error would end a heartbeat, for example, for good."""
    with caplog.at_level(logging.ERROR), Failing() as failing:
        assert failing.has_failed.wait(LIMIT_S)
        assert [one.why for one in failing.list_thread_problems()] == [
            "the thread evertide-failing failed, will retry: KeyError: 'bug'"
        ]
        failing.may_go_on.set()
        assert failing.is_well.wait(LIMIT_S)
        failing._thread.join()
        assert not failing.list_thread_problems()
    assert len(caplog.records) == 1, "the same error is logged once"
