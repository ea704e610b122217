"""Which rows are to blame for a step that fails: each decision of `evertide.flow.blame` by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput, SparkAway, SparkEnded, ViewFailed
from evertide.flow.blame import FailedSteps, SuspectedFailure, retry_step
from evertide.plan.fragment.fragment import ROWS_SMALL_MAX
from evertide.rows.changes import DIFF

AWAY = SparkAway(path="local", why="no executors")
T = TypeVar("T")
Fails = Callable[[list[int]], bool]


def suspected(*views: str, why: str = "malformed", is_certain: bool = False) -> SuspectedFailure:
    return SuspectedFailure(views or ("v",), why, AWAY, is_certain=is_certain)


def deltas_of(*values: int) -> dict[str, pa.Table]:
    return {"t": pa.table({"a": pa.array(values, pa.int64()), DIFF: pa.array([1] * len(values), pa.int64())})}


def values_of(deltas: Mapping[str, pa.Table]) -> list[int]:
    return [value for delta in deltas.values() for value in delta.column("a").to_pylist()]


class Step:
    """A step that fails with `error` for the rows for which `fails` is true. Records the rows of each attempt."""

    def __init__(self, fails: Fails, error: Exception | None = None) -> None:
        self.tried: list[list[int]] = []
        self._fails = fails
        self._error = error or suspected()

    def compute(self, deltas: Mapping[str, pa.Table]) -> str:
        self.tried.append(values_of(deltas))
        if self._fails(self.tried[-1]):
            raise self._error
        return "result"


def spark_runs() -> frozenset[str]:
    """Spark runs a minimal job."""
    return frozenset({"1", "2"})


def retry(
    failure: SuspectedFailure,
    compute: Callable[[Mapping[str, pa.Table]], T],
    deltas: Mapping[str, pa.Table],
    check_spark: Callable[[], frozenset[str]] = spark_runs,
) -> T:
    """Retry a step that has not failed before in this process."""
    return retry_step(failure, compute, check_spark, deltas, FailedSteps())


def test_x13_a_step_that_succeeds_when_it_is_repeated_gives_its_result() -> None:
    step = Step(lambda _: False)
    assert retry(suspected(), step.compute, deltas_of(1, 2)) == "result"
    assert step.tried == [[1, 2]]


@pytest.mark.parametrize("checks", [0, 1])
def test_x13_no_row_is_to_blame_if_spark_is_unavailable_before_or_after_the_attempts(checks: int) -> None:
    left = [checks]

    def check_spark() -> frozenset[str]:
        if not left[0]:
            raise SparkAway(path="local", why="lost meanwhile")
        left[0] -= 1
        return frozenset()

    step = Step(lambda _: True)
    with pytest.raises(SparkAway, match="lost meanwhile"):
        retry(suspected(), step.compute, deltas_of(1, 2), check_spark)
    assert bool(step.tried) == bool(checks)


def test_x13_no_row_is_to_blame_if_other_views_fail_when_the_step_is_repeated() -> None:
    step = Step(lambda _: True, suspected("other"))
    with pytest.raises(SparkAway, match="no executors"):
        retry(suspected("v"), step.compute, deltas_of(1, 2))
    assert step.tried == [[1, 2]]


def test_x13_rows_that_fail_other_views_are_not_to_blame() -> None:
    """Row 1 fails another view, and would be found first."""

    def compute(deltas: Mapping[str, pa.Table]) -> None:
        values = values_of(deltas)
        if 6 in values:
            raise suspected("v")
        if 1 in values:
            raise suspected("other")

    with pytest.raises(ViewFailed, match=r"malformed; because of table 't', row \{'a': 6, '__diff': 1\}\. Correct"):
        retry(suspected("v"), compute, deltas_of(*range(8)))


def test_x13_rows_that_fail_only_together_are_to_blame_together() -> None:
    """They are in different halves, so that neither half fails: rows are omitted instead."""
    step = Step(lambda values: {3, 12} <= {*values})
    with pytest.raises(
        ViewFailed,
        match=r"because of table 't', row \{'a': 3, '__diff': 1\} and table 't', row \{'a': 12, '__diff': 1\}\.",
    ):
        retry(suspected(), step.compute, deltas_of(*range(16)))


def test_x13_more_than_three_rows_to_blame_are_counted() -> None:
    step = Step(lambda values: len(values) >= 5)
    with pytest.raises(ViewFailed, match=r"row \{'a': \d+, '__diff': 1\} and 2 more\. Correct"):
        retry(suspected(), step.compute, deltas_of(*range(100)))


@pytest.mark.parametrize("count", [64, 65])
def test_x13_at_most_64_rows_are_to_blame_together(count: int) -> None:
    step = Step(lambda values: len(values) >= count)
    with pytest.raises(ViewFailed if count == 64 else SparkAway):
        retry(suspected(), step.compute, deltas_of(*range(count)))


def test_x13_an_error_that_spark_cannot_cause_fails_its_view_however_many_rows_it_needs() -> None:
    """Otherwise the transaction would wait for ever."""
    error = suspected(is_certain=True)
    step = Step(lambda values: len(values) >= 65, error)
    with pytest.raises(ViewFailed, match="malformed; the view fails with 65 of the 70 rows together") as failed:
        retry(error, step.compute, deltas_of(*range(70)))
    assert failed.value.views == ("v",)
    assert failed.value.__cause__ is AWAY


@pytest.mark.parametrize("is_certain", [True, False])
def test_x15_spark_is_only_asked_if_it_may_be_the_cause(is_certain: bool) -> None:
    """A job per failing row would be the larger part of the time."""
    asked = []

    def check_spark() -> frozenset[str]:
        asked.append("")
        return frozenset()

    error = suspected(is_certain=is_certain)
    with pytest.raises(ViewFailed):
        retry(error, Step(lambda values: 3 in values, error).compute, deltas_of(*range(8)), check_spark)
    assert bool(asked) is not is_certain


def test_x15_an_error_of_another_kind_in_the_second_attempt_may_come_from_spark() -> None:
    step = Step(lambda _: True, suspected())
    with pytest.raises(SparkAway):
        retry(suspected(is_certain=True), Step(lambda values: len(values) >= 80, suspected()).compute, deltas_of(*MANY))
    with pytest.raises(ViewFailed):
        retry(suspected(is_certain=True), step.compute, deltas_of(1))


class Tries:
    """Tries of a step that fails with many rows, each as by a circuit: compute it, then retry it."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.executors = spark_runs()
        self.failed_steps = FailedSteps()

    def __call__(self, *values: int) -> str:
        deltas = deltas_of(*values)
        try:
            found = self.step.compute(deltas)
        except SuspectedFailure as error:
            return retry_step(error, self.step.compute, lambda: self.executors, deltas, self.failed_steps)
        self.failed_steps.forget(["v", "w"], deltas)
        return found


MANY = tuple(range(100))


def test_x13_a_step_that_only_many_rows_fail_fails_its_view_at_the_third_try() -> None:
    """Otherwise it would be retried for ever. The rows are searched at the first try only."""
    step = Step(lambda values: len(values) >= 80)
    attempt = Tries(step)
    for _ in range(2):
        with pytest.raises(SparkAway, match="no executors"):
            attempt(*MANY)
        searched, step.tried = len(step.tried), []
    assert searched == 1
    with pytest.raises(ViewFailed, match=r"with 8\d of the 100 rows together.*in 3 tries") as failed:
        attempt(*MANY)
    assert failed.value.views == ("v",)
    with pytest.raises(SparkAway):  # `evertide retry` begins again
        attempt(*MANY)


def test_x15_no_view_fails_as_long_as_executors_are_lost() -> None:
    attempt = Tries(Step(lambda values: len(values) >= 80))
    for number in range(10):
        attempt.executors = frozenset({str(number), "spare"})
        with pytest.raises(SparkAway):
            attempt(*MANY)
    attempt.executors |= {"new"}
    with pytest.raises(SparkAway):
        attempt(*MANY)
    with pytest.raises(ViewFailed):
        attempt(*MANY)


def test_x15_tries_of_other_rows_or_before_a_success_do_not_count() -> None:
    step = Step(lambda values: len(values) >= 80)
    attempt = Tries(step)
    for _ in range(2):
        with pytest.raises(SparkAway):
            attempt(*MANY)
        with pytest.raises(SparkAway):
            attempt(*MANY[1:])
    step._fails = lambda _: False
    assert attempt(*MANY) == "result"
    step._fails = lambda values: len(values) >= 80
    for _ in range(2):
        with pytest.raises(SparkAway):
            attempt(*MANY)
    with pytest.raises(ViewFailed, match="of the 99 rows"):
        attempt(*MANY[1:])


@pytest.mark.parametrize(
    "error",
    [suspected(why="java.lang.OutOfMemoryError: Java heap space"), suspected(why="ExecutorLostFailure (executor 1)")],
)
def test_x13_only_halves_are_tried_after_an_error_that_takes_long(error: SuspectedFailure) -> None:
    step = Step(lambda values: len(values) >= 80, error)
    with pytest.raises(SparkAway):
        retry(error, step.compute, deltas_of(*MANY))
    assert len(step.tried) == 1 + 2
    one = Step(lambda values: 3 in values, error)
    with pytest.raises(ViewFailed, match=r"because of table 't', row \{'a': 3, '__diff': 1\}\. Correct"):
        retry(error, one.compute, deltas_of(*range(1000)))


def test_x13_an_error_of_memory_in_python_takes_long() -> None:
    error = suspected(why="malloc of size 64 failed", is_certain=True)
    error.__cause__ = pa.ArrowMemoryError("malloc of size 64 failed")
    step = Step(lambda values: len(values) >= 80, error)
    with pytest.raises(ViewFailed, match="100 of the 100 rows"):
        retry(error, step.compute, deltas_of(*MANY))
    assert len(step.tried) == 1 + 2


@pytest.mark.parametrize(("count", "attempts"), [(ROWS_SMALL_MAX, 192), (10 * ROWS_SMALL_MAX, 48)])
def test_x13_the_number_of_attempts_is_limited(count: int, attempts: int) -> None:
    """Five rows far apart: without a limit there are more than 500 attempts."""
    culprits = {0, 5, count // 2, count - 300, count - 1}
    step = Step(lambda values: culprits <= {*values})
    with pytest.raises(SparkAway):
        retry(suspected(), step.compute, deltas_of(*range(count)))
    assert len(step.tried) == 1 + attempts


def test_x13_a_step_without_rows_that_fails_twice_fails_its_view() -> None:
    with pytest.raises(ViewFailed, match=r"malformed\. Correct"):
        retry(suspected(), Step(lambda _: True).compute, {})


@pytest.mark.parametrize("error", [SparkAway(path="local", why="lost"), SparkEnded(master="local", why="lost")])
def test_x13_the_loss_of_spark_while_rows_are_omitted_ends_the_search(error: Exception) -> None:
    def compute(deltas: Mapping[str, pa.Table]) -> None:
        raise suspected() if len(values_of(deltas)) == 4 else error

    with pytest.raises(type(error), match="lost"):
        retry(suspected(), compute, deltas_of(*range(4)))


def test_x13_rows_that_are_no_transaction_by_themselves_are_not_to_blame() -> None:
    """A part of the deltas may delete a row that another part would have added."""

    def compute(deltas: Mapping[str, pa.Table]) -> None:
        values = values_of(deltas)
        if 0 not in values:
            raise InvalidInput(where="table 't'", why="it has no such row")
        if 3 in values:
            raise suspected()

    with pytest.raises(
        ViewFailed, match=r"row \{'a': 0, '__diff': 1\} and table 't', row \{'a': 3, '__diff': 1\}\. Correct"
    ):
        retry(suspected(), compute, deltas_of(*range(4)))


def test_x13_a_row_that_fails_alone_with_another_error_counts_as_failing() -> None:

    def compute(deltas: Mapping[str, pa.Table]) -> None:
        values = values_of(deltas)
        if 2 in values:
            raise suspected() if len(values) > 2 else suspected(why="other", is_certain=True)

    with pytest.raises(ViewFailed, match=r"because of table 't', row \{'a': 2, '__diff': 1\}\. Correct"):
        retry(suspected(), compute, deltas_of(*range(8)))


def test_x13_many_rows_are_split_into_few_parts() -> None:
    """Each attempt with many rows takes long: at most 4 parts, and all rows but one of them, are tried."""
    count = ROWS_SMALL_MAX + 1
    step = Step(lambda values: len(values) == count)
    with pytest.raises(SparkAway):
        retry(suspected(), step.compute, deltas_of(*range(count)))
    assert len(step.tried) == 1 + 2 + 2 * 4


def test_x13_the_row_of_several_tables_is_named_with_its_table() -> None:
    deltas = {**deltas_of(1, 2), "u": deltas_of(3, 4)["t"]}
    step = Step(lambda values: 3 in values)
    with pytest.raises(ViewFailed, match=r"because of table 'u', row \{'a': 3, '__diff': 1\}\. Correct"):
        retry(suspected(), step.compute, deltas)
