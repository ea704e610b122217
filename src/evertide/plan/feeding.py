"""Streaming tables and what feeds them: an AUTO CDC flow makes its target a table with a key.

    CREATE STREAMING TABLE customers;
    CREATE FLOW f AS AUTO CDC INTO customers FROM STREAM changes KEYS (id) SEQUENCE BY at;

is `customers` with the columns of `changes`, less those that the flow leaves out, and `id` as its primary key. To a
view it is a table like any other; that a change replaces the row of its key is the pipeline's business. A streaming
table without a flow is a table that is only appended to, and needs columns of its own.
"""

from __future__ import annotations

from dataclasses import replace

from evertide.errors import InvalidInput
from evertide.plan.statements import FlowStatement, Statement, TableStatement

__all__ = ["fed"]


def fed(statements: list[Statement]) -> list[Statement]:
    """The same statements, streaming tables with the columns and keys that their flows give them."""
    tables = {each.name.lower(): each for each in statements if isinstance(each, TableStatement)}
    flows: dict[str, FlowStatement] = {}
    for flow in statements:
        if isinstance(flow, FlowStatement):
            _check(flow, tables, flows)
            flows[flow.target.lower()] = flow
    return [_fed(each, flows, tables) if isinstance(each, TableStatement) else each for each in statements]


def _check(flow: FlowStatement, tables: dict[str, TableStatement], flows: dict[str, FlowStatement]) -> None:
    target = tables.get(flow.target.lower())
    if target is None or not target.is_streaming:
        raise InvalidInput(where=flow.where, why=f"{flow.target!r} is no streaming table of the script")
    if flow.source.lower() not in tables:
        raise InvalidInput(where=flow.where, why=f"{flow.source!r}, which the flow reads, is no table of the script")
    if flow.target.lower() in flows:
        why = f"{flow.target!r} is fed by {flows[flow.target.lower()].name!r} already: a key has one history"
        raise InvalidInput(where=flow.where, why=why)


def _fed(table: TableStatement, flows: dict[str, FlowStatement], tables: dict[str, TableStatement]) -> TableStatement:
    flow = flows.get(table.name.lower())
    if flow is None:
        if not table.columns:
            raise InvalidInput(where=table.where, why=f"{table.name!r} has neither columns nor a flow that brings them")
        return table
    without = {name.lower() for name in flow.without}
    columns = table.columns or tuple(
        column for column in tables[flow.source.lower()].columns if column.name.lower() not in without
    )
    known = {column.name.lower(): column for column in columns}
    keys = tuple(key.strip("`") for key in flow.keys)
    for key in keys:
        if key.lower() not in known:
            raise InvalidInput(where=flow.where, why=f"the key {key!r} is not a column of {table.name!r}")
    lower = {key.lower() for key in keys}
    strict = tuple(replace(column, nullable=False) if column.name.lower() in lower else column for column in columns)
    return replace(table, columns=strict, key=keys)
