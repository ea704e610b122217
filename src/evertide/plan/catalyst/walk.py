"""Walking Catalyst's trees, from Python: a call to the JVM per step, so only when a view is declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evertide.plan.catalyst.scala import sequence

__all__ = ["expressions", "kind", "nodes", "within"]


def kind(tree: Any) -> str:
    """The name of its class, which is how Catalyst tells operators and expressions apart."""
    name: str = tree.getClass().getSimpleName()
    return name.removesuffix("$")


def nodes(plan: Any) -> Iterator[Any]:
    """The operators of a plan, parents first, with those of its subqueries."""
    yield plan
    for child in (*sequence(plan.children()), *sequence(plan.subqueries())):
        yield from nodes(child)


def expressions(plan: Any) -> Iterator[Any]:
    """The expressions of one operator, parents first; the plans inside subquery expressions are `nodes`'s business."""
    for expression in sequence(plan.expressions()):
        yield from within(expression)


def within(expression: Any) -> Iterator[Any]:
    """An expression and all below it, parents first."""
    yield expression
    for child in sequence(expression.children()):
        yield from within(child)
