"""Walks Catalyst's trees. Each step is a call to the JVM, so this is done only when a view is declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evertide.plan.catalyst.scala import sequence

__all__ = ["expressions", "kind", "nodes", "within"]


def kind(tree: Any) -> str:
    """The simple class name of an operator or expression."""
    name: str = tree.getClass().getSimpleName()
    return name.removesuffix("$")


def nodes(plan: Any) -> Iterator[Any]:
    """The operators of a plan and of its subqueries, parents first."""
    yield plan
    for child in (*sequence(plan.children()), *sequence(plan.subqueries())):
        yield from nodes(child)


def expressions(plan: Any) -> Iterator[Any]:
    """The expressions of one operator, parents first, without the plans of subqueries (see `nodes`)."""
    for expression in sequence(plan.expressions()):
        yield from within(expression)


def within(expression: Any) -> Iterator[Any]:
    """An expression and all its parts, parents first."""
    yield expression
    for child in sequence(expression.children()):
        yield from within(child)
