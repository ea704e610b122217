"""V7: texts that are not valid UTF-8. Views keep their bytes in every operator, as Spark does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import evertide as et
from evertide.cli.recompute import recompute_views
from evertide.plan.fragment import fragment
from evertide.rows.utf8 import convert_texts_to_bytes
from tests.pipeline.kit import crash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = {
    "texts": "SELECT id, CAST(raw AS STRING) AS s FROM t",
    "grouped": "SELECT CAST(raw AS STRING) AS s, count(*) AS n, sum(id) AS total FROM t GROUP BY 1",
    "extremes": "SELECT id % 2 AS k, min(s) AS low, max(s) AS high FROM texts GROUP BY 1",
    "collected": "SELECT sort_array(collect_list(CAST(raw AS STRING))) AS l, "
    "count(DISTINCT CAST(raw AS STRING)) AS n FROM t",
    "joined": "SELECT a.id, b.id AS other, a.s FROM texts a JOIN texts b ON a.s = b.s",
    "first": "SELECT s FROM texts ORDER BY s, id LIMIT 3",
    "numbered": "SELECT s, row_number() OVER (PARTITION BY s ORDER BY id) AS n FROM texts",
    "distinct": "SELECT DISTINCT substring(s, 1, 2) AS s, upper(s) AS u FROM texts WHERE s LIKE '%c'",
    "nested": "SELECT id, map(s, s) AS m, struct(s) AS x FROM texts",
}
SCRIPT = "CREATE TABLE t (id BIGINT NOT NULL, raw BINARY, PRIMARY KEY (id));" + "".join(
    f"CREATE MATERIALIZED VIEW {name} AS {text};" for name, text in QUERIES.items()
)
RAW = [b"\xff\xfe\x80abc", b"abc", b"\xfe\xfe\x80abc", b"\xef\xbf\xbdabc", b"\xff\xfe\x80abc", b"\xe2\x82", b""]


def rows_of(rows: pa.Table) -> Counter[str]:
    return Counter(map(repr, convert_texts_to_bytes(rows).to_pylist()))


@pytest.mark.parametrize("rows_small_max", [fragment.ROWS_SMALL_MAX, 0], ids=["small runs", "large runs"])
def test_v7_views_keep_the_bytes(
    spark: SparkSession, tmp_path: Path, rows_small_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a value passes through a Python str, or if two different texts count as one."""
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", rows_small_max)
    with et.Pipeline.open(SCRIPT, tmp_path / "s", spark=spark) as p:
        p.push("t", [{"id": at, "raw": raw} for at, raw in enumerate(RAW)])
        p.commit()
        assert convert_texts_to_bytes(p.view("texts").to_arrow()).column("s").to_pylist().count(RAW[0]) == 2
        p.push("t", [{"id": 1, "raw": b"\x80"}, {"id": 9, "raw": b"\xfd"}], deletes=[{"id": 0}, {"id": 2}])
        time = p.commit()
        assert [one.why for one in p.status().collections if one.state == "failed"] == []
        for name, query in QUERIES.items():
            assert rows_of(p.view(name).to_arrow()) == rows_of(p.query(query)), name
        assert all(one.is_same for one in recompute_views(p, {"texts": QUERIES["texts"]}, time))
        assert {row["s"] for row in p.view("texts").to_pylist()} == {"\ufffd", "\ufffdabc", "\ufffd\ufffd\ufffdabc", ""}
        p.checkpoint()
        crash(p)
    with et.Pipeline.open(SCRIPT, tmp_path / "s", spark=spark) as p:
        p.push("t", deletes=[{"id": 4}])
        p.commit()
        for name, query in QUERIES.items():
            assert rows_of(p.view(name).to_arrow()) == rows_of(p.query(query)), name


def test_v7_the_error_of_a_view_quotes_such_a_row(spark: SparkSession, tmp_path: Path) -> None:
    """Fails with a UnicodeDecodeError in place of the view's own error."""
    script = """
    CREATE TABLE t (id BIGINT NOT NULL, s STRING, PRIMARY KEY (id));
    CREATE MATERIALIZED VIEW shares AS SELECT s, 100 DIV id AS share FROM t;
    """
    with et.Pipeline.open(script, tmp_path / "s", spark=spark) as p:
        p.push("t", pa.table({"id": [0], "s": pa.array(RAW[:1], pa.binary()).view(pa.string())}))
        p.commit()
        [failed] = [one for one in p.status().collections if one.state == "failed"]
        assert "DIVIDE_BY_ZERO" in failed.why
        assert "\ufffd\ufffd\ufffdabc" in failed.why
