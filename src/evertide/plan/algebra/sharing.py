"""Makes equal parts of a view's plan one node, which is computed once.

Spark's optimizer inlines a WITH clause into each subquery that reads it; Spark's execution reuses exchanges instead.
Here each copy would be a separate stage with look-ups and state, computed again for each touched row.

A part with the fingerprint of an earlier part becomes a Map that renames the columns of the earlier one
(`Map.is_copy`). The node that a copy reads becomes a stage (`evertide.flow.trace`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evertide.plan.algebra.aggregates import make_map
from evertide.plan.algebra.node_fingerprints import NodeFingerprints
from evertide.plan.algebra.nodes import PlanNode, Scan, walk
from evertide.plan.catalyst.canonical import CanonicalForms
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.walk import read_list


class SharedParts:
    """The shared parts of one view."""

    def __init__(self, catalyst: Catalyst, canonical: CanonicalForms) -> None:
        self._catalyst = catalyst
        self._known: dict[int, str] = {}
        self._fingerprints = NodeFingerprints(canonical, {}, {}, self._known)
        self._first: dict[str, PlanNode] = {}
        self._alive: list[PlanNode] = []
        """All nodes that were hashed: fingerprints are kept by the id of a node, so the node must stay alive."""

    def share(self, node: PlanNode) -> PlanNode:
        """Return the node, or a Map over an earlier node with the same rows.

        A node without columns is not shared: as a collection it would lose its rows, since an Arrow table without
        columns has none.
        """
        if not node.output or not any(isinstance(below, Scan) for below in walk(node)):
            return node
        self._alive.append(node)
        found = self._fingerprints.hash_node(node)
        first = self._first.setdefault(found, node)
        if first is node:
            return node
        copy = self._copy(first, node)
        self._alive.append(copy)
        self._known[id(copy)] = found
        return copy

    def _copy(self, first: PlanNode, node: PlanNode) -> PlanNode:
        pairs: list[tuple[Any, Any]] = list(
            zip(read_list(first.jvm.output()), read_list(node.jvm.output()), strict=True)
        )
        columns = [self._catalyst.alias(old, new.name(), new.exprId()) for old, new in pairs]
        return replace(make_map(self._catalyst, columns, first), is_copy=True)
