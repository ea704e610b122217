"""Finds the operators inside of an operator of a parsed plan, wherever they are.

In a plan that Spark has only parsed, some subqueries are not among `children` and `subqueries`: those of SET in pipe
syntax are in a list inside of an expression without children, those of WINDOW in a map, and those of FILTER after
IDENTIFIER() in a function. So all values that an operator holds are searched (`ParsedParts.java`), and a value of an
unknown kind is reported.

An analyzed plan needs no such search: Spark resolved each of its operators, and computes it, as a child or a subquery.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evertide.plan.catalyst.java_class import load_class

__all__ = ["find_inner_plans", "walk_parsed"]


def find_inner_plans(plan: Any) -> tuple[list[Any], list[str]]:
    """The operators directly inside of an operator, children first, and the class names of unknown values in it."""
    found = load_class(plan, "evertide.plan.catalyst", "ParsedParts").newInstance().find(plan)
    return [each for each in found if not isinstance(each, str)], [each for each in found if isinstance(each, str)]


def walk_parsed(plan: Any) -> Iterator[Any]:
    """All operators of a parsed plan, parents first."""
    yield plan
    for inner in find_inner_plans(plan)[0]:
        yield from walk_parsed(inner)
