"""Derives a key of a view from its plan: columns of which no two rows share the values.

1. A table's key stays a key if rows are only filtered, mapped, numbered or limited, and all columns of the key are
   passed through. Semi and anti joins are filters, too.
2. The columns of a GROUP BY are a key.
3. If a join is by the whole key of one side, each row of the other side has at most one partner, so the key of the
   other side is a key of the join. In an inner join, columns that must be equal can replace each other. (An aggregation
   with several DISTINCT is such a join of its parts.)
4. No other plan has a known key. A user can declare one with the property `evertide.key`.
"""

from __future__ import annotations

from collections.abc import Iterable

from evertide.plan.algebra.nodes import Aggregate, Filter, Join, JoinType, Map, PlanNode, Scan, TopK, Window

_FILTERS = frozenset((JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE, JoinType.LEFT_SINGLE))
"""Joins that output each row of their left side at most once."""

Key = tuple[frozenset[int], ...]
"""Per column of the key, the attributes that have its value."""


def derive_key(plan: PlanNode) -> tuple[str, ...]:
    """The names of the key's columns; empty if no key is known."""
    names = {attribute.id: attribute.name for attribute in plan.output}
    return tuple(next(name for one, name in names.items() if one in equal) for equal in _derive(plan))


def _derive(node: PlanNode) -> Key:
    if isinstance(node, Scan):
        return _make_key(node.unique)
    if isinstance(node, Aggregate):
        return _pass_through(node, _make_key(node.keys))
    if isinstance(node, Map | Filter | Window | TopK):
        return _pass_through(node, _derive(node.children[0]))
    if isinstance(node, Join):
        return _derive(node.children[0]) if node.join in _FILTERS else _derive_join(node)
    return ()


def _derive_join(node: Join) -> Key:
    left, right = (_derive(child) for child in node.children)
    if not left or not right:
        return ()
    is_inner = node.join is JoinType.INNER
    found: Key = ()
    if (is_inner or node.join is JoinType.LEFT_OUTER) and _is_within(right, (b for _, b in node.keys)):
        found = left
    elif (is_inner or node.join is JoinType.RIGHT_OUTER) and _is_within(left, (a for a, _ in node.keys)):
        found = right
    return tuple(_add_equals(one, node.keys) for one in found) if is_inner else found


def _is_within(key: Key, attributes: Iterable[int]) -> bool:
    """Whether each column of a key is among the attributes."""
    wanted = {*attributes}
    return all(equal & wanted for equal in key)


def _add_equals(equal: frozenset[int], pairs: Iterable[tuple[int, int]]) -> frozenset[int]:
    return equal.union(*({a, b} for a, b in pairs if a in equal or b in equal))


def _make_key(attributes: Iterable[int]) -> Key:
    return tuple(frozenset((one,)) for one in attributes)


def _pass_through(node: PlanNode, below: Key) -> Key:
    """The key in terms of the node's output; empty if the output lacks one of its columns."""
    above = tuple(frozenset(one for one, source in node.passed.items() if source in equal) for equal in below)
    return above if all(above) else ()
