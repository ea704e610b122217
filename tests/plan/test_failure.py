"""What Spark fails of: a row, or Spark itself."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import ArithmeticException

from evertide.errors import ScratchUnavailable, SparkAway, SparkEnded
from evertide.flow import Circuit
from evertide.flow.stage import Stage
from evertide.plan.failure import told_apart
from evertide.testing.ledger import delta_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_row_is_to_blame_for_what_spark_says_of_it(spark: SparkSession) -> None:
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"), told_apart(spark.sparkContext):
        spark.sql("SELECT 1 / id FROM range(2)").collect()


def test_what_else_fails_in_the_jvm_is_sparks(spark: SparkSession) -> None:
    with pytest.raises(SparkAway, match="IndexOutOfBoundsException") as away, told_apart(spark.sparkContext):
        spark._jvm.java.util.ArrayList().get(3)
    assert away.value.path == spark.sparkContext.master
    assert "\n" not in str(away.value)


@pytest.mark.parametrize("error", [Py4JNetworkError("closed"), ConnectionRefusedError("nobody is there")])
def test_without_a_jvm_spark_has_ended(spark: SparkSession, error: Exception) -> None:
    with pytest.raises(SparkEnded, match=type(error).__name__), told_apart(spark.sparkContext):
        raise error


def test_without_a_context_spark_has_ended(spark: SparkSession) -> None:
    ended = cast("Any", SimpleNamespace(master="spark://gone:7077", _jsc=None))
    with pytest.raises(SparkEnded, match="spark://gone:7077"), told_apart(ended):
        spark._jvm.java.util.ArrayList().get(3)


def test_a_circuit_goes_on_after_spark_was_away(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the step is taken, no view fails, and the same step may be made again."""
    circuit = Circuit(spark, "CREATE TABLE t (a INT); CREATE MATERIALIZED VIEW v AS SELECT a + 1 AS b FROM t;")
    deltas = {"t": delta_of(pa.table({"a": pa.array([1], pa.int32())}), 1)}

    def lost(*_: object, **__: object) -> None:
        spark._jvm.java.util.ArrayList().get(3)

    with monkeypatch.context() as patch:
        patch.setattr(Stage, "run", lost)
        with pytest.raises(SparkAway):
            circuit.step(deltas)
        with pytest.raises(SparkAway):
            circuit.fails(deltas)
    assert circuit.step(deltas)["v"].to_pylist() == [{"b": 2, "__diff": 1}]


@pytest.mark.parametrize("number", [0, 1])
def test_x12_without_room_for_scratch_files_a_step_may_be_made_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    """Python writes the first file of a run, the JVM the second."""
    circuit = Circuit(spark, "CREATE TABLE t (a INT); CREATE MATERIALIZED VIEW v AS SELECT a + 1 AS b FROM t;")
    deltas = {"t": delta_of(pa.table({"a": pa.array([1], pa.int32())}), 1)}
    made: list[Path] = []

    def full(**_: object) -> tuple[int, str]:
        made.append(tmp_path / str(len(made)))
        if len(made) == number + 1:
            made[-1].symlink_to("/dev/full")
        return os.open(made[-1], os.O_RDWR | os.O_CREAT), str(made[-1])

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", full)
        with pytest.raises(ScratchUnavailable, match="No space left"):
            circuit.step(deltas)
    assert len(made) == 2
    assert not [*tmp_path.iterdir()]
    assert circuit.step(deltas)["v"].to_pylist() == [{"b": 2, "__diff": 1}]
