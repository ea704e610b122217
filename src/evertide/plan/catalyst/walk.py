"""Walks Catalyst's trees, and converts small Scala collections to Python's.

Each step and each element is a call to the JVM, so this is done only when a view is declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def read_list(found: Any) -> list[Any]:
    return [found.apply(at) for at in range(found.size())]


def read_option(found: Any) -> Any | None:
    return found.get() if found.isDefined() else None


def read_map(found: Any) -> dict[str, str]:
    return {pair._1(): pair._2() for pair in read_list(found.toSeq())}


def get_kind(tree: Any) -> str:
    """The simple class name of an operator or expression."""
    name: str = tree.getClass().getSimpleName()
    return name.removesuffix("$")


def walk_nodes(plan: Any) -> Iterator[Any]:
    """The operators of a plan and of its subqueries, parents first."""
    yield plan
    for child in (*read_list(plan.children()), *read_list(plan.subqueries())):
        yield from walk_nodes(child)


def walk_own_nodes(plan: Any, inputs: list[Any]) -> Iterator[Any]:
    """The operators of a plan, parents first, without its inputs and the operators below those."""
    yield plan
    for child in read_list(plan.children()):
        if not any(child.equals(other) for other in inputs):
            yield from walk_own_nodes(child, inputs)


def walk_expressions(plan: Any) -> Iterator[Any]:
    """The expressions of one operator, parents first, without the plans of subqueries (see `walk_nodes`)."""
    for expression in read_list(plan.expressions()):
        yield from walk_parts(expression)


def walk_parts(expression: Any) -> Iterator[Any]:
    """An expression and all its parts, parents first."""
    yield expression
    for child in read_list(expression.children()):
        yield from walk_parts(child)
