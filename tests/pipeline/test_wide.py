"""X1, X15: views that are added to a pipeline are computed by executors, beside what else happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import evertide as et
from evertide.flow.wide.outlets import EXCHANGE
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.spark_engine import SparkEngine
from evertide.plan.catalyst.session import open_session
from evertide.plan.fragment import fragment
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.blobs.local import LocalBlob
from evertide.store.open import Storage
from evertide.store.paths import state_prefix
from tests.pipeline.kit import storage as make_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, PRIMARY KEY (id));
CREATE TABLE notes (text STRING);
"""
VIEWS = {
    "revenue": "SELECT customer, sum(amount) AS total, max(amount) AS top FROM orders GROUP BY customer",
    "noted": "SELECT o.id, n.text FROM orders o JOIN notes n ON n.text = concat('n', o.id)",
    "ranked": "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount, id) AS place FROM orders",
    "best": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 3",
    "big": "SELECT customer FROM revenue WHERE total > 100",
}
SCRIPT = TABLES + "".join(f"CREATE MATERIALIZED VIEW {name} AS {query};\n" for name, query in VIEWS.items())
SHARE = "CREATE MATERIALIZED VIEW share AS SELECT id, 100 div amount AS share FROM orders;\n"
WIDE = Settings(wide_rows_min=1)


@contextmanager
def always_on_executors() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragment, "ROWS_SMALL_MAX", 0)
        yield


def make_pipeline(store: Storage, spark: SparkSession, script: str) -> et.Pipeline:
    return Pipeline(
        SparkEngine(open_session(spark), script),
        store,
        base=Path(),
        runtime=SystemRuntime(),
        settings=WIDE,
        threads=False,
    )


def push_orders(p: et.Pipeline) -> None:
    """Rows that are added, replaced and deleted."""
    p.push("orders", [{"id": i, "customer": f"c{i % 5}", "amount": i} for i in range(60)])
    p.push("notes", [{"text": f"n{i % 7}"} for i in range(30)])
    p.commit()
    p.push("orders", [{"id": i, "customer": None, "amount": 1000 + i} for i in range(0, 60, 6)])
    p.push("orders", deletes=[1, 2, 3])
    p.commit()


def read(p: et.Pipeline, view: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in p.view(view).to_pylist()), key=repr)


def count_wide_runs(p: et.Pipeline) -> int:
    return sum(view.run_counts.wide for each in p.explain() for view in each.views)


def list_state(storage: Path, *, exchanged: bool = False) -> set[str]:
    prefix = f"{state_prefix()}{EXCHANGE}/" if exchanged else state_prefix()
    return {entry.key for entry in LocalBlob(storage).list(prefix)}


def test_added_views_are_computed_by_executors(spark: SparkSession, tmp_path: Path) -> None:
    storage = tmp_path / "shop.evertide"
    with et.Pipeline.open(TABLES, storage, spark=spark) as p:
        push_orders(p)
    with always_on_executors(), et.Pipeline.open(SCRIPT, storage, spark=spark, settings=WIDE) as p:
        assert p.wait_until_hydrated(120)
        assert count_wide_runs(p) > 0
        for name, query in VIEWS.items():
            expected = sorted((tuple(row.values()) for row in p.query(query).to_pylist()), key=repr)
            assert read(p, name) == expected, name
        p.push("orders", [{"id": 7, "customer": "c1", "amount": 5000}, {"id": 99, "customer": "c9", "amount": 3}])
        p.push("orders", deletes=[0, 4])
        p.commit()
        p.checkpoint()
    with et.Pipeline.open(SCRIPT, storage, spark=spark) as p:
        for name, query in VIEWS.items():
            expected = sorted((tuple(row.values()) for row in p.query(query).to_pylist()), key=repr)
            assert read(p, name) == expected, name
    assert not list_state(storage, exchanged=True)


def test_x13_a_view_that_fails_on_executors_fails_as_in_the_driver(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = tmp_path / "shop.evertide"
    with et.Pipeline.open(TABLES, storage, spark=spark) as p:
        push_orders(p)
        p.push("orders", [{"id": 500, "customer": "zero", "amount": 0}])
        p.commit()
    with always_on_executors(), et.Pipeline.open(SCRIPT + SHARE, storage, spark=spark, settings=WIDE) as p:
        assert p.wait_until_hydrated(120)
        [failed] = [one for one in p.status().collections if one.state == "failed"]
        assert failed.name == "share"
        assert "DIVIDE_BY_ZERO" in failed.why
        assert "'id': 500" in failed.why
        assert "executors could not compute" in caplog.text
        p.push("orders", deletes=[500])
        p.commit()
        p.retry("share")
        assert len(read(p, "share")) == len(read(p, "ranked"))


def test_the_driver_computes_views_if_executors_cannot_use_the_storage(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_storage()
    with make_pipeline(store, spark, TABLES) as p:
        push_orders(p)
    with always_on_executors(), make_pipeline(store, spark, SCRIPT) as p:
        assert p.wait_until_hydrated(120)
        assert count_wide_runs(p) == 0
        assert len(read(p, "ranked")) == 57
    assert "views are computed in the driver, without executors" in caplog.text
    assert "only this process can use the storage" in caplog.text


def test_few_rows_are_computed_in_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    storage = tmp_path / "shop.evertide"
    with et.Pipeline.open(TABLES, storage, spark=spark) as p:
        push_orders(p)
    with always_on_executors(), et.Pipeline.open(SCRIPT, storage, spark=spark) as p:
        assert p.wait_until_hydrated(120)
        assert count_wide_runs(p) == 0
