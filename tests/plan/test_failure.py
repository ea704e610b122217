"""Failures of a Spark job: caused by a row, or by Spark itself."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import ArithmeticException, PythonException
from pyspark.sql.functions import udf

from evertide.errors import InvalidInput, ScratchUnavailable, SparkAway, SparkEnded, SystemRefused, ViewFailed
from evertide.flow import Circuit
from evertide.plan.catalyst.failure import classify_errors
from evertide.plan.fragment.fragment import Fragment, Term
from evertide.plan.program.view_function import ViewFunction
from evertide.runtime import SystemRuntime
from tests.kit.ledger import delta_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_an_error_that_spark_attributes_to_a_row_blames_the_row(spark: SparkSession) -> None:
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"), classify_errors(spark.sparkContext):
        spark.sql("SELECT 1 / id FROM range(2)").collect()


def test_other_errors_of_the_jvm_blame_spark(spark: SparkSession) -> None:
    with pytest.raises(SparkAway, match="IndexOutOfBoundsException") as away, classify_errors(spark.sparkContext):
        spark._jvm.java.util.ArrayList().get(3)
    assert away.value.path == spark.sparkContext.master
    assert "\n" not in str(away.value)


@pytest.mark.parametrize("error", [Py4JNetworkError("closed"), ConnectionRefusedError("connection refused")])
def test_without_a_jvm_spark_has_ended(spark: SparkSession, error: Exception) -> None:
    with pytest.raises(SparkEnded, match=type(error).__name__), classify_errors(spark.sparkContext):
        raise error


def test_without_a_context_spark_has_ended(spark: SparkSession) -> None:
    ended = cast("Any", SimpleNamespace(master="spark://gone:7077", _jsc=None))
    with pytest.raises(SparkEnded, match="spark://gone:7077"), classify_errors(ended):
        spark._jvm.java.util.ArrayList().get(3)


@pytest.fixture
def circuit(spark: SparkSession) -> Circuit:
    return Circuit(spark, "CREATE TABLE t (a INT); CREATE MATERIALIZED VIEW v AS SELECT a + 1 AS b FROM t;")


def delta(*values: int) -> dict[str, pa.Table]:
    return {"t": delta_of(pa.table({"a": pa.array(values, pa.int32())}), 1)}


class Losing:
    """The runs of a fragment, some of which fail like a job that loses its executors."""

    def __init__(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, is_lost: Callable[[int, int], bool]
    ) -> None:
        """`is_lost` receives the number of the run and its number of rows."""
        self.runs: list[int] = []
        real = Fragment.run

        def run(fragment: Fragment, terms: Sequence[Term], **how: Any) -> pa.Table:
            self.runs.append(sum(leaf.num_rows for _, leaves in terms for leaf in leaves))
            if is_lost(len(self.runs), self.runs[-1]):
                spark._jvm.java.util.ArrayList().get(3)
            return real(fragment, terms, **how)

        monkeypatch.setattr(Fragment, "run", run)


def test_x15_a_step_that_succeeds_when_retried_blames_no_view(
    spark: SparkSession, circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing = Losing(spark, monkeypatch, lambda number, _: number == 1)
    assert circuit.step(delta(1))["v"].to_pylist() == [{"b": 2, "__diff": 1}]
    assert losing.runs == [1, 1]


def test_x15_a_step_that_fails_only_as_a_whole_blames_no_view(
    spark: SparkSession, circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For lack of memory, for example. The step changes nothing, and may be repeated."""
    with monkeypatch.context() as patch:
        losing = Losing(spark, patch, lambda _, rows: rows > 150)
        with pytest.raises(SparkAway, match="IndexOutOfBoundsException"):
            circuit.step(delta(*range(200)))
        assert min(losing.runs) < 20
    assert circuit.step(delta(1))["v"].to_pylist() == [{"b": 2, "__diff": 1}]


def test_x15_no_view_is_blamed_while_spark_runs_no_job_at_all(
    spark: SparkSession, circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check the one row of the step would be blamed, as it fails each time."""

    def away(_: object) -> None:
        raise SparkAway(path="spark://cluster", why="no executors")

    with monkeypatch.context() as patch:
        Losing(spark, patch, lambda *_: True)
        patch.setattr("evertide.flow.circuit.check_spark", away)
        with pytest.raises(SparkAway, match="no executors"):
            circuit.step(delta(1))
    assert circuit.step(delta(1))["v"].to_pylist() == [{"b": 2, "__diff": 1}]


def test_an_ended_spark_is_reported_at_once(circuit: Circuit, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise Py4JNetworkError("closed")

    monkeypatch.setattr(Fragment, "run", run)
    with pytest.raises(SparkEnded, match="closed"):
        circuit.step(delta(1))


def test_x13_an_error_of_any_class_fails_only_the_view(circuit: Circuit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a Python error, such as one of Arrow. If no row causes it, it was raised unchanged, and ended the pipeline,
    again at each start."""
    real = Fragment.run

    def run(fragment: Fragment, terms: Sequence[Term], **how: Any) -> pa.Table:
        values = [value for _, leaves in terms for leaf in leaves for value in leaf.column(0).to_pylist()]
        if 3 in values or len(values) > 70:
            raise pa.ArrowInvalid("out of bounds")
        return real(fragment, terms, **how)

    monkeypatch.setattr(Fragment, "run", run)
    with pytest.raises(ViewFailed, match=r"out of bounds; because of table 't', row \{'a': 3, '__diff': 1\}"):
        circuit.step(delta(1, 2, 3, 4))
    with pytest.raises(ViewFailed, match="out of bounds; the view fails with 71 of the 100 rows together") as failed:
        circuit.step(delta(*range(100, 200)))
    assert failed.value.views == ("v",)
    assert len(circuit.step(delta(1, 2))["v"]) == 2


TEXTS = "CREATE TABLE t (a INT, b STRING); CREATE MATERIALIZED VIEW v AS SELECT max(b) AS m FROM t GROUP BY a;"


@pytest.mark.parametrize(
    "place", ["evertide.flow.circuit.consolidate_delta", "evertide.flow.state.arrangement.make_block"]
)
def test_x13_an_error_after_the_last_operator_fails_only_the_view(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The result is sorted, and the state is prepared: both copy all texts, which Arrow may refuse."""
    made = Circuit(spark, TEXTS)
    module, _, name = place.rpartition(".")
    real = getattr(import_module(module), name)
    rows = {"t": delta_of(pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", "y"]}), 1)}

    def refuse(table: pa.Table, *rest: Any, **how: Any) -> Any:
        if table.num_rows > 1:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        return real(table, *rest, **how)

    with monkeypatch.context() as patch:
        patch.setattr(place, refuse)
        with pytest.raises(ViewFailed, match="offset overflow") as failed:
            made.step(rows)
    assert failed.value.views == ("v",)
    assert len(made.step(rows)["v"]) == 2


@pytest.mark.parametrize(
    "error", [ArithmeticException("[DIVIDE_BY_ZERO]"), InvalidInput(where="group 1", why="its sum is too large")]
)
def test_x15_an_error_with_a_clear_class_that_does_not_repeat_fails_no_view(
    circuit: Circuit, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Such an error failed the view at once."""
    real, runs = Fragment.run, [0]

    def run(fragment: Fragment, terms: Sequence[Term], **how: Any) -> pa.Table:
        runs[0] += 1
        if runs[0] == 1:
            raise error
        return real(fragment, terms, **how)

    monkeypatch.setattr(Fragment, "run", run)
    assert circuit.step(delta(1))["v"].to_pylist() == [{"b": 2, "__diff": 1}]
    assert runs == [2]


@pytest.mark.parametrize("values", [(1,), (1, 2, 3)])
def test_x13_no_row_is_blamed_if_the_query_needs_too_much_memory_for_any_row(
    spark: SparkSession, values: tuple[int, ...]
) -> None:
    """Without this, the first row that was tried alone was blamed. A row of another table proves nothing, as it is not
    computed.
    """
    made = Circuit(
        spark,
        "CREATE TABLE t (a INT); CREATE TABLE u (a INT);"
        "CREATE MATERIALIZED VIEW v AS SELECT a, array_repeat(1L, if(a = 7, 1, 1000000000)) AS b FROM t;",
    )
    other = {"u": delta(8)["t"]}
    with pytest.raises(ViewFailed, match=r"OutOfMemoryError.*; the view fails with table 't', row") as failed:
        made.step({**delta(*values), **other})
    assert "because of" not in failed.value.why
    with pytest.raises(ViewFailed, match=r"OutOfMemoryError.*; because of table 't', row \{'a': 1, '__diff': 1\}"):
        made.step({**delta(7, 1), **other})
    assert made.step(delta(7))["v"].to_pylist() == [{"a": 7, "b": [1], "__diff": 1}]


@pytest.mark.parametrize("number", [0, 1])
def test_x12_a_step_without_room_for_scratch_files_may_be_repeated(
    circuit: Circuit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    """Python writes the first file of a run, the JVM the second."""
    made: list[Path] = []

    def full(**_: object) -> tuple[int, str]:
        made.append(tmp_path / str(len(made)))
        if len(made) == number + 1:
            made[-1].symlink_to("/dev/full")
        return os.open(made[-1], os.O_RDWR | os.O_CREAT), str(made[-1])

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", full)
        with pytest.raises(ScratchUnavailable, match="No space left"):
            circuit.step(delta(1))
    assert len(made) == 2
    assert not [*tmp_path.iterdir()]
    assert circuit.step(delta(1))["v"].to_pylist() == [{"b": 2, "__diff": 1}]


def test_x12_no_row_is_blamed_for_an_error_of_the_system(circuit: Circuit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any row failed, so the first that was tried alone was blamed."""

    def refusal() -> OSError:
        return OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def run(*_: object, **__: object) -> None:
        raise refusal()

    def fail_to_connect(*_: object, **__: object) -> None:
        raise Py4JNetworkError("An error occurred while trying to connect to the Java server") from refusal()

    for failing in (run, fail_to_connect):
        with monkeypatch.context() as patch:
            patch.setattr(Fragment, "run", failing)
            with pytest.raises(SystemRefused, match=os.strerror(errno.EMFILE)):
                circuit.step(delta(1, 2))
    assert circuit.step(delta(1))["v"].to_pylist() == [{"b": 2, "__diff": 1}]


def fail_at_first(tries: Path, times: int, *, is_killed: bool) -> Any:
    """A function that fails `times` times, whatever the row; then it adds 1."""

    def add_one(a: int) -> int:
        if len([*tries.iterdir()]) < times:
            (tries / SystemRuntime().new_id()).touch()
            if is_killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return a + 1

    return udf(add_one, "int", useArrow=False)


def view_calling(spark: SparkSession, function: Any) -> Circuit:
    def v(session: SparkSession) -> DataFrame:
        return session.table("t").select(function("a").alias("b"))

    return Circuit(spark, "CREATE TABLE t (a INT);", functions=[ViewFunction("v", v)])


@pytest.mark.parametrize("is_killed", [True, False])
def test_x15_a_python_function_that_fails_once_blames_no_view(
    spark: SparkSession, tmp_path: Path, is_killed: bool
) -> None:
    """Spark gives up after four attempts of a task. An error that the function raised failed its view at once."""
    made = view_calling(spark, fail_at_first(tmp_path, 4, is_killed=is_killed))
    assert made.step(delta(1))["v"].to_pylist() == [{"b": 2, "__diff": 1}]
    assert len([*tmp_path.iterdir()]) == 4


def test_x13_a_python_function_that_fails_each_time_is_blamed_on_the_row(spark: SparkSession) -> None:
    made = view_calling(spark, udf(lambda a: 6 // a, "int", useArrow=False))
    with pytest.raises(ViewFailed, match=r"ZeroDivisionError.*; because of table 't', row \{'a': 0, '__diff': 1\}"):
        made.step(delta(1, 0, 2))
    assert len(made.step(delta(1, 2))["v"]) == 2


def test_x13_a_python_function_that_fails_only_for_many_rows_fails_its_view(
    spark: SparkSession, circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the transaction, and with it all views, would wait for ever."""
    real = Fragment.run

    def run(fragment: Fragment, terms: Sequence[Term], **how: Any) -> pa.Table:
        if sum(leaf.num_rows for _, leaves in terms for leaf in leaves) > 150:
            raise PythonException("ValueError: too many")
        return real(fragment, terms, **how)

    monkeypatch.setattr(Fragment, "run", run)
    with pytest.raises(ViewFailed, match=r"too many; the view fails with 1\d\d of the 200 rows together"):
        circuit.step(delta(*range(200)))
