"""Streaming tables and what feeds them: the target of an AUTO CDC flow is a view of the changes that feed it.

    CREATE STREAMING TABLE customers;
    CREATE FLOW f AS AUTO CDC INTO customers FROM STREAM changes KEYS (id) SEQUENCE BY at;

keeps, of all rows of `changes` with the same `id`, the last by `at`, unless that one is a deletion. Said like this it
is a view like any other: changes may come late, in any order, or be taken back, and the table is right all the same.
Rows that are equal in `at` are told apart by all their columns. A streaming table without a flow is a table that is
only appended to, and needs columns of its own.
"""

from __future__ import annotations

from evertide.errors import InvalidInput
from evertide.plan.statements import FlowStatement, Statement, TableStatement, ViewStatement

__all__ = ["fed"]

_RANK, _GONE = "__rank", "__gone"


def fed(statements: list[Statement]) -> list[TableStatement | ViewStatement]:
    """Tables first, then what flows feed, then views, each in the order of the script."""
    tables = {each.name.lower(): each for each in statements if isinstance(each, TableStatement)}
    flows: dict[str, FlowStatement] = {}
    for flow in statements:
        if isinstance(flow, FlowStatement):
            _check(flow, tables, flows)
            flows[flow.target.lower()] = flow
    plain = [table for name, table in tables.items() if name not in flows]
    for table in plain:
        if not table.columns:
            raise InvalidInput(where=table.where, why=f"{table.name!r} has neither columns nor a flow that brings them")
    targets = [_target(tables[name], flow, tables[flow.source.lower()]) for name, flow in flows.items()]
    return [*plain, *targets, *(each for each in statements if isinstance(each, ViewStatement))]


def _check(flow: FlowStatement, tables: dict[str, TableStatement], flows: dict[str, FlowStatement]) -> None:
    target = tables.get(flow.target.lower())
    if target is None or not target.is_streaming:
        raise InvalidInput(where=flow.where, why=f"{flow.target!r} is no streaming table of the script")
    if flow.source.lower() not in tables:
        raise InvalidInput(where=flow.where, why=f"{flow.source!r}, which the flow reads, is no table of the script")
    if flow.target.lower() in flows:
        why = f"{flow.target!r} is fed by {flows[flow.target.lower()].name!r} already: a key has one history"
        raise InvalidInput(where=flow.where, why=why)


def _target(table: TableStatement, flow: FlowStatement, source: TableStatement) -> ViewStatement:
    columns = _columns(table, flow, source)
    for key in flow.keys:
        if key.strip("`").lower() not in {column.lower() for column in columns}:
            raise InvalidInput(where=flow.where, why=f"the key {key!r} is not a column of {table.name!r}")
    gone = f"coalesce({flow.delete_when}, false)" if flow.delete_when else "false"
    rank = f"row_number() OVER (PARTITION BY {', '.join(flow.keys)} ORDER BY {flow.sequence_by} DESC)"
    query = (
        f"SELECT {', '.join(map(_quoted, columns))} FROM "
        f"(SELECT *, {rank} AS {_RANK}, {gone} AS {_GONE} FROM {_quoted(source.name)}) "
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


def _columns(table: TableStatement, flow: FlowStatement, source: TableStatement) -> list[str]:
    """Those that the table declares, which must be the source's; or all but those that the flow leaves out."""
    known = {column.name.lower(): column for column in source.columns}
    for column in table.columns:
        found = known.get(column.name.lower())
        if found is None or found.type != column.type:
            why = f"the column {column.name!r} of {table.name!r} is not one of {source.name!r}, with the same type"
            raise InvalidInput(where=table.where, why=why)
    without = {name.lower() for name in flow.without}
    return [column.name for column in table.columns or source.columns if column.name.lower() not in without]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
