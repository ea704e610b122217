"""X7 with circuits on Spark: a replay detects a checkpoint whose state lacks a row, and the state is recomputed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import evertide as et
from evertide.pipeline.spark_engine import SparkCohort
from evertide.pipeline.state.divergence import list_divergences
from evertide.rows.changes import DIFF
from tests.pipeline.kit import crash
from tests.pipeline.test_divergence import evidence

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

REVENUE = """SELECT c.city, sum(o.amount) AS total, max(o.amount) AS top
FROM orders o JOIN customers c ON o.customer = c.name GROUP BY c.city"""
SCRIPT = f"""
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount INT, PRIMARY KEY (id));
CREATE TABLE customers (name STRING, city STRING);
CREATE MATERIALIZED VIEW revenue AS {REVENUE};
CREATE MATERIALIZED VIEW large AS SELECT id FROM orders WHERE amount > 10;
"""


def change_state(p: et.Pipeline, sign: int) -> None:
    """Remove the customer ann from the state of the join, as a bug or damaged memory would; or add her again."""
    [cohort] = p._runner.machine.cohorts
    assert isinstance(cohort, SparkCohort)
    [kept] = [one for name, one in cohort.circuit.arrangements.items() if name.startswith("customers.")]
    [name] = [column for column in kept.schema.names if column in kept.key]
    [other] = [column for column in kept.schema.names if column not in kept.key]
    row = pa.table({name: ["ann"], other: ["Oslo"], DIFF: pa.array([sign], pa.int64())})
    kept.apply(row.select([*kept.schema.names, DIFF]).cast(pa.schema([*kept.schema, row.schema.field(DIFF)])))


def order(number: int, customer: str = "ann") -> dict[str, Any]:
    return {"id": number, "customer": customer, "amount": 5 * number}


def check(p: et.Pipeline) -> None:
    """Compare the views with Spark's result over the tables."""
    expected = p.query(f"{REVENUE} ORDER BY city").to_pylist()
    found = p.view("revenue").to_arrow().sort_by("city").to_pylist()
    assert found == expected
    assert sorted(row["id"] for row in p.view("large").to_pylist()) == sorted(
        row["id"] for row in p.query("SELECT id FROM orders WHERE amount > 10").to_pylist()
    )


def test_x7_a_circuit_whose_checkpoints_lack_a_row_is_discarded_and_recomputed(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept = tmp_path / "s"
    with et.Pipeline.open(SCRIPT, kept, spark=spark) as p:
        p.push("customers", [{"name": "ann", "city": "Oslo"}, {"name": "bob", "city": "Rome"}])
        p.push("orders", [order(1), order(2, "bob")])
        p.commit()
        for number in (3, 4):  # both checkpoints are wrong
            p.push("orders", [order(number, "bob")])
            p.commit()
            change_state(p, -1)
            p.checkpoint()
            change_state(p, 1)
        p.push("orders", [order(5)])
        diverges = p.commit()
        check(p)
        crash(p)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("evertide.pipeline.backfill.scheduler.BackfillScheduler._start", lambda *_: None)
        with et.Pipeline.open(SCRIPT, kept, spark=spark) as p:
            found = [one for one in p.status().problems if one.error_code == "state_diverged"]
            assert len(found) == 2
            assert all(one.state == "warning" and "evidence/" in one.why for one in found)
            states = {one.name: one.state for one in p.status().collections if one.kind == "view"}
            assert states == {"revenue": "hydrating", "large": "hydrating"}
            p.push("orders", [order(6)])
            p.commit()
            crash(p)
    with et.Pipeline.open(SCRIPT, kept, spark=spark) as p:
        assert p.wait_until_hydrated(60)
        check(p)
        p.push("orders", [order(7), order(8, "bob")], deletes=[1])
        p.commit()
        check(p)
        assert pc.sum(p.view("revenue").to_arrow().column("total")).as_py() == 5 * (2 + 3 + 4 + 5 + 6 + 7 + 8)
        assert p.status().state == "running"
        assert not list_divergences(p.definition)
        [told] = evidence(p.storage)
    assert set(told.views) == {"revenue", "large"}
    assert told.transaction == diverges
    assert "rows, digest" in told.why
    assert told.state
    assert told.versions["pyspark"]
