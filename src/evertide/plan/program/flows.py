"""Converts streaming tables and flows to views of the rows that feed them.

    CREATE STREAMING TABLE customers;
    CREATE FLOW f AS AUTO CDC INTO customers FROM STREAM changes KEYS (id) SEQUENCE BY at;

keeps, of all rows of `changes` with the same `id`, the last by `at`, unless that row is a deletion. This is a view like
any other: changes may arrive late, in any order, or be retracted, and the table is correct. All columns break ties in
`at`. The source of the changes may be a view.

    CREATE FLOW north AS INSERT INTO orders BY NAME SELECT * FROM STREAM orders_north;
    CREATE FLOW south AS INSERT INTO orders BY NAME SELECT * FROM STREAM orders_south;

feed `orders` together: `orders` is a view of all their rows (`AppendedView`). A streaming table without a flow is an
append-only table, and must declare its columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from evertide.errors import InvalidInput
from evertide.plan.script.statements import (
    AppendStatement,
    DeclaredColumn,
    FlowStatement,
    Statement,
    TableStatement,
    ViewStatement,
)

_RANK, _GONE = "__rank", "__gone"


@dataclass(frozen=True)
class AppendFlow:
    """Rows for a streaming table, as a function that returns a DataFrame."""

    name: str
    target: str
    build_frame: Callable[[SparkSession], DataFrame]
    where: str


@dataclass(frozen=True)
class AppendedView:
    """A streaming table as the union, by column names, of the rows of its flows."""

    name: str
    flows: tuple[AppendFlow, ...]
    columns: tuple[DeclaredColumn, ...]
    properties: Mapping[str, str]
    comment: str
    where: str
    is_materialized: bool = True

    def build_frame(self, session: SparkSession) -> DataFrame:
        frames = [flow.build_frame(session) for flow in self.flows]
        for flow, each in zip(self.flows, frames, strict=True):
            self._check_flow(each, frames[0], flow)
        whole = reduce(DataFrame.unionByName, frames)
        return whole.select(*(_quote(column.name) for column in self.columns)) if self.columns else whole

    def _check_flow(self, frame: DataFrame, first: DataFrame, flow: AppendFlow) -> None:
        """Compare columns with those of the table, or else of the first flow; a union would convert other types."""
        declared = {column.name.lower(): json.loads(column.type) for column in self.columns}
        expected = declared or _read_types(first)
        found = _read_types(frame)
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                has, wants = (json.dumps(each[name]) if name in each else "none" for each in (found, expected))
                whose = f"table {self.name!r}" if self.columns else f"flow {self.flows[0].name!r}"
                why = f"column {name!r} has the type {has} in flow {flow.name!r}, but {wants} in {whose}"
                raise InvalidInput(where=flow.where, why=why)


TableOrView: TypeAlias = TableStatement | ViewStatement | AppendedView


def resolve_flows(statements: Iterable[Statement | AppendFlow]) -> list[TableOrView]:
    """Tables first, then streaming tables with flows, then views, each in the order of the script."""
    statements = list(statements)
    tables = {each.name.lower(): each for each in statements if isinstance(each, TableStatement)}
    flows: dict[str, FlowStatement] = {}
    appends: dict[str, list[AppendFlow]] = {}
    for flow in statements:
        if isinstance(flow, FlowStatement):
            _check_flow(flow, tables, flows)
            flows[flow.target.lower()] = flow
        elif isinstance(flow, AppendStatement | AppendFlow):
            _check_target(flow, tables)
            appends.setdefault(flow.target.lower(), []).append(_to_append_flow(flow))
    for name in flows.keys() & appends.keys():
        why = f"{flows[name].target!r} has the AUTO CDC flow {flows[name].name!r}, so no other flow may feed it"
        raise InvalidInput(where=appends[name][0].where, why=why)
    plain = [table for name, table in tables.items() if name not in flows and name not in appends]
    for table in plain:
        if not table.columns:
            raise InvalidInput(
                where=table.where, why=f"streaming table {table.name!r} has neither columns nor a flow; declare columns"
            )
    for name in flows.keys() | appends.keys():
        _refuse_char_types(tables[name])
    targets = [_make_cdc_view(tables[name], flow, tables.get(flow.source.lower())) for name, flow in flows.items()]
    appended = [_make_appended(tables[name], flows) for name, flows in appends.items()]
    return [*plain, *targets, *appended, *(each for each in statements if isinstance(each, ViewStatement))]


def _check_flow(flow: FlowStatement, tables: dict[str, TableStatement], flows: dict[str, FlowStatement]) -> None:
    _check_target(flow, tables)
    if flow.target.lower() in flows:
        why = f"{flow.target!r} already has the AUTO CDC flow {flows[flow.target.lower()].name!r}; a table can have one"
        raise InvalidInput(where=flow.where, why=why)


def _refuse_char_types(table: TableStatement) -> None:
    """The rows of a query are not checked against declared lengths, as those of a source are."""
    found = [column.name for column in table.columns if column.declared_type]
    if found:
        why = f"column {found[0]!r} is CHAR or VARCHAR, which a streaming table with a flow cannot have; use STRING"
        raise InvalidInput(where=f"{table.where}, table {table.name!r}", why=why)


def _check_target(flow: FlowStatement | AppendStatement | AppendFlow, tables: dict[str, TableStatement]) -> None:
    target = tables.get(flow.target.lower())
    if target is None or not target.is_streaming:
        raise InvalidInput(
            where=flow.where,
            why=f"{flow.target!r} is not a streaming table of the script; declare it with CREATE STREAMING TABLE",
        )


def _to_append_flow(flow: AppendStatement | AppendFlow) -> AppendFlow:
    if isinstance(flow, AppendFlow):
        return flow
    return AppendFlow(flow.name, flow.target, lambda session: session.sql(flow.query), flow.where)


def _make_appended(table: TableStatement, flows: list[AppendFlow]) -> AppendedView:
    return AppendedView(table.name, tuple(flows), table.columns, table.properties, table.comment, table.where)


def _read_types(frame: DataFrame) -> dict[str, object]:
    return {field.name.lower(): json.loads(field.dataType.json()) for field in frame.schema.fields}


def _make_cdc_view(table: TableStatement, flow: FlowStatement, source: TableStatement | None) -> ViewStatement:
    """`source` is the table that the flow reads. Columns of views and of tables with flows are not known yet."""
    if source is not None and source.columns:
        _check_columns(table, flow, source)
    without = {name.lower() for name in flow.without}
    named = [_quote(column.name) for column in table.columns if column.name.lower() not in without]
    columns = ", ".join(named) or f"* EXCEPT ({', '.join(map(_quote, (_RANK, _GONE, *flow.without)))})"
    gone = f"coalesce({flow.delete_when}, false)" if flow.delete_when else "false"
    rank = f"row_number() OVER (PARTITION BY {', '.join(flow.keys)} ORDER BY {flow.sequence_by} DESC)"
    query = (
        f"SELECT {columns} FROM "
        f"(SELECT *, {rank} AS {_RANK}, {gone} AS {_GONE} FROM {_quote(flow.source)}) "
        f"WHERE {_RANK} = 1 AND NOT {_GONE}"
    )
    return ViewStatement(
        name=table.name,
        query=query,
        is_materialized=True,
        properties=table.properties,
        comment=table.comment,
        where=table.where,
    )


def _check_columns(table: TableStatement, flow: FlowStatement, source: TableStatement) -> None:
    """The source must have the columns that the table declares, and the table must have the keys."""
    known = {column.name.lower(): column for column in source.columns}
    for column in table.columns:
        found = known.get(column.name.lower())
        if found is None or found.type != column.type:
            why = f"column {column.name!r} of {table.name!r} is not a column of {source.name!r} with the same type"
            raise InvalidInput(where=table.where, why=why)
    without = {name.lower() for name in flow.without}
    columns = {column.name.lower() for column in table.columns or source.columns} - without
    for key in flow.keys:
        if key.strip("`").lower() not in columns:
            raise InvalidInput(where=flow.where, why=f"the key {key!r} is not a column of table {table.name!r}")


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
