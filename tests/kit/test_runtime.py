"""The manual runtime: the clock moves only when a test moves it, and everything follows from the seed."""

from __future__ import annotations

import re
import threading

import pytest

from evertide.runtime import Runtime
from tests.kit.runtime import ManualRuntime, RandomStream


def test_the_clock_stands_still_until_it_is_moved() -> None:
    runtime: Runtime = (manual := ManualRuntime(start_s=1000.0))
    assert (runtime.wall_s(), runtime.monotonic_s()) == (1000.0, 0.0)
    assert (runtime.wall_s(), runtime.monotonic_s()) == (1000.0, 0.0)
    manual.advance_s(2.5)
    assert (runtime.wall_s(), runtime.monotonic_s()) == (1002.5, 2.5)
    with pytest.raises(ValueError, match="go back"):
        manual.advance_s(-1)


def test_a_jump_of_the_wall_clock_does_not_affect_durations() -> None:
    runtime = ManualRuntime(start_s=1000.0)
    runtime.jump_wall_s(-300.0)
    assert (runtime.wall_s(), runtime.monotonic_s()) == (700.0, 0.0)


def test_sleeping_moves_the_clock_and_is_recorded() -> None:
    runtime = ManualRuntime()
    for seconds in (0.05, 0.1, 0.2):
        runtime.sleep_s(seconds)
    assert runtime.slept_s == (0.05, 0.1, 0.2)
    assert runtime.monotonic_s() == pytest.approx(0.35)


def test_ids_and_random_numbers_follow_from_the_seed() -> None:
    one, same, other = ManualRuntime(7), ManualRuntime(7), ManualRuntime(8)
    ids = [one.new_id() for _ in range(1000)]
    numbers = [one.random() for _ in range(1000)]
    assert [same.new_id() for _ in range(1000)] == ids
    assert [same.random() for _ in range(1000)] == numbers
    others = [other.new_id() for _ in range(1000)]
    assert len({*ids, *others}) == 2000
    assert all(re.fullmatch(r"[0-9a-f]{16}", name) for name in ids)
    assert all(0 <= number < 1 for number in numbers)
    assert 0.45 < sum(numbers) / len(numbers) < 0.55


def test_one_more_random_number_does_not_change_the_ids() -> None:
    one, other = ManualRuntime(1), ManualRuntime(1)
    other.random()
    assert one.new_id() == other.new_id()


def test_the_generator_is_splitmix64() -> None:
    """Known values: a seed that found a failure must still find it years later."""
    rng = RandomStream(1234567)
    assert [rng.bits() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_wait_without_notification_takes_the_requested_time() -> None:
    runtime = ManualRuntime()
    condition = threading.Condition()
    with condition:
        runtime.wait_s(condition, 30.0)
    assert runtime.monotonic_s() == 30.0


def test_a_wait_that_is_notified_takes_no_time() -> None:
    class Notified(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            return True

    runtime = ManualRuntime()
    runtime.wait_s(Notified(), 30.0)
    assert runtime.monotonic_s() == 0.0


def test_threads_that_share_a_runtime_get_different_ids() -> None:
    runtime = ManualRuntime()
    ids: list[str] = []

    def take() -> None:
        for _ in range(500):
            ids.append(runtime.new_id())
            runtime.sleep_s(1.0)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 2000
    assert runtime.monotonic_s() == 2000.0
