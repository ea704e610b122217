"""A query, or the query of a view, finds or refuses what it reads in every place where a subquery can stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import ParseException

from evertide.errors import InvalidInput
from evertide.plan.query.query import list_relations, make_frame, run_query
from evertide.plan.script.catalog import SparkCatalog
from evertide.plan.script.statements import DeclaredColumn, TableStatement, ViewStatement, remove_streams
from tests.plan.query_places import HIDDEN, PLACES, REFUSED_RELATIONS, TRANSFORMED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.parametrize("relation", [HIDDEN, *REFUSED_RELATIONS])
def test_a_query_lists_the_relations_of_all_places(spark: SparkSession, relation: str) -> None:
    """The server loads them, and refuses names that it does not know. Fails if the walk knows only Spark's
    `subqueries`: they do not include those of SET, of named windows, and of FILTER after IDENTIFIER()."""
    for place in PLACES:
        found = list_relations(spark, place.format(relation=relation))
        assert relation.replace("`", "") in found, place


def test_a_query_with_a_program_is_refused_in_all_places(spark: SparkSession) -> None:
    """Fails as well if the walk knows only Spark's `subqueries`."""
    for place in PLACES:
        if "TABLE {relation}" not in place:  # only a name can stand there
            with pytest.raises(InvalidInput, match="ScriptTransformation is not allowed"):
                list_relations(spark, place.format(relation=TRANSFORMED))


@pytest.mark.parametrize(
    ("relation", "why"),
    [
        *(
            (each, f"the query reads {each.replace('`', '')}, which is not a table or view")
            for each in REFUSED_RELATIONS
        ),
        (TRANSFORMED, "TRANSFORM ... USING runs a program"),
    ],
)
def test_a_view_refuses_what_is_not_of_the_pipeline_in_all_places(spark: SparkSession, relation: str, why: str) -> None:
    """Fails if only the analyzed plan is checked: Spark reads files to analyze a query, and it drops windows without a
    reader, so that such a view was accepted."""
    catalog = SparkCatalog(spark)
    columns = (DeclaredColumn("id", '"long"'), DeclaredColumn("x", '"long"'))
    catalog.add_table(TableStatement("a", columns, (), "", {}, {}, "", False, "SQL, line 1"))
    for place in PLACES:
        if relation is not TRANSFORMED or "TABLE {relation}" not in place:
            view = ViewStatement("v", place.format(relation=relation), True, {}, "", "SQL, line 1")
            with pytest.raises(InvalidInput) as refused:
                catalog.add_view(view)
            assert why in refused.value.why, place


def test_the_keyword_stream_is_removed_in_all_places(spark: SparkSession) -> None:
    """Fails if the walk knows only Spark's `subqueries`."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    for place in PLACES:
        if "TABLE {relation}" not in place and not place.startswith("FROM {relation}"):
            try:
                parser.parsePlan(place.format(relation="STREAM hidden"))
            except ParseException:
                continue
            assert remove_streams(parser, place.format(relation="STREAM hidden")) == place.format(relation="hidden")


def test_subqueries_of_set_and_of_named_windows_are_computed(spark: SparkSession) -> None:
    """Fails with an unknown table if only some collections are loaded."""
    tables = {"a": pa.table({"id": [1, 2], "x": [5, 6]}), "b": pa.table({"y": [3, 8]})}

    def load(session: SparkSession, names: Sequence[str]) -> Mapping[str, DataFrame]:
        return {name: make_frame(session, tables[name]) for name in names}

    found = run_query(spark, "FROM a |> SET x = (SELECT max(y) FROM b) |> ORDER BY id", load)
    assert found.to_pylist() == [{"id": 1, "x": 8}, {"id": 2, "x": 8}]
    text = "SELECT sum(x) OVER w AS s FROM a WINDOW w AS (ORDER BY x + (SELECT max(y) FROM b)) ORDER BY id"
    assert run_query(spark, text, load).column("s").to_pylist() == [5, 11]
