"""The columns that tell the rows of a view apart, where its plan proves that they do.

1. A table's key does so wherever rows are only filtered, mapped, numbered or limited, and all its columns are handed on
   as they are. Semi and anti joins filter, too.
2. The columns of a GROUP BY tell groups apart.
3. Where a join finds each row of one side at most once, as it is by that side's whole key, the key of the other side
   tells the rows of the join apart. In an inner join, columns that must be equal stand for each other. (An aggregation
   with several DISTINCT is such a join of its parts.)
4. Everything else may make two rows that are alike. Whoever knows better says so: `evertide.key`.
"""

from __future__ import annotations

from collections.abc import Iterable

from evertide.plan.algebra.nodes import Aggregate, Filter, Join, Map, Node, Scan, TopK, Window

__all__ = ["derive_key"]

_FILTERS = frozenset(("LeftSemi", "LeftAnti", "Existence", "LeftSingle"))
"""Joins that have each row of their left side once, or not at all."""

Key = tuple[frozenset[int], ...]
"""Of each column the attributes that have its value."""


def derive_key(plan: Node) -> tuple[str, ...]:
    """The names of such columns; empty if none are known."""
    names = {attribute.id: attribute.name for attribute in plan.output}
    return tuple(next(name for one, name in names.items() if one in equal) for equal in _derive(plan))


def _derive(node: Node) -> Key:
    if isinstance(node, Scan):
        return _single(node.unique)
    if isinstance(node, Aggregate):
        return _pass_through(node, _single(node.keys))
    if isinstance(node, Map | Filter | Window | TopK):
        return _pass_through(node, _derive(node.children[0]))
    if isinstance(node, Join):
        return _derive(node.children[0]) if node.join in _FILTERS else _derive_join(node)
    return ()


def _derive_join(node: Join) -> Key:
    left, right = (_derive(child) for child in node.children)
    is_inner = node.join == "Inner"
    found: Key = ()
    if left and right and (is_inner or node.join == "LeftOuter") and _is_within(right, (b for _, b in node.keys)):
        found = left
    elif left and right and (is_inner or node.join == "RightOuter") and _is_within(left, (a for a, _ in node.keys)):
        found = right
    return tuple(_with_equals(one, node.keys) for one in found) if is_inner else found


def _is_within(key: Key, attributes: Iterable[int]) -> bool:
    """Whether all columns of a key are among the attributes."""
    wanted = {*attributes}
    return all(equal & wanted for equal in key)


def _with_equals(equal: frozenset[int], pairs: Iterable[tuple[int, int]]) -> frozenset[int]:
    return equal.union(*({a, b} for a, b in pairs if a in equal or b in equal))


def _single(attributes: Iterable[int]) -> Key:
    return tuple(frozenset((one,)) for one in attributes)


def _pass_through(node: Node, below: Key) -> Key:
    """The attributes of the output that these are, if all of them are there."""
    above = tuple(frozenset(one for one, source in node.passed.items() if source in equal) for equal in below)
    return above if all(above) else ()
