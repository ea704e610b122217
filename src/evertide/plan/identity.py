"""The columns that tell the rows of a view apart, where its plan proves that they do.

1. A table's key does so wherever rows are only filtered, mapped, numbered or limited, and all its columns are handed on
   as they are. Semi and anti joins filter, too.
2. The columns of a GROUP BY tell groups apart.
3. Everything else may make two rows that are alike. Whoever knows better says so: `evertide.key`.
"""

from __future__ import annotations

from evertide.plan.nodes import Aggregate, Filter, Join, Map, Node, Scan, TopK, Window

__all__ = ["key_of"]

_FILTERS = frozenset(("LeftSemi", "LeftAnti", "Existence", "LeftSingle"))
"""Joins that have each row of their left side once, or not at all."""


def key_of(plan: Node) -> tuple[str, ...]:
    """The names of such columns; empty if none are known."""
    names = {attribute.id: attribute.name for attribute in plan.output}
    return tuple(names[attribute] for attribute in _key(plan))


def _key(node: Node) -> tuple[int, ...]:
    if isinstance(node, Scan):
        return node.unique
    if isinstance(node, Aggregate):
        return () if node.is_session else _handed_on(node, node.keys)
    if isinstance(node, Map | Filter | Window | TopK):
        return _handed_on(node, _key(node.children[0]))
    if isinstance(node, Join) and node.join in _FILTERS:
        return _key(node.children[0])
    return ()


def _handed_on(node: Node, below: tuple[int, ...]) -> tuple[int, ...]:
    """The attributes of the output that these are, if all of them are there."""
    above = {source: attribute for attribute, source in reversed(node.passed.items())}
    return tuple(above[attribute] for attribute in below) if all(one in above for one in below) else ()
