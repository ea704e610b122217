"""`spark.read.format("evertide")` with its options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.runtime import SystemRuntime
from evertide.store.open import open_storage
from tests.datasource.kit import BLOBS, NAMES, THINGS, History, content, grow, opened
from tests.pipeline.test_evolution import fill_storage, redefined

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with opened(tmp_path_factory.mktemp("asked") / "s") as p:
        yield grow(p, 11, 12)


def load(spark: SparkSession, history: History, name: str, **options: object) -> DataFrame:
    given = {"storage": history.root} | {one: str(value) for one, value in options.items()}
    return spark.read.format("evertide").options(**given).load(name)


def test_every_collection_has_its_types(spark: SparkSession, history: History) -> None:
    last = max(history.at)
    for name in NAMES:
        frame = load(spark, history, name)
        assert content(frame.toArrow().to_pylist()) == content(history.at[last][name])
        assert frame.schema == spark.createDataFrame(history.pipeline.view(name).to_arrow()).schema
    earlier = load(spark, history, "things", as_of=last - 2, partition_bytes=6000)
    assert content(earlier.toArrow().to_pylist()) == content(history.at[last - 2]["things"])
    assert earlier.rdd.getNumPartitions() > 1
    assert load(spark, history, "evertide_errors").count() == 0


def test_columns_of_changes_have_the_same_names_as_elsewhere(spark: SparkSession, history: History) -> None:
    last = max(history.at)
    found = load(spark, history, "things", changes_after=last - 4, as_of=last - 1)
    assert found.columns == [*THINGS.schema.names, "__time", "__diff"]
    known = history.pipeline.view("things").as_of(last - 1).changes(since=last - 4)
    assert content(found.toArrow().to_pylist()) == content(known.to_pylist())


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_filters_of_one_query_do_not_reach_another_over_the_same_dataframe(
    spark: SparkSession, history: History, enabled: str
) -> None:
    """Spark 4.3 keeps a pushed filter for all later reads of a DataFrame: they must not miss rows."""
    rows = history.at[max(history.at)]["things"]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        frame = load(spark, history, "things", partition_bytes=10000)
        few = frame.where("id < 5")
        assert few.count() == sum(row["id"] < 5 for row in rows)
        assert frame.count() == len(rows)
        assert few.union(frame.where("id >= 5")).count() == len(rows)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_options_select_rows_and_columns(spark: SparkSession, history: History) -> None:
    frame = load(spark, history, "things", columns="weight,id", where="id >= 10 AND weight > 0")
    rows = history.at[max(history.at)]["things"]
    expected = [{"weight": row["weight"], "id": row["id"]} for row in rows if row["id"] >= 10 and row["weight"]]
    expected = [row for row in expected if not row["weight"] <= 0]
    assert expected
    assert frame.columns == ["weight", "id"]
    assert content(frame.toArrow().to_pylist()) == content(expected)
    whole = load(spark, history, "things").where("id >= 10 AND weight > 0").select("weight", "id")
    assert content(whole.toArrow().to_pylist()) == content(expected)


def test_a_dataframe_stays_at_its_time(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path / "s") as p:
        history = grow(p, 12, 5)
        frame = load(spark, history, "things")
        before = max(history.at)
        for _ in range(3):
            history.step()
        assert frame.count() == len(history.at[before]["things"])
        history.forget(history.step())
        history.compact()
        history.collect_garbage()
        assert frame.join(frame.select("id"), "id").count() == len(history.at[before]["things"])


def test_the_format_works_in_sql_and_registered_by_hand(spark: SparkSession, history: History) -> None:
    from evertide.datasource.source import EvertideSource  # noqa: PLC0415 - pyspark

    spark.dataSource.register(EvertideSource)
    text = f"CREATE OR REPLACE TEMPORARY VIEW asked USING evertide OPTIONS (storage '{history.root}', collection 'bag')"
    spark.sql(text)
    [row] = spark.sql("SELECT count(*) AS n FROM asked").collect()
    assert row.n == len(history.at[max(history.at)]["bag"])
    spark.catalog.dropTempView("asked")


REFUSED: dict[str, tuple[str, dict[str, object], str]] = {
    "unknown": ("orders", {}, "no such collection; it has bag, counts, evertide_errors, loose, things"),
    "no name": ("", {}, "the option 'collection' is missing; set it, for example to 'revenue'"),
    "two names": ("bag", {"collection": "things"}, "is 'things', but the argument of load() is 'bag'"),
    "misspelt": ("bag", {"asof": 3}, "connector 'evertide' has no option 'asof'; did you mean 'as_of'?"),
    "no number": ("bag", {"as_of": "now"}, "the option 'as_of' is 'now': expected a whole number of at least 0"),
    "too late": ("bag", {"as_of": 10**6}, "is not committed yet; the last time is"),
    "too early": ("bag", {"as_of": 0}, "earlier times were merged"),
    "backwards": ("bag", {"changes_after": 9, "as_of": 5}, "is 9, but 'as_of' is 5"),
    "no column": ("bag", {"columns": "word, weight"}, "the collection has no column 'weight'; it has word, n"),
    "twice": ("bag", {"columns": "n, N"}, "the option 'columns' repeats"),
    "no condition": ("bag", {"where": "n LIKE 1"}, "'LIKE': expected conditions with"),
    "no storage": ("bag", {"storage": "/nowhere/at/all"}, "no storage here: the directory does not exist"),
    "no secret": ("bag", {"meta": "postgresql://${ENV:NOT_SET}@h/d"}, "the environment has no variable 'NOT_SET'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_options_are_refused_on_load(spark: SparkSession, history: History, case: str) -> None:
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - pyspark

    name, options, why = REFUSED[case]
    with pytest.raises(AnalysisException) as caught:
        load(spark, history, name, **options)
    text = str(caught.value)
    assert why in text
    assert "correct the input and retry" in text or "Read at that time or later" in text
    assert text.count("File ") <= 2  # none of our inner frames


def test_a_password_is_never_shown(spark: SparkSession, history: History) -> None:
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - pyspark

    meta = "postgresql://u:tell-nobody@127.0.0.1:1/d?connect_timeout=1"
    with pytest.raises(AnalysisException) as caught:
        load(spark, history, "bag", meta=meta + "&nonsense=1")
    assert "tell-nobody" not in str(caught.value)


def test_a_user_defined_schema_is_refused(spark: SparkSession, history: History) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - pyspark

    given = spark.read.format("evertide").option("storage", history.root)
    assert given.schema("word STRING, n INT").load("bag").count() == len(history.at[max(history.at)]["bag"])
    with pytest.raises(PySparkException, match=r"the columns are struct<word:string,n:int>; omit schema\(\)"):
        given.schema("word STRING, n BIGINT").load("bag").count()


def test_a_view_whose_query_changed_is_refused_until_it_is_computed(spark: SparkSession, tmp_path: Path) -> None:
    """A DataFrame from before the change keeps its rows. Fails if one over the stored rows is made after it."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - pyspark

    root = tmp_path / "s"
    fill_storage(kept=open_storage(root, runtime=SystemRuntime(), settings=BLOBS))
    shop = spark.read.format("evertide").option("storage", str(root))
    before = shop.load("revenue")
    kept = open_storage(root, runtime=SystemRuntime(), settings=BLOBS)
    with redefined(kept, "another query") as (p, may_go_on):
        with pytest.raises(AnalysisException, match=r"its query changed, and the view is hydrating; wait until"):
            shop.load("revenue")
        old = [{"customer": "ann", "amount": 10}]
        assert [row.asDict() for row in before.collect()] == old
        earlier = spark.read.format("evertide").option("storage", str(root)).option("as_of", 4).load("revenue")
        assert [row.asDict() for row in earlier.collect()] == old
        may_go_on.set()
        assert p.wait_until_hydrated(20)
        assert [row.asDict() for row in shop.load("revenue").collect()] == [{"customer": "all", "amount": 1}]
        assert [row.asDict() for row in before.collect()] == old


def test_the_error_of_a_task_names_the_missing_part(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - pyspark

    with opened(tmp_path / "s") as p:
        history = grow(p, 13, 5)
        for path in (tmp_path / "s" / "parts").rglob("*.parquet"):
            path.unlink()
        with pytest.raises(PySparkException, match=r"blob .* is missing"):
            load(spark, history, "things").count()
        p.close(checkpoint=False)
