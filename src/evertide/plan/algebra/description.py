"""Describes operators as short texts: `Join Inner on auction = id`.

Expressions are Spark's SQL without quotes, qualifiers, outer brackets and ids, so that a plan has the same texts in
every session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from evertide.plan.algebra.nodes import (
    Aggregate,
    Attribute,
    ConstantRows,
    Expand,
    Filter,
    Generate,
    Join,
    Map,
    PlanNode,
    Scan,
    TopK,
    Union,
    Window,
)
from evertide.plan.catalyst.walk import get_kind, read_list, read_option

_QUALIFIER = re.compile(r"(?<![\w.'])[A-Za-z_]\w*\.(?=[A-Za-z_(])")
_STRING = re.compile(r"('(?:[^'\\]|\\.)*')")
_ID = re.compile(r"#\d+L?\b|(?<=_gen_alias)_\d+")
_USUAL = re.compile(r" ASC NULLS FIRST\b|(?<= DESC) NULLS LAST\b")
"""The defaults of ORDER BY."""


def describe_node(node: PlanNode) -> str:
    return f"{node.kind} {_WORDS[type(node)](node)}".rstrip()


def list_column_names(node: PlanNode, attributes: Iterable[int]) -> tuple[str, ...]:
    """The names of attributes of a node."""
    by_id = {attribute.id: attribute for attribute in node.output}
    return tuple(_simplify(by_id[attribute].name) for attribute in attributes)


def _to_sql(expression: Any) -> str:
    return _strip_brackets(_simplify(expression.sql()))


def _simplify(text: str) -> str:
    """Simplify SQL, except for string literals."""
    sections = _STRING.split(text)
    return "".join(section if at % 2 else _strip_noise(section) for at, section in enumerate(sections))


def _strip_noise(text: str) -> str:
    return _USUAL.sub("", _ID.sub("", _QUALIFIER.sub("", text.replace("`", ""))))


def _strip_brackets(text: str) -> str:
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and at < len(text) - 1:
            return text
    return text[1:-1]


def _list_columns(columns: Iterable[Any]) -> str:
    return ", ".join(_describe_column(column) for column in columns)


def _describe_column(column: Any) -> str:
    """Omit an alias with the name of its column."""
    if get_kind(column) != "Alias":
        return _to_sql(column)
    text, name = _to_sql(column.child()), _simplify(column.name())
    return text if text == name else f"{text} AS {name}"


def _describe_map(node: Map) -> str:
    if get_kind(node.jvm) == "Project":
        return _list_columns(read_list(node.jvm.projectList()))
    return "in Python " + ", ".join(_to_sql(function) for function in read_list(node.jvm.udfs()))


def _describe_join(node: Join) -> str:
    condition = read_option(node.jvm.condition())
    return node.join if condition is None else f"{node.join} on {_to_sql(condition)}"


def _describe_aggregate(node: Aggregate) -> str:
    """An Aggregate without functions makes rows distinct."""
    [child] = node.children
    keys = list(list_column_names(child, node.keys))
    computed = ", ".join(map(_simplify, node.names)) or "distinct"
    return f"{computed} by {', '.join(keys)}" if keys else computed


def _describe_window(node: Window) -> str:
    found = [column.child() for column in read_list(node.jvm.windowExpressions())]
    functions = [_to_sql(each.windowFunction()) for each in found if get_kind(each) == "WindowExpression"]
    order = [_to_sql(by) for by in read_list(node.jvm.orderSpec())]
    text = ", ".join(functions)
    if node.partition:
        text += f" partition by {', '.join(list_column_names(node.children[0], node.partition))}"
    return f"{text} order by {', '.join(order)}" if order else text


def _describe_top(node: TopK) -> str:
    below = node.jvm
    while get_kind(below) != "Sort":
        below = below.child()
    order = ", ".join(_to_sql(by) for by in read_list(below.order()))
    offset = f" after {node.offset}" if node.offset else ""
    return f"{'all' if node.limit is None else node.limit}{offset} order by {order}"


def _describe_constant(node: ConstantRows) -> str:
    name = get_kind(node.jvm)
    if name == "Range":
        return f"range from {node.jvm.start()} to {node.jvm.end()} by {node.jvm.step()}"
    rows = node.jvm.data().size() if name == "LocalRelation" else 1
    return f"{rows} {'row' if rows == 1 else 'rows'}"


def _describe_generate(node: Generate) -> str:
    return f"{'outer ' if node.jvm.outer() else ''}{_to_sql(node.jvm.generator())}"


def _list_names(attributes: Iterable[Attribute]) -> str:
    return ", ".join(_simplify(attribute.name) for attribute in attributes)


_WORDS: dict[type[PlanNode], Callable[[Any], str]] = {
    Scan: lambda node: node.collection,
    ConstantRows: _describe_constant,
    Map: _describe_map,
    Filter: lambda node: _to_sql(node.jvm.condition()),
    Expand: lambda node: f"into {node.jvm.projections().size()} forms of {_list_names(node.output)}",
    Generate: _describe_generate,
    Union: lambda node: f"of {len(node.children)}",
    Join: _describe_join,
    Aggregate: _describe_aggregate,
    Window: _describe_window,
    TopK: _describe_top,
}
