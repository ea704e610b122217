"""`KeyNotifier`: no wake-up is lost, no waiter spins, and only waiters on the changed key wake."""

from __future__ import annotations

import threading

from evertide.runtime import SystemRuntime
from evertide.store.key_notifier import KeyNotifier
from tests.store.race import together

LIMIT_S = 2.0


def test_a_ring_between_check_and_sleep_ends_the_wait(runtime: SystemRuntime) -> None:
    notifier = KeyNotifier(runtime)
    seen: list[bool] = []

    def look() -> bool:
        if not seen:
            seen.append(True)
            notifier.notify(["k"])
            return False
        return True

    started_s = runtime.monotonic_s()
    assert notifier.wait("k", look, 60.0, 60.0) is True
    assert runtime.monotonic_s() - started_s < LIMIT_S


def test_no_wake_up_is_lost(runtime: SystemRuntime) -> None:
    """Two threads wake each other in turn: one lost wake-up, and this takes a minute."""
    notifier = KeyNotifier(runtime)
    count = [0]

    def work(thread: int) -> None:
        for turn in range(300):
            assert notifier.wait("k", lambda mine=2 * turn + thread: count[0] >= mine, 60.0, 60.0)  # type: ignore[misc]
            count[0] += 1
            notifier.notify(["k"])

    started_s = runtime.monotonic_s()
    assert together(2, work) == [None] * 2
    assert runtime.monotonic_s() - started_s < 30.0
    assert count == [600]


def test_only_waiters_on_the_key_wake(runtime: SystemRuntime) -> None:
    notifier = KeyNotifier(runtime)
    looks = 0
    waiting = threading.Event()

    def look() -> bool:
        nonlocal looks
        looks += 1
        waiting.set()
        return False

    def work(thread: int) -> None:
        if thread:
            assert notifier.wait("k", look, 0.2, 60.0) is False
        else:
            waiting.wait()
            for _ in range(100):
                notifier.notify(["other"])

    assert together(2, work) == [None] * 2
    assert looks == 2
    assert notifier._waiters == {}


def test_wait_polls_no_more_often_than_configured(runtime: SystemRuntime) -> None:
    looks: list[float] = []

    def look() -> bool:
        looks.append(runtime.monotonic_s())
        return False

    assert KeyNotifier(runtime).wait("k", look, 0.25, 0.1) is False
    assert 2 <= len(looks) <= 4


def test_a_timeout_of_zero_checks_once(runtime: SystemRuntime) -> None:
    looks: list[bool] = []

    def look() -> bool:
        looks.append(True)
        return False

    assert KeyNotifier(runtime).wait("k", look, 0.0, 1.0) is False
    assert len(looks) == 1
