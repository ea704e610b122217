"""The statements of a script: tables, views and flows, as plain values.

Spark's own parser parses the statements, and they are never executed. Clauses that Evertide does not support
(partitioning, buckets, generated columns, a location) are refused by name, not ignored.

    CREATE TABLE t (id BIGINT NOT NULL, ..., PRIMARY KEY (id)) USING <connector> OPTIONS (...) TBLPROPERTIES (...)
    CREATE STREAMING TABLE t [...]                          a table that flows feed
    CREATE STREAMING TABLE t AS SELECT ... FROM STREAM s    a materialized view
    CREATE MATERIALIZED VIEW v AS SELECT ...                a view that is maintained and stored
    CREATE VIEW v AS SELECT ...                             a name for a query, part of the queries that use it
    CREATE TEMPORARY VIEW v AS SELECT ...                   the same
    CREATE FLOW f AS AUTO CDC INTO t FROM s KEYS (...) ...  applies changes of s to t by key
    CREATE FLOW f AS INSERT INTO t BY NAME SELECT ...       adds rows to t; t has the rows of all its flows

The keyword STREAM, which marks tables that are read as a stream, is removed from queries. Evertide maintains views over
all changes of a table, so it needs no mark, and the analyzer would refuse it, since no table of a pipeline is a
streaming relation. Spark's parser finds the keyword, so a column named `stream` is not touched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from evertide.errors import InvalidInput
from evertide.plan.catalyst.failure import silence_traces
from evertide.plan.catalyst.parsed import walk_parsed
from evertide.plan.catalyst.walk import get_kind, read_list, read_map, read_option
from evertide.plan.script.error_list import ErrorList
from evertide.plan.script.script_errors import QueryText, make_statement_error
from evertide.plan.script.statement_splitter import StatementText, split_script
from evertide.rows.char_types import contains_char_type, has_collated_char_type, replace_char_types

_TIME = re.compile(r"time\([0-5]\)")
_INTERVAL = re.compile(r"interval (?:day|hour|minute|second)(?: to (?:hour|minute|second))?")


def _find_imprecise_type(declared: Any) -> tuple[str, str] | None:
    """A type in `declared` of fewer digits than its Arrow type, which cuts none; and the type that has all digits."""
    if isinstance(declared, str):
        if _TIME.fullmatch(declared):
            return declared.upper(), "TIME"
        if _INTERVAL.fullmatch(declared) and declared != "interval day to second":
            return declared.upper(), "INTERVAL DAY TO SECOND"
        return None
    inner = [each["type"] for each in declared.get("fields", ())]
    inner += [declared[part] for part in ("elementType", "keyType", "valueType") if part in declared]
    return next(filter(None, map(_find_imprecise_type, inner)), None)


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    name: str
    type: str
    """Spark's JSON form of the data type, as it is stored."""
    nullable: bool = True
    comment: str = ""
    default: str = ""
    """The SQL of the default value; empty if there is none."""
    declared_type: str = ""
    """Spark's JSON form of the declared type, if it is CHAR or VARCHAR or has one inside."""

    @classmethod
    def make(cls, name: str, type_text: str, where: str, *, nullable: bool) -> DeclaredColumn:
        """`type_text` is the declared type in Spark's JSON form."""
        declared = json.loads(type_text)
        if has_collated_char_type(declared):
            why = "CHAR and VARCHAR cannot have a collation; use STRING COLLATE, or leave out the collation"
            raise InvalidInput(where=f"{where}, column {name!r}", why=why)
        if imprecise := _find_imprecise_type(declared):
            kind, precise = imprecise
            remedy = f"declare {precise}, and use CAST in the queries"
            why = f"{kind} is not supported, since tables store all digits; {remedy}"
            raise InvalidInput(where=f"{where}, column {name!r}", why=why)
        if not contains_char_type(declared):
            return cls(name, type_text, nullable)
        stored = json.dumps(replace_char_types(declared), separators=(",", ":"))  # as Spark writes it
        return cls(name, stored, nullable, declared_type=type_text)


@dataclass(frozen=True, slots=True)
class TableStatement:
    name: str
    columns: tuple[DeclaredColumn, ...]
    key: tuple[str, ...]
    connector: str
    options: dict[str, str]
    properties: dict[str, str]
    comment: str
    is_streaming: bool
    where: str
    """Its position in the script, for messages."""


@dataclass(frozen=True, slots=True)
class ViewStatement:
    name: str
    query: str
    is_materialized: bool
    properties: dict[str, str]
    comment: str
    where: str
    columns: tuple[str, ...] = ()
    """New names of the columns; empty if the query names them."""
    source: QueryText | None = field(default=None, compare=False)
    """The query in the script; None if Evertide wrote the query."""


@dataclass(frozen=True, slots=True)
class FlowStatement:
    """AUTO CDC: rows of `source` are applied to `target` by `keys`; the last by `sequence_by` wins."""

    name: str
    target: str
    source: str
    keys: tuple[str, ...]
    sequence_by: str
    delete_when: str
    without: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class AppendStatement:
    """INSERT INTO: the rows of `query` are added to `target`, by column names."""

    name: str
    target: str
    query: str
    where: str


_DECLARED = "a script has CREATE TABLE, STREAMING TABLE, MATERIALIZED VIEW, VIEW, TEMPORARY VIEW and FLOW"
_CHANGED = "a script only declares; rows of tables come from their connectors, or are pushed (`evertide push`)"
_REFUSED = {
    "CreateTableAsSelect": "CREATE TABLE AS SELECT is not supported; write CREATE MATERIALIZED VIEW name AS SELECT ...",
    "ReplaceTable": "CREATE OR REPLACE TABLE is not supported; leave out OR REPLACE, since Evertide compares scripts",
    "ReplaceTableAsSelect": (
        "CREATE OR REPLACE TABLE AS SELECT is not supported; write CREATE MATERIALIZED VIEW name AS SELECT ..."
    ),
    "InsertIntoStatement": f"INSERT is not supported: {_CHANGED}",
    "UpdateTable": f"UPDATE is not supported: {_CHANGED}",
    "DeleteFromTable": f"DELETE is not supported: {_CHANGED}",
    "MergeIntoTable": f"MERGE is not supported; use CREATE FLOW ... AS AUTO CDC INTO: {_CHANGED}",
    "DropTable": "DROP TABLE is not supported; leave the table out: its rows stay, and return if it is declared again",
    "DropView": "DROP VIEW is not supported; leave the view out: the next run deletes its content",
    "Project": f"a SELECT alone is not supported; write CREATE MATERIALIZED VIEW name AS SELECT ...; {_DECLARED}",
    "SetCommand": "SET is not supported; set Spark's settings where Spark starts (spark-defaults.conf)",
}
"""Statements that users of Spark write first, with what to write instead."""

Statement: TypeAlias = TableStatement | ViewStatement | FlowStatement | AppendStatement


def parse_script(
    spark: SparkSession, script: str, path: str = "SQL", *, errors: ErrorList | None = None
) -> list[Statement]:
    """Parse a script. A name that is declared twice is an error.

    `errors` collects the errors of statements; without it they are raised.
    """
    found = ErrorList() if errors is None else errors
    parser = spark._jsparkSession.sessionState().sqlParser()
    with silence_traces():
        parsed = [_try_to_parse(parser, each, found) for each in split_script(script, path)]
    statements = [each for each in parsed if each is not None]
    if errors is None:
        found.raise_all()
    check_names(statements)
    return statements


def _try_to_parse(parser: Any, statement_text: StatementText, errors: ErrorList) -> Statement | None:
    try:
        return _parse(parser, statement_text)
    except InvalidInput as error:
        errors.add_unparsed(error, statement_text.text)
        return None


def _parse(parser: Any, statement_text: StatementText) -> Statement:
    try:
        plan = parser.parsePlan(statement_text.text)
    except AnalysisException as error:
        raise make_statement_error(error, statement_text) from error
    kind, where = get_kind(plan), statement_text.where
    read = _READERS.get(kind)
    if read is None:
        raise InvalidInput(where=where, why=_REFUSED.get(kind) or f"the statement {kind} is not supported; {_DECLARED}")
    statement = read(plan, where)
    if isinstance(statement, ViewStatement):
        source = QueryText.find(statement_text, statement.query)
        return replace(statement, query=remove_streams(parser, statement.query), source=source)
    if isinstance(statement, AppendStatement):
        return replace(statement, query=remove_streams(parser, statement.query))
    return statement


def check_names(statements: Iterable[Statement]) -> None:
    """Refuse duplicate names; a flow may have the name of its target."""
    seen: dict[str, str] = {}
    for statement in statements:
        name = statement.name.lower()
        if isinstance(statement, FlowStatement | AppendStatement) and name == statement.target.lower():
            continue
        if name in seen:
            raise InvalidInput(where=statement.where, why=f"{statement.name!r} is already declared, at {seen[name]}")
        seen[name] = statement.where


def _read_name(plan: Any, where: str) -> str:
    parts = read_list(plan.nameParts())
    if len(parts) != 1:
        raise InvalidInput(
            where=where, why=f"the name {'.'.join(parts)!r} has a catalog or schema; names in a pipeline have none"
        )
    name: str = parts[0]
    return name


def _read_table(plan: Any, where: str) -> TableStatement:
    """Read CREATE TABLE or CREATE STREAMING TABLE; flows feed the latter, so it has no key and no connector."""
    spec = plan.tableSpec()
    name = _read_name(plan.name(), where)
    _refuse(where, {"PARTITIONED BY": plan.partitioning().size() > 0, **_list_unsupported(spec)})
    columns = tuple(_read_column(column, where) for column in read_list(plan.columns()))
    is_streaming = get_kind(plan) == "CreateStreamingTable"
    return TableStatement(
        name=name,
        columns=columns,
        key=() if is_streaming else _read_primary_key(spec, columns, where),
        connector="" if is_streaming else read_option(spec.provider()) or "",
        options={} if is_streaming else _read_options(spec),
        properties=read_map(spec.properties()),
        comment=read_option(spec.comment()) or "",
        is_streaming=is_streaming,
        where=where,
    )


def _read_column(column: Any, where: str) -> DeclaredColumn:
    given = {
        "GENERATED ALWAYS AS": column.generationExpression().isDefined(),
        "GENERATED AS IDENTITY": column.identityColumnSpec().isDefined(),
    }
    _refuse(f"{where}, column {column.name()!r}", given)
    declared = DeclaredColumn.make(column.name(), column.dataType().json(), where, nullable=column.nullable())
    default = read_option(column.defaultValue())
    return replace(
        declared,
        comment=read_option(column.comment()) or "",
        default=default.originalSQL() if default is not None else "",
    )


def _read_primary_key(spec: Any, columns: tuple[DeclaredColumn, ...], where: str) -> tuple[str, ...]:
    key: tuple[str, ...] = ()
    for constraint in read_list(spec.constraints()):
        kind = get_kind(constraint)
        if kind != "PrimaryKeyConstraint":
            raise InvalidInput(where=where, why=f"the constraint {kind} is not supported; leave it out")
        key = tuple(read_list(constraint.columns()))
    for name in key:
        if name.lower() not in {column.name.lower() for column in columns}:
            raise InvalidInput(
                where=where,
                why=f"the key {name!r} is not a column of the table; it has {', '.join(each.name for each in columns)}",
            )
    return key


def _read_options(spec: Any) -> dict[str, str]:
    """The options, which are constants. The parser makes the option `path` a location."""
    pairs = read_list(spec.optionExpression().options())
    location = read_option(spec.location())
    path = {"path": location} if location is not None else {}
    return path | {pair._1(): str(pair._2().eval(None)) for pair in pairs}


def _list_unsupported(spec: Any) -> dict[str, bool]:
    return {
        "LOCATION": spec.location().isDefined() and not spec.provider().isDefined(),
        "SERDE": spec.serde().isDefined(),
        "EXTERNAL": spec.external(),
        "COLLATION": spec.collation().isDefined(),
    }


def _refuse(where: str, given: dict[str, bool]) -> None:
    for name, is_given in given.items():
        if is_given:
            raise InvalidInput(
                where=where, why=f"{name} is not supported, since Evertide stores tables itself; leave it out"
            )


def _read_materialized_view(plan: Any, where: str) -> ViewStatement:
    spec = plan.tableSpec()
    _refuse(where, {"PARTITIONED BY": plan.partitioning().size() > 0, **_list_unsupported(spec)})
    _refuse(where, {"a list of columns": plan.columns().size() > 0})
    return ViewStatement(
        name=_read_name(plan.name(), where),
        query=plan.originalText(),
        is_materialized=True,
        properties=read_map(spec.properties()),
        comment=read_option(spec.comment()) or "",
        where=where,
    )


def _read_view(plan: Any, where: str) -> ViewStatement:
    """Read CREATE VIEW, whose name is unresolved, or CREATE TEMPORARY VIEW, whose name is resolved."""
    is_temporary = get_kind(plan) == "CreateViewCommand"
    return ViewStatement(
        name=plan.name().table() if is_temporary else _read_name(plan.child(), where),
        query=read_option(plan.originalText()) or "",
        is_materialized=False,
        properties=read_map(plan.properties()),
        comment=read_option(plan.comment()) or "",
        where=where,
        columns=tuple(pair._1() for pair in read_list(plan.userSpecifiedColumns())),
    )


def _read_flow(plan: Any, where: str) -> FlowStatement | AppendStatement:
    kind = get_kind(plan.flowOperation())
    if kind == "InsertIntoStatement":
        return _read_append(plan, where)
    if kind == "AutoCdcInto":
        return _read_auto_cdc(plan, where)
    why = f"the flow {kind} is not supported; use INSERT INTO, AUTO CDC INTO, or a view"
    raise InvalidInput(where=where, why=why)


def _read_append(plan: Any, where: str) -> AppendStatement:
    insert = plan.flowOperation()
    _refuse(where, {"OVERWRITE": insert.overwrite(), "PARTITION": insert.partitionSpec().size() > 0})
    if not insert.byName():
        raise InvalidInput(where=where, why="INSERT INTO without BY NAME is not supported; add BY NAME")
    origin = insert.query().origin()
    text = str(origin.sqlText().get()).encode("utf-16-le")  # the JVM counts UTF-16 code units
    return AppendStatement(
        name=_read_name(plan.name(), where),
        target=_read_relation(insert.table(), where),
        query=text[2 * origin.startIndex().get() :].decode("utf-16-le"),
        where=where,
    )


def _read_auto_cdc(plan: Any, where: str) -> FlowStatement:
    cdc = plan.flowOperation()
    given = {
        "STORED AS SCD TYPE 2": cdc.storedAsScdType() != 1,
        "TRACK HISTORY ON": cdc.trackHistoryColumns().isDefined() or cdc.trackHistoryExceptColumns().isDefined(),
        "COLUMNS without EXCEPT": cdc.includeColumns().isDefined(),
    }
    for name, is_given in given.items():
        if is_given:
            raise InvalidInput(where=where, why=f"{name} is not supported; a table has the current row of each key")
    delete = read_option(cdc.deleteCondition())
    without = read_option(cdc.excludeColumns())
    return FlowStatement(
        name=_read_name(plan.name(), where),
        target=_read_name(cdc.targetTable(), where),
        source=_read_relation(cdc.source(), where),
        keys=tuple(key.sql() for key in read_list(cdc.keys())),
        sequence_by=cdc.sequenceByExpr().sql(),
        delete_when=delete.sql() if delete is not None else "",
        without=tuple(column.name() for column in read_list(without)) if without is not None else (),
        where=where,
    )


def _read_relation(plan: Any, where: str) -> str:
    leaves = read_list(plan.collectLeaves())
    if len(leaves) != 1 or get_kind(leaves[0]) != "UnresolvedRelation":
        raise InvalidInput(where=where, why="a flow must read one table; write FROM STREAM name")
    return ".".join(read_list(leaves[0].multipartIdentifier()))


_READERS: dict[str, Callable[[Any, str], Statement]] = {
    "CreateTable": _read_table,
    "CreateStreamingTable": _read_table,
    "CreateMaterializedViewAsSelect": _read_materialized_view,
    "CreateStreamingTableAsSelect": _read_materialized_view,
    "CreateView": _read_view,
    "CreateViewCommand": _read_view,
    "CreateFlowCommand": _read_flow,
}


_CALL = re.compile(r"STREAM\s*\(\s*(.*?)\s*\)", re.IGNORECASE | re.DOTALL)
_KEYWORD = re.compile(r"STREAM\s+", re.IGNORECASE)
_UNIT = "utf-16-le"
"""The JVM counts positions in UTF-16 code units of two bytes."""


def remove_streams(parser: Any, query: str) -> str:
    """Replace `STREAM t` and `STREAM(t)` by `t` in a query that can be parsed."""
    if "stream" not in query.lower():
        return query
    text = query.encode(_UNIT)
    for start in sorted(set(_find_places(parser.parsePlan(query))), reverse=True):
        rest = text[2 * start :].decode(_UNIT)
        plain = _CALL.sub(r"\1", rest, count=1) if _CALL.match(rest) else _KEYWORD.sub("", rest, count=1)
        text = text[: 2 * start] + plain.encode(_UNIT)
    return text.decode(_UNIT)


def _find_places(plan: Any) -> Iterator[int]:
    for node in walk_parsed(plan):
        if get_kind(node) == "UnresolvedRelation" and node.isStreaming():
            start = read_option(node.origin().startIndex())
            if start is not None:
                yield start
