"""What Spark fails of: a row, or Spark itself."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import ArithmeticException, PythonException
from pyspark.sql.functions import udf

from evertide.errors import ScratchUnavailable, SparkAway, SparkEnded, SystemRefused, ViewFailed
from evertide.flow import Circuit
from evertide.plan.catalyst.failure import classify_errors
from evertide.plan.fragment.fragment import Fragment, Term
from evertide.plan.program.view_function import ViewFunction
from evertide.runtime import SystemRuntime
from evertide.testing.ledger import delta_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_row_is_to_blame_for_what_spark_says_of_it(spark: SparkSession) -> None:
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"), classify_errors(spark.sparkContext):
        spark.sql("SELECT 1 / id FROM range(2)").collect()


def test_what_else_fails_in_the_jvm_is_sparks(spark: SparkSession) -> None:
    with pytest.raises(SparkAway, match="IndexOutOfBoundsException") as away, classify_errors(spark.sparkContext):
        spark._jvm.java.util.ArrayList().get(3)
    assert away.value.path == spark.sparkContext.master
    assert "\n" not in str(away.value)


@pytest.mark.parametrize("error", [Py4JNetworkError("closed"), ConnectionRefusedError("nobody is there")])
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
    """A fragment's runs, of which some fail as a job does that loses its executors."""

    def __init__(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, is_lost: Callable[[int, int], bool]
    ) -> None:
        """`is_lost` gets the number of the run, and how many rows it has."""
        self.runs: list[int] = []
        real = Fragment.run

        def run(fragment: Fragment, terms: Sequence[Term], **how: Any) -> pa.Table:
            self.runs.append(sum(leaf.num_rows for _, leaves in terms for leaf in leaves))
            if is_lost(len(self.runs), self.runs[-1]):
                spark._jvm.java.util.ArrayList().get(3)
            return real(fragment, terms, **how)

        monkeypatch.setattr(Fragment, "run", run)


def test_x15_a_step_that_succeeds_when_it_is_tried_again_blames_no_view(
    spark: SparkSession, circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing = Losing(spark, monkeypatch, lambda number, _: number == 1)
    assert circuit.step(delta(1))["v"].to_pylist() == [{"b": 2, "__diff": 1}]
    assert losing.runs == [1, 1]


def test_x15_a_step_that_fails_only_as_a_whole_blames_no_view(
    spark: SparkSession, circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of memory, say. Nothing of it is taken, and it may be made again."""
    with monkeypatch.context() as patch:
        losing = Losing(spark, patch, lambda _, rows: rows > 150)
        with pytest.raises(SparkAway, match="IndexOutOfBoundsException"):
            circuit.step(delta(*range(200)))
        assert min(losing.runs) < 20
    assert circuit.step(delta(1))["v"].to_pylist() == [{"b": 2, "__diff": 1}]


def test_x15_while_spark_runs_no_job_at_all_no_view_is_blamed(
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


def test_spark_that_has_ended_is_told_at_once(circuit: Circuit, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise Py4JNetworkError("closed")

    monkeypatch.setattr(Fragment, "run", run)
    with pytest.raises(SparkEnded, match="closed"):
        circuit.step(delta(1))


def test_x13_an_error_of_any_class_is_blamed_on_the_row_that_makes_it(
    circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of Python, as of Arrow; if no row makes it, it is raised as it is."""
    real = Fragment.run

    def run(fragment: Fragment, terms: Sequence[Term], **how: Any) -> pa.Table:
        values = [value for _, leaves in terms for leaf in leaves for value in leaf.column(0).to_pylist()]
        if 3 in values or len(values) > 70:
            raise pa.ArrowInvalid("out of bounds")
        return real(fragment, terms, **how)

    monkeypatch.setattr(Fragment, "run", run)
    with pytest.raises(ViewFailed, match=r"out of bounds; because of table 't', row \{'a': 3, '__diff': 1\}"):
        circuit.step(delta(1, 2, 3, 4))
    with pytest.raises(pa.ArrowInvalid):
        circuit.step(delta(*range(100, 200)))
    assert len(circuit.step(delta(1, 2))["v"]) == 2


@pytest.mark.parametrize("number", [0, 1])
def test_x12_without_room_for_scratch_files_a_step_may_be_made_again(
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


def test_x12_no_row_is_blamed_for_what_the_system_refuses_each_time(
    circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any row failed, so the first that was tried by itself was taken for the one to blame."""

    def refused() -> OSError:
        return OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def run(*_: object, **__: object) -> None:
        raise refused()

    def unconnected(*_: object, **__: object) -> None:
        raise Py4JNetworkError("An error occurred while trying to connect to the Java server") from refused()

    for failing in (run, unconnected):
        with monkeypatch.context() as patch:
            patch.setattr(Fragment, "run", failing)
            with pytest.raises(SystemRefused, match=os.strerror(errno.EMFILE)):
                circuit.step(delta(1, 2))
    assert circuit.step(delta(1))["v"].to_pylist() == [{"b": 2, "__diff": 1}]


def failing_at_first(tries: Path, times: int, *, is_killed: bool) -> Any:
    """A function that fails so many times, whatever the row; then it adds 1."""

    def add_one(a: int) -> int:
        if len([*tries.iterdir()]) < times:
            (tries / SystemRuntime().new_id()).touch()
            if is_killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return a + 1

    return udf(add_one, "int", useArrow=False)


def calling(spark: SparkSession, function: Any) -> Circuit:
    def v(session: SparkSession) -> DataFrame:
        return session.table("t").select(function("a").alias("b"))

    return Circuit(spark, "CREATE TABLE t (a INT);", functions=[ViewFunction("v", v)])


@pytest.mark.parametrize("is_killed", [True, False])
def test_x15_a_python_function_that_fails_once_blames_no_view(
    spark: SparkSession, tmp_path: Path, is_killed: bool
) -> None:
    """Spark gives up after four tries of a task. An error that the function raised failed its view at once."""
    made = calling(spark, failing_at_first(tmp_path, 4, is_killed=is_killed))
    assert made.step(delta(1))["v"].to_pylist() == [{"b": 2, "__diff": 1}]
    assert len([*tmp_path.iterdir()]) == 4


def test_x13_a_python_function_that_fails_each_time_is_blamed_on_the_row(spark: SparkSession) -> None:
    made = calling(spark, udf(lambda a: 6 // a, "int", useArrow=False))
    with pytest.raises(ViewFailed, match=r"ZeroDivisionError.*; because of table 't', row \{'a': 0, '__diff': 1\}"):
        made.step(delta(1, 0, 2))
    assert len(made.step(delta(1, 2))["v"]) == 2


def test_x13_a_python_function_that_fails_only_for_many_rows_fails_its_view(
    spark: SparkSession, circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction would wait for ever, and with it all views."""
    real = Fragment.run

    def run(fragment: Fragment, terms: Sequence[Term], **how: Any) -> pa.Table:
        if sum(leaf.num_rows for _, leaves in terms for leaf in leaves) > 150:
            raise PythonException("ValueError: too many")
        return real(fragment, terms, **how)

    monkeypatch.setattr(Fragment, "run", run)
    with pytest.raises(ViewFailed, match="too many; because of table 't'"):
        circuit.step(delta(*range(200)))
