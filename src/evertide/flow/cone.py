"""The cone of a delta: the rows of a stage's leaves that can take part in what the delta changes.

The difference rule: the delta of a stage is its result over the new rows minus its result over the old rows. It does
not change if each leaf is restricted to the cone, as long as each group of rows that a nonlinear operator needs
completely is completely in the cone if the delta touches it. Rows outside of the cone are in both results and cancel
out, so surplus rows cost time but do not change the result.

Two walks over the stage's tree:

    touched(node)           rows of the leaves below that form the rows of `node` that may have changed
    matching(node, keys)    rows of the leaves below that form all rows of `node` with one of these keys

    of                      touched
    a leaf                  its delta
    a row-wise operator     the touched rows of its child
    an inner join           each side's, and its partners on the other side
    an outer, semi or anti  the left's, and the left partners of the right's, and all right partners of both
    join                    (mirrored for RIGHT, on both sides for FULL)
    a group or partition    all rows of the groups that its child touches
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from evertide.flow.trace import StageCut, has_constant, has_leaf
from evertide.plan.algebra.nodes import Aggregate, Join, JoinType, PlanNode, TopK, Union, Window
from evertide.rows.changes import DIFF
from evertide.rows.conform import conform_table

Touched = dict[int, list[pa.Table]]
"""By leaf: tables with the columns that are read. Repeated rows have no meaning."""


class LeafReader(Protocol):
    """Reads a leaf: its rows before the transaction, and its delta, with the columns that the stage reads."""

    delta: pa.Table
    """Consolidated."""

    def get_column(self, attribute: int) -> str: ...

    def lookup(self, columns: tuple[str, ...], keys: pa.Table) -> pa.Table: ...

    def scan(self) -> pa.Table: ...


class _Side(NamedTuple):
    """An input of a join, and the attributes by which its rows find partners."""

    node: PlanNode
    keys: tuple[int, ...]
    is_null_safe: tuple[bool, ...]


class Cone:
    def __init__(self, cut: StageCut, leaves: Sequence[LeafReader]) -> None:
        self._cut = cut
        self._leaves = leaves
        self._known: dict[int, Touched] = {}
        self.fetched: list[list[pa.Table]] = [[] for _ in leaves]
        """Per leaf, the rows that were looked up, with their counts."""
        self.is_scanned = [False] * len(leaves)
        self.rounds = 0

    def collect(self) -> None:
        """Look up all rows of the cone."""
        self._find_touched(self._cut.root)

    def _find_touched(self, node: PlanNode) -> Touched:
        """A node that occurs twice is computed once."""
        if id(node) not in self._known:
            self._known[id(node)] = self._compute_touched(node)
        return self._known[id(node)]

    def _compute_touched(self, node: PlanNode) -> Touched:
        if self._cut.is_leaf(node):
            at = self._cut.find_leaf(node)
            delta = self._leaves[at].delta
            return {at: [delta.drop_columns([DIFF])]} if delta.num_rows else {}
        if isinstance(node, Join):
            return self._compute_touched_join(node)
        found: Touched = {}
        for child in node.children:
            found = _merge(found, self._find_touched(child))
        if found and isinstance(node, Aggregate | Window | TopK):
            [child] = node.children
            keys = node.keys if isinstance(node, Aggregate) else node.partition if isinstance(node, Window) else ()
            everything = self._find_matching(child, keys, self.collect_keys(child, keys, found, None))
            return _merge(found, everything)
        return found

    def _compute_touched_join(self, node: Join) -> Touched:
        left, right = self._list_sides(node)
        lefts, rights = self._find_touched(left.node), self._find_touched(right.node)
        if not lefts and not rights:
            return {}
        if node.join is JoinType.INNER:
            partners = _merge(self._find_partners(lefts, left, right), self._find_partners(rights, right, left))
            return _merge(_merge(lefts, rights), partners)
        # Constants are in no leaf. Their partners with a touched key must be complete, and represent them, so that
        # operators above know that they are touched.
        representatives: Touched = {}
        if has_constant(self._cut, left.node):
            rights = _merge(rights, self._find_partners(rights, right, right))
            representatives = rights
        if has_constant(self._cut, right.node):
            lefts = _merge(lefts, self._find_partners(lefts, left, left))
            representatives = _merge(representatives, lefts)
        return _merge(representatives, self._compute_touched_outer(node, lefts, rights))

    def _compute_touched_outer(self, node: Join, lefts: Touched, rights: Touched) -> Touched:
        left, right = self._list_sides(node)
        if node.join is JoinType.RIGHT_OUTER:
            rights = _merge(rights, self._find_partners(lefts, left, right))
            return _merge(rights, self._find_partners(rights, right, left))
        lefts = _merge(lefts, self._find_partners(rights, right, left))
        if node.join is JoinType.FULL_OUTER:
            rights = _merge(rights, self._find_partners(lefts, left, right))
            return _merge(rights, _merge(lefts, self._find_partners(rights, right, left)))
        return _merge(lefts, self._find_partners(lefts, left, right))

    def _list_sides(self, node: Join) -> tuple[_Side, _Side]:
        left, right = node.children
        by = self._cut.joins[id(node)]
        return _Side(left, by.left, by.is_null_safe), _Side(right, by.right, by.is_null_safe)

    def _find_partners(self, touched: Touched, of: _Side, side: _Side) -> Touched:
        """The rows of a side of a join with a key of the touched rows of the other, or the same, side `of`."""
        if not touched:
            return {}
        keys = self.collect_keys(of.node, of.keys, touched, of.is_null_safe)
        return self._find_matching(side.node, side.keys, keys)

    def collect_keys(
        self, node: PlanNode, attributes: tuple[int, ...], touched: Touched, null_safe: tuple[bool, ...] | None
    ) -> pa.Table | None:
        """The keys of the touched rows, named by position; None if there are no keys, so that all rows match."""
        if not attributes:
            return None
        found = self._collect_values(node, attributes, touched)
        if not found:
            return pa.table({})
        # Branches of a Union may differ in nullability, and in the names of the fields of structs.
        schema = pa.schema([pa.field(each.name, each.type) for each in found[0].schema])
        keys = pa.concat_tables([conform_table(each, schema) for each in found])
        for at, column in enumerate(keys.column_names):
            if null_safe is not None and not null_safe[at] and keys.column(column).null_count:
                keys = keys.filter(pc.is_valid(keys.column(column)))
        return keys

    def _collect_values(self, node: PlanNode, attributes: tuple[int, ...], touched: Touched) -> list[pa.Table]:
        if self._cut.is_leaf(node):
            at = self._cut.find_leaf(node)
            columns = [self._leaves[at].get_column(attribute) for attribute in attributes]
            names = [f"k{position}" for position in range(len(columns))]
            return [rows.select(columns).rename_columns(names) for rows in touched.get(at, [])]
        if isinstance(node, Union):
            places = [node.ids.index(attribute) for attribute in attributes]
            return [
                rows
                for child in node.children
                for rows in self._collect_values(child, tuple(child.ids[place] for place in places), touched)
            ]
        if isinstance(node, Join):
            side = next(child for child in node.children if attributes[0] in child.ids)
            return self._collect_values(side, attributes, touched)
        return self._collect_values(node.children[0], tuple(node.passed[at] for at in attributes), touched)

    def _find_matching(self, node: PlanNode, attributes: tuple[int, ...], keys: pa.Table | None) -> Touched:
        """Rows of leaves that form the rows of `node` with one of the keys; all rows if keys is None."""
        if keys is not None and keys.num_rows == 0:
            return {}
        if not has_leaf(self._cut, node):
            return {}
        if self._cut.is_leaf(node):
            return self._fetch(self._cut.find_leaf(node), attributes, keys)
        if isinstance(node, Union):
            places = [node.ids.index(attribute) for attribute in attributes]
            found: Touched = {}
            for child in node.children:
                found = _merge(found, self._find_matching(child, tuple(child.ids[place] for place in places), keys))
            return found
        if isinstance(node, Join):
            return self._find_matching_join(node, attributes, keys)
        [child] = node.children
        return self._find_matching(child, tuple(node.passed[at] for at in attributes), keys)

    def _find_matching_join(self, node: Join, attributes: tuple[int, ...], keys: pa.Table | None) -> Touched:
        left, right = self._list_sides(node)
        if keys is None:
            return _merge(self._find_matching(left.node, (), None), self._find_matching(right.node, (), None))
        side, other = (left, right) if attributes[0] in left.node.ids else (right, left)
        found = self._find_matching(side.node, attributes, keys)
        return _merge(found, self._find_partners(found, side, other))

    def _fetch(self, at: int, attributes: tuple[int, ...], keys: pa.Table | None) -> Touched:
        leaf = self._leaves[at]
        if keys is None:
            if not self.is_scanned[at]:
                self.is_scanned[at] = True
                self.fetched[at] = [leaf.scan()]
            rows = self.fetched[at][0]
        else:
            self.rounds += 1
            rows = leaf.lookup(tuple(leaf.get_column(attribute) for attribute in attributes), keys)
            if rows.num_rows and not self.is_scanned[at]:
                self.fetched[at].append(rows)
        found = [part.drop_columns([DIFF]) for part in (rows, leaf.delta) if part.num_rows]
        return {at: found} if found else {}


def _merge(a: Touched, b: Touched) -> Touched:
    if not a or not b:
        return a or b
    joined = dict(a)
    for leaf, tables in b.items():
        known = joined.get(leaf, [])
        joined[leaf] = [*known, *(table for table in tables if not any(table is other for other in known))]
    return joined
