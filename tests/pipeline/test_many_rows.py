"""X13: a view fails only with many rows together. It leaves its cohort, and everything else goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import evertide as et
from evertide.errors import SparkAway
from evertide.plan.fragment.fragment import Fragment, Term
from tests.pipeline.kit import crash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = """
CREATE TABLE t (k INT NOT NULL, s STRING, PRIMARY KEY (k));
CREATE MATERIALIZED VIEW good AS SELECT count(*) AS n FROM t;
CREATE MATERIALIZED VIEW bad AS SELECT k, upper(s) AS s FROM t;
CREATE MATERIALIZED VIEW onbad AS SELECT max(s) AS s FROM bad;
"""
SETTINGS = et.Settings(retry_view_s=0.001, retry_wait_max_s=0.001)
MANY = [{"k": k, "s": f"a{k}"} for k in range(150)]


@contextmanager
def failing_above_100_rows(fail: Callable[[], object]) -> Iterator[None]:
    """Only of `bad`, which reads texts."""
    real = Fragment.run

    def run(fragment: Fragment, terms: Sequence[Term], **how: Any) -> pa.Table:
        read = [leaf for _, leaves in terms for leaf in leaves if pa.string() in leaf.schema.types]
        if sum(leaf.num_rows for leaf in read) > 100:
            fail()
        return real(fragment, terms, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fragment, "run", run)
        yield


@pytest.fixture
def opened(spark: SparkSession, tmp_path: Path) -> Callable[[], et.Pipeline]:
    return lambda: et.Pipeline.open(SCRIPT, tmp_path / "s", spark=spark, settings=SETTINGS)


def refuse() -> None:
    raise pa.ArrowInvalid("offset overflow while concatenating arrays")


def failed(p: et.Pipeline) -> dict[str, str]:
    return {one.name: one.why for one in p.status().collections if one.state == "failed"}


def check_failed(p: et.Pipeline, why: str) -> None:
    assert p.view("good").to_pylist() == [{"n": 150}]
    assert failed(p).keys() == {"bad", "onbad"}
    assert all(why in one and "of the 150 rows together" in one for one in failed(p).values()), failed(p)
    assert p.status().state == "running"


def check_recovered(p: et.Pipeline, rows: int) -> None:
    assert not failed(p)
    assert p.view("bad").to_arrow().num_rows == rows
    assert p.view("good").to_pylist() == [{"n": rows}]


def test_x13_a_python_error_with_many_rows_fails_its_views_alone(opened: Callable[[], et.Pipeline]) -> None:
    """The pipeline ended, and all later starts with it."""
    with failing_above_100_rows(refuse):
        with opened() as p:
            p.push("t", MANY)
            p.commit()
            check_failed(p, "offset overflow")
        with opened() as p:
            check_failed(p, "offset overflow")
            p.push("t", deletes=list(range(60)))
            p.commit()
            p.wait_until_hydrated()
            check_recovered(p, 90)


def test_x13_a_step_that_spark_never_finishes_fails_its_views_at_the_third_try(
    spark: SparkSession, opened: Callable[[], et.Pipeline]
) -> None:
    """The transaction was retried for ever, and no view advanced."""
    with opened() as p, failing_above_100_rows(lambda: spark._jvm.java.util.ArrayList().get(3)):
        p.push("t", MANY)
        for attempt in (p.commit, p.advance):
            with pytest.raises(SparkAway, match="IndexOutOfBoundsException"):
                attempt()
        assert p.advance() == p.time == 1
        check_failed(p, "IndexOutOfBoundsException")
        p.push("t", deletes=list(range(60)))
        p.commit()
        p.wait_until_hydrated()
        check_recovered(p, 90)


def test_x13_a_view_that_spark_never_finished_is_retried_on_request(
    spark: SparkSession, opened: Callable[[], et.Pipeline]
) -> None:
    """After the executors got more memory, for example."""
    with opened() as p:
        with failing_above_100_rows(lambda: spark._jvm.java.util.ArrayList().get(3)):
            p.push("t", MANY)
            for attempt in (p.commit, p.advance):
                with pytest.raises(SparkAway):
                    attempt()
            p.advance()
            with pytest.raises(SparkAway):
                p.retry("bad")
            check_failed(p, "IndexOutOfBoundsException")
        p.retry("bad")
        p.retry("onbad")
        check_recovered(p, 150)


def test_x13_opening_ends_though_spark_never_finishes_a_step(
    spark: SparkSession, opened: Callable[[], et.Pipeline]
) -> None:
    """Each try of opening has new circuits, which know nothing of the earlier ones."""
    with failing_above_100_rows(lambda: spark._jvm.java.util.ArrayList().get(3)):
        p = opened()
        p.push("t", MANY)
        with pytest.raises(SparkAway):
            p.commit()
        crash(p)
        with opened() as p:
            assert p.time == 1
            check_failed(p, "IndexOutOfBoundsException")
