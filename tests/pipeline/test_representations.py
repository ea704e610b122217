"""How pipelines, views, statuses and explanations show in an editor, a terminal and a notebook."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import evertide as et
from evertide.errors import Closed, EvertideError
from tests.pipeline.kit import crash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOP = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount DECIMAL(10, 2), PRIMARY KEY (id));
CREATE MATERIALIZED VIEW revenue AS SELECT customer, sum(amount) AS total FROM orders GROUP BY customer;
"""


def test_the_module_lists_its_api_and_nothing_else() -> None:
    assert set(dir(et)) == set(et.__all__)
    assert all(getattr(et, name) is not None for name in dir(et))


def test_rows_come_from_and_go_to_every_frame(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with et.Pipeline.open(SHOP, tmp_path / "s", spark=spark) as p:
        assert repr(p) == f"<Pipeline on {tmp_path / 's'}: open, time 0>"
        p.push("orders", pd.DataFrame({"id": [1, 2], "customer": ["ann", None], "amount": ["1.50", "2.00"]}))
        p.push("orders", pl.DataFrame({"id": [3], "customer": ["<b>eve</b>"], "amount": [4]}))
        p.push("orders", [{"id": 4, "customer": "dan", "amount": 1}], deletes=pd.DataFrame({"id": [9]}))
        p.push("orders", spark.createDataFrame([(5, "ann", 1)], "id BIGINT, customer STRING, amount INT"))
        time = p.commit()
        view, table = p.view("revenue"), p.table("orders")
        assert isinstance(view, et.View)
        assert repr(view) == f"<View revenue at time {time}: customer, total>"
        assert repr(table) == f"<Table orders at time {time}: id, customer, amount>"
        assert sorted(view.to_pandas()["total"].astype(str)) == ["1.00", "2.00", "2.50", "4.00"]
        assert (
            view.to_polars().height == view.to_spark().count() == sum(each.num_rows for each in view.to_batches()) == 4
        )
        table.show(2)
        found = capsys.readouterr().out
        assert found.startswith(f"Table orders at time {time}: the first 2 rows\nid  customer  amount\n")
        assert len(found.splitlines()) == 4
        html = view._repr_html_()
        assert "&lt;b&gt;eve&lt;/b&gt;" in html
        assert "<b>eve" not in html
        assert "NULL" in html
        result = p.sql("SELECT customer, customer, total FROM revenue WHERE total > 2.2 ORDER BY total")
        assert repr(result) == f"<Query at time {time}: 2 rows of customer, customer, total>"
        assert result._repr_html_().count("<tr>") == 3
        assert result.to_pylist()[-1]["total"] == p.query("SELECT max(total) AS m FROM revenue").column(0)[0].as_py()
        assert p.sql("SELECT 1 AS one").to_pylist() == [{"one": 1}]
        assert p.sql("SELECT count(*) AS n FROM orders", as_of=0).time == 0


def test_python_prints_the_line_of_a_query_below_its_error(spark: SparkSession, tmp_path: Path) -> None:
    with et.Pipeline.open(SHOP, tmp_path / "s", spark=spark) as p:
        with pytest.raises(et.errors.InvalidInput) as refused:
            p.sql("SELECT id,\n       custmer\nFROM orders")
        error, *marked = traceback.format_exception_only(refused.value)
        assert "query:2:8: no column 'custmer' in 'orders'; did you mean 'customer'? Nothing was changed" in error
        assert marked == ["  2 |        custmer\n", "    |        ^\n"]
        with pytest.raises(et.errors.InvalidInput, match="query:1:15: no table or view 'ordrs'; did you mean 'orders'"):
            p.query("SELECT * FROM ordrs")


def test_a_view_that_is_not_materialized_is_named_as_such(spark: SparkSession, tmp_path: Path) -> None:
    def big(session: SparkSession) -> DataFrame:
        return session.table("orders").where("amount > 10")

    script = SHOP + "CREATE VIEW small AS SELECT * FROM orders WHERE amount < 10;"
    with et.Pipeline.open(script, tmp_path / "s", spark=spark, functions=[et.temporary_view(big)]) as p:
        for name in ("small", "BIG"):
            with pytest.raises(et.errors.InvalidInput, match="the view is not materialized"):
                p.view(name)
            with pytest.raises(et.errors.InvalidInput, match=f"query:1:15: '{name}' cannot be read: the view is not"):
                p.sql(f"SELECT * FROM {name}")


def test_a_status_and_an_explanation_are_tables(spark: SparkSession, tmp_path: Path) -> None:
    with et.Pipeline.open(SHOP, tmp_path / "s", spark=spark) as p:
        p.push("orders", [{"id": 1, "customer": "ann", "amount": 1}])
        p.commit()
        lines = repr(p.status()).splitlines()
        assert lines[0].startswith("running since ")
        assert [line.split()[:3] for line in lines if line.startswith(("orders ", "revenue "))] == [
            ["orders", "table", "running"], ["revenue", "view", "running"],
        ]  # fmt: skip
        html = p._repr_html_()
        assert html is not None
        assert "<table>" in html
        assert "revenue" in html
        assert "sum" in repr(p.explain())
        assert p.explain()._repr_html_().count("<table>") == 1
    assert repr(p) == f"<Pipeline on {tmp_path / 's'}: closed>"


def test_a_representation_never_fails(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    p = et.Pipeline.open(SHOP, tmp_path / "s", spark=spark)
    try:
        view = p.view("revenue")

        def fail(*_: object) -> None:
            raise Closed(where="the pipeline")

        monkeypatch.setattr(p.collections, "resolve_time", fail)
        assert repr(view) == "<View revenue: the pipeline is closed>"
    finally:
        crash(p)


def test_a_frame_that_does_not_fit_is_refused_as_a_whole(spark: SparkSession, tmp_path: Path) -> None:
    with et.Pipeline.open(SHOP, tmp_path / "s", spark=spark) as p:
        with pytest.raises(EvertideError, match="table 'orders', row 2, column 'amount'"):
            p.push("orders", pd.DataFrame({"id": [1, 2], "amount": ["1", "many"]}))
        with pytest.raises(EvertideError, match="expected a list of mappings, Arrow data or a data frame"):
            p.push("orders", {"id": 1})
        p.commit()
        assert p.view("orders").to_arrow() == pa.schema(p.view("orders").schema).empty_table()
