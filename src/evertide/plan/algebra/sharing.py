"""Parts of a view's plan that occur twice are one node, and so are computed once.

A WITH clause that several subqueries read is part of the plan once for each: so Spark's optimizer leaves it. Spark
itself reuses what its exchanges made; here each copy would be a stage, with look-ups and state of its own, and a stage
above would compute all of its copies again for each touched row.

The second part that has the fingerprint of an earlier one becomes a Map that renames the columns of that one
(`Map.is_copy`). Where the plan is cut into stages, what a copy reads is a stage of its own (`evertide.flow.trace`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evertide.plan.algebra.aggregates import make_map
from evertide.plan.algebra.node_fingerprints import NodeFingerprints
from evertide.plan.algebra.nodes import Node, Scan, walk
from evertide.plan.catalyst.canonical import Canonical
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.scala import sequence

__all__ = ["Sharing"]


class Sharing:
    """The parts of one view."""

    def __init__(self, catalyst: Catalyst, canonical: Canonical) -> None:
        self._catalyst = catalyst
        self._known: dict[int, str] = {}
        self._prints = NodeFingerprints(canonical, {}, {}, self._known)
        self._first: dict[str, Node] = {}
        self._alive: list[Node] = []
        """All that was hashed: the prints know nodes by their ids."""

    def share(self, node: Node) -> Node:
        """The node itself, or a copy of an earlier one that has the same rows. One without columns, of which only the
        number of rows is asked, stays what it is: as a collection of its own it would be empty, as tables of Arrow are.
        """
        if not node.output or not any(isinstance(below, Scan) for below in walk(node)):
            return node
        self._alive.append(node)
        found = self._prints.of(node)
        first = self._first.setdefault(found, node)
        if first is node:
            return node
        made = self._copy(first, node)
        self._alive.append(made)
        self._known[id(made)] = found
        return made

    def _copy(self, first: Node, node: Node) -> Node:
        pairs: list[tuple[Any, Any]] = list(zip(sequence(first.jvm.output()), sequence(node.jvm.output()), strict=True))
        columns = [self._catalyst.alias(old, new.name(), new.exprId()) for old, new in pairs]
        return replace(make_map(self._catalyst, columns, first), is_copy=True)
