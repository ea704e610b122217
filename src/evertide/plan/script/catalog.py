"""The tables and views of a pipeline for Spark's analyzer.

The catalog is a clone of the user's session: it has its settings and registered functions, but not its temporary
views, and changes of the clone do not affect the user's session.

1. A table, and a materialized view for its readers, is a leaf: an empty relation with an explicit schema. It survives
   the optimizer (which would remove an empty local relation), keeps NOT NULL, and is identified in a plan by the id of
   its RDD. A CHAR column is a STRING with metadata, by which Spark's analyzer pads comparisons.
2. A plain or temporary view is a name for a query, which becomes part of the queries that read it.
3. A query is analyzed and optimized once, when it is declared. Errors about unknown names say where they are.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from evertide.errors import InvalidInput, SparkEnded
from evertide.plan.catalyst.failure import classify_error, describe_error
from evertide.plan.catalyst.parsed import walk_parsed
from evertide.plan.catalyst.session import RULE_OF_LIMIT, TOP_SETTINGS
from evertide.plan.catalyst.walk import get_kind, read_list, read_option, walk_nodes
from evertide.plan.query.spark_errors import explain_error, find_offset, find_relations
from evertide.plan.script.script_errors import QueryText
from evertide.plan.script.statements import TableStatement, ViewStatement
from evertide.rows.char_types import SPARK_KEY

SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.cbo.enabled": "false",
    "spark.sql.optimizer.excludedRules": ",".join(
        (
            RULE_OF_LIMIT,
            "org.apache.spark.sql.catalyst.optimizer.EliminateSorts",
            "org.apache.spark.sql.catalyst.optimizer.InferWindowGroupLimit",
            "org.apache.spark.sql.catalyst.optimizer.LimitPushDown",
            "org.apache.spark.sql.catalyst.optimizer.LimitPushDownThroughWindow",
            "org.apache.spark.sql.execution.planmerging.MergeSubplans",
        )
    ),
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    **TOP_SETTINGS,
}
"""Rules that make a plan depend on more than the query are off, since a plan must be the same in every session; so are
settings that split small jobs into many stages. MergeSubplans puts the values of several scalar subqueries into one
struct; Evertide shares equal parts itself (`evertide.plan.algebra.sharing`). EliminateSorts would remove the Sort of a
LIMIT that orders by constants; without it, a LIMIT above anything but a Sort is a plan that must be refused."""


_CHAR = re.compile(r"(?<!var)char\(")


@dataclass(frozen=True, slots=True)
class Query:
    """A view's query: its plans in the JVM, and the tables and materialized views that it reads."""

    name: str
    frame: DataFrame
    reads: tuple[str, ...]
    where: str
    text: str = ""
    source: QueryText | None = None
    """The query in the script; None if it is not in a script."""

    def locate(self, *trees: Any) -> str:
        """The position in the script of the first of these operators and expressions that has one."""
        for tree in trees if self.source is not None else ():
            origin = tree.origin()
            start = read_option(origin.startIndex())
            if self.source is not None and start is not None and read_option(origin.sqlText()) == self.text:
                return self.source.locate(self.text, start)
        return f"{self.where}, view {self.name!r}"

    @property
    def analyzed(self) -> Any:
        return self.frame._jdf.queryExecution().analyzed()

    @property
    def optimized(self) -> Any:
        """Raises `InvalidInput` if Spark's optimizer fails on a query that its analyzer accepts."""
        try:
            return self.frame._jdf.queryExecution().optimizedPlan()
        except (PySparkException, Py4JJavaError) as error:
            classified = classify_error(self.frame.sparkSession.sparkContext, error)
            if isinstance(classified, SparkEnded):
                raise classified from error
            why = "Spark's optimizer fails on this query; split it, for example into one subquery per aggregate"
            why = f"{why} with DISTINCT or listagg: {describe_error(error)}"
            raise InvalidInput(where=f"{self.where}, view {self.name!r}", why=why) from error


def _rename_columns(frame: DataFrame, view: ViewStatement) -> DataFrame:
    if len(frame.columns) != len(view.columns):
        why = f"the view names {len(view.columns)} columns, but its query has {len(frame.columns)}"
        raise InvalidInput(where=f"{view.where}, view {view.name!r}", why=why)
    return frame.toDF(*view.columns)


def _read_compared_types(fields: list[dict[str, Any]]) -> dict[str, str]:
    found = {field["name"]: field["metadata"].get(SPARK_KEY, "") for field in fields}
    return {name: kind for name, kind in found.items() if _CHAR.search(kind)}


class FrameView(Protocol):
    """A view whose query is a DataFrame instead of a text."""

    @property
    def name(self) -> str: ...

    @property
    def is_materialized(self) -> bool: ...

    @property
    def where(self) -> str: ...

    def build_frame(self, session: SparkSession, /) -> DataFrame: ...


class SparkCatalog:
    def __init__(self, spark: SparkSession) -> None:
        clone = spark._jsparkSession.cloneSession()
        clone.sessionState().catalog().clearTempTables()
        self.session = SparkSession(spark.sparkContext, jsparkSession=clone)
        for key, value in SETTINGS.items():
            self.session.conf.set(key, value)
        self._leaves: dict[int, str] = {}
        """By the id of the leaf's RDD."""
        self._names: list[str] = []
        """Of the tables and views that were added."""
        self._keys: dict[str, tuple[str, ...]] = {}
        self._compared_types: dict[str, dict[str, str]] = {}

    def add_table(self, table: TableStatement) -> None:
        fields = [
            {
                "name": column.name,
                "type": json.loads(column.declared_type or column.type),
                "nullable": column.nullable,
                "metadata": {},
            }
            for column in table.columns
        ]
        self._keys[table.name] = tuple(name.lower() for name in table.key)
        self._add_leaf(table.name, json.dumps({"type": "struct", "fields": fields}))

    def add_view(self, view: ViewStatement | FrameView) -> Query:
        """Analyze a view's query, and add the view for later queries."""
        frame = self._analyze(view) if isinstance(view, ViewStatement) else view.build_frame(self.session)
        if isinstance(view, ViewStatement) and view.columns:
            frame = _rename_columns(frame, view)
        query = Query(view.name, frame, self._find_reads(frame), view.where)
        if isinstance(view, ViewStatement):
            query = replace(query, text=view.query, source=view.source)
        if view.is_materialized:
            self._add_leaf(view.name, frame.schema.json())
        else:
            frame.createOrReplaceTempView(view.name)
            self._names.append(view.name)
        return query

    def list_compared_types(self, name: str) -> dict[str, str]:
        """By column of a table or materialized view, the type by which Spark pads its comparisons, if it has CHAR."""
        return self._compared_types[name]

    def find_leaf(self, leaf: Any) -> str:
        """The table or materialized view of a leaf of a plan; empty if the leaf has none."""
        if get_kind(leaf) != "LogicalRDD":
            return ""
        return self._leaves.get(leaf.rdd().id(), "")

    def find_key(self, name: str) -> tuple[str, ...]:
        """The primary key of a table, in lower case; empty if it has none."""
        return self._keys.get(name, ())

    def _analyze(self, view: ViewStatement) -> DataFrame:
        try:
            self._refuse_foreign(view)
            return self.session.sql(view.query)
        except AnalysisException as error:
            offset = find_offset(error, view.query) if view.source is not None else None
            where = f"{view.where}, view {view.name!r}"
            if offset is not None and view.source is not None:
                where = view.source.locate(view.query, offset)
            raise InvalidInput(where=where, why=self.explain(error, view.query)) from error
        except Py4JJavaError as error:  # an internal error of Spark's analyzer
            classified = classify_error(self.session.sparkContext, error)
            if isinstance(classified, SparkEnded):
                raise classified from error
            why = f"Spark's analyzer fails on this query; write it in another form: {describe_error(error)}"
            raise InvalidInput(where=f"{view.where}, view {view.name!r}", why=why) from error

    def _refuse_foreign(self, view: ViewStatement) -> None:
        """Refuse what Spark would read or run while it analyzes the query, and what its analyzer may drop unseen."""
        for node in walk_parsed(self.session._jsparkSession.sessionState().sqlParser().parsePlan(view.query)):
            name, why = get_kind(node), ""
            if name == "UnresolvedRelation" and node.multipartIdentifier().size() > 1:
                path = ".".join(read_list(node.multipartIdentifier()))
                why = f"the query reads {path}, which is not a table or view of the pipeline"
            elif name == "ScriptTransformation":
                why = "TRANSFORM ... USING runs a program, which cannot be maintained; use a function of one row (udf)"
            if why:
                raise InvalidInput(where=f"{view.where}, view {view.name!r}", why=why)

    def explain(self, error: PySparkException, query: str = "") -> str:
        """What is wrong with a query, with the names that its author may have meant."""
        parser = self.session._jsparkSession.sessionState().sqlParser()
        return explain_error(error, self._names, lambda: find_relations(parser, query) if query else {})

    def _find_reads(self, frame: DataFrame) -> tuple[str, ...]:
        """In order of first appearance, subqueries included."""
        found = map(self.find_leaf, walk_nodes(frame._jdf.queryExecution().analyzed()))
        return tuple(dict.fromkeys(filter(None, found)))

    def _add_leaf(self, name: str, schema: str) -> None:
        jvm_session = self.session._jsparkSession
        context = self.session._jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
            jvm_session.sparkContext()
        )
        chars = self.session._jvm.org.apache.spark.sql.catalyst.util.CharVarcharUtils
        struct = chars.replaceCharVarcharWithStringInSchema(jvm_session.parseDataType(schema))
        frame = jvm_session.createDataFrame(context.emptyRDD(), struct)
        self._compared_types[name] = _read_compared_types(json.loads(struct.json())["fields"])
        [leaf] = read_list(frame.queryExecution().analyzed().collectLeaves())
        self._leaves[leaf.rdd().id()] = name
        frame.createOrReplaceTempView(name)
        self._names.append(name)
