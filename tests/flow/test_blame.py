"""Which rows are to blame for a step that fails: each decision of `evertide.flow.blame` by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput, SparkAway, SparkEnded, ViewFailed
from evertide.flow.blame import SuspectedFailure, find_culprit, retry_step
from evertide.plan.fragment.fragment import ROWS_SMALL_MAX
from evertide.rows.changes import DIFF

AWAY = SparkAway(path="local", why="no executors")
Fails = Callable[[list[int]], bool]


def suspected(*views: str, is_from_function: bool = False) -> SuspectedFailure:
    return SuspectedFailure(views or ("v",), "malformed", AWAY, is_from_function=is_from_function)


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


def spark_runs() -> None:
    """Spark runs a minimal job."""


def test_x13_a_step_that_succeeds_when_it_is_repeated_gives_its_result() -> None:
    step = Step(lambda _: False)
    assert retry_step(suspected(), step.compute, spark_runs, deltas_of(1, 2)) == "result"
    assert step.tried == [[1, 2]]


@pytest.mark.parametrize("checks", [0, 1])
def test_x13_no_row_is_to_blame_if_spark_is_unavailable_before_or_after_the_attempts(checks: int) -> None:
    left = [checks]

    def check_spark() -> None:
        if not left[0]:
            raise SparkAway(path="local", why="lost meanwhile")
        left[0] -= 1

    step = Step(lambda _: True)
    with pytest.raises(SparkAway, match="lost meanwhile"):
        retry_step(suspected(), step.compute, check_spark, deltas_of(1, 2))
    assert bool(step.tried) == bool(checks)


def test_x13_no_row_is_to_blame_if_other_views_fail_when_the_step_is_repeated() -> None:
    step = Step(lambda _: True, suspected("other"))
    with pytest.raises(SparkAway, match="no executors"):
        retry_step(suspected("v"), step.compute, spark_runs, deltas_of(1, 2))
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
        retry_step(suspected("v"), compute, spark_runs, deltas_of(*range(8)))


def test_x13_rows_that_fail_only_together_are_to_blame_together() -> None:
    """They are in different halves, so that neither half fails: rows are omitted instead."""
    step = Step(lambda values: {3, 12} <= {*values})
    with pytest.raises(
        ViewFailed,
        match=r"because of table 't', row \{'a': 3, '__diff': 1\} and table 't', row \{'a': 12, '__diff': 1\}\.",
    ):
        retry_step(suspected(), step.compute, spark_runs, deltas_of(*range(16)))


def test_x13_more_than_three_rows_to_blame_are_counted() -> None:
    step = Step(lambda values: len(values) >= 5)
    with pytest.raises(ViewFailed, match=r"row \{'a': \d+, '__diff': 1\} and 2 more\. Correct"):
        retry_step(suspected(), step.compute, spark_runs, deltas_of(*range(100)))


@pytest.mark.parametrize("count", [64, 65])
def test_x13_at_most_64_rows_are_to_blame_together(count: int) -> None:
    step = Step(lambda values: len(values) >= count)
    with pytest.raises(ViewFailed if count == 64 else SparkAway):
        retry_step(suspected(), step.compute, spark_runs, deltas_of(*range(count)))


def test_x13_a_python_function_that_fails_only_for_many_rows_fails_its_view_alone() -> None:
    error = suspected(is_from_function=True)
    step = Step(lambda values: len(values) >= 65, error)
    with pytest.raises(ViewFailed, match="62 more") as failed:
        retry_step(error, step.compute, spark_runs, deltas_of(*range(65)))
    assert failed.value.views == ("v",)
    assert failed.value.__cause__ is AWAY


def test_x13_a_step_without_rows_that_fails_twice_fails_its_view() -> None:
    with pytest.raises(ViewFailed, match=r"malformed\. Correct"):
        retry_step(suspected(), Step(lambda _: True).compute, spark_runs, {})


@pytest.mark.parametrize("error", [SparkAway(path="local", why="lost"), SparkEnded(master="local", why="lost")])
def test_x13_the_loss_of_spark_while_rows_are_omitted_ends_the_search(error: Exception) -> None:
    def compute(deltas: Mapping[str, pa.Table]) -> None:
        raise suspected() if len(values_of(deltas)) == 4 else error

    with pytest.raises(type(error), match="lost"):
        retry_step(suspected(), compute, spark_runs, deltas_of(*range(4)))


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
        retry_step(suspected(), compute, spark_runs, deltas_of(*range(4)))


def test_x13_a_row_that_fails_with_a_class_of_pyspark_counts_as_failing() -> None:
    """A row alone may fail with another class of error than all rows do."""

    def compute(deltas: Mapping[str, pa.Table]) -> None:
        values = values_of(deltas)
        if 2 in values:
            raise suspected() if len(values) > 2 else ViewFailed(views=("v",), time=-1, why="malformed")

    with pytest.raises(ViewFailed, match=r"because of table 't', row \{'a': 2, '__diff': 1\}\. Correct"):
        retry_step(suspected(), compute, spark_runs, deltas_of(*range(8)))


def test_x13_many_rows_are_split_into_few_parts() -> None:
    """Each attempt with many rows takes long: at most 4 parts, and all rows but one of them, are tried."""
    count = ROWS_SMALL_MAX + 1
    step = Step(lambda values: len(values) == count)
    with pytest.raises(SparkAway):
        retry_step(suspected(), step.compute, spark_runs, deltas_of(*range(count)))
    assert len(step.tried) == 1 + 2 + 2 * 4


def test_x13_the_row_of_several_tables_is_named_with_its_table() -> None:
    deltas = {**deltas_of(1, 2), "u": deltas_of(3, 4)["t"]}
    step = Step(lambda values: 3 in values)
    with pytest.raises(ViewFailed, match=r"because of table 'u', row \{'a': 3, '__diff': 1\}\. Correct"):
        retry_step(suspected(), step.compute, spark_runs, deltas)


@pytest.mark.parametrize(
    ("culprits", "found"),
    [({3}, "table 't', row {'a': 3, '__diff': 1}"), ({3, 4}, ""), (set(), "")],
    ids=["one", "two together", "none"],
)
def test_x13_only_a_single_row_is_named_as_the_culprit(culprits: set[int], found: str) -> None:
    def fails(deltas: Mapping[str, pa.Table]) -> bool:
        return bool(culprits) and culprits <= {*values_of(deltas)}

    assert find_culprit(fails, deltas_of(*range(8))) == found
