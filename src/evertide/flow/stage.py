"""A stage: a part of a plan that runs as one fragment over the cone of a delta.

It runs by the difference rule. A large run of a stage of joins whose cone has unchanged rows runs by the linear rule
(`evertide.flow.linear`), which computes fewer pairs of rows, in more terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from typing import TypeAlias

import pyarrow as pa

from evertide.flow.collection import CircuitCollection, Leaf
from evertide.flow.cone import Cone
from evertide.flow.leaf_rows import SplitRows, cancel_out, split_rows
from evertide.flow.linear import LinearRule
from evertide.flow.pairs import multiplies_rows
from evertide.flow.trace import StageCut, has_constant, has_leaf, list_own_nodes, trace
from evertide.plan.algebra.nodes import (
    Aggregate,
    ConstantRows,
    Expand,
    Generate,
    Join,
    JoinType,
    PlanNode,
    TopK,
    Union,
    Window,
)
from evertide.plan.fragment.condensed_column import ColumnUse
from evertide.plan.fragment.forms import Form
from evertide.plan.fragment.fragment import Fragment, Term
from evertide.rows.changes import DIFF

Lookup: TypeAlias = "tuple[int, tuple[int, ...]]"
"""A leaf, and the attributes by which its rows are looked up; none for a scan."""
ROWS_SURPLUS_MAX = 4_096
"""With more unchanged rows in the cone of the changed leaves, a small run of inner joins uses the linear rule as well.
That rule has up to two terms per leaf; the difference rule has two in total."""
TERMS_FEW = 4
"""Up to this number of terms, those of two leaves, the linear rule is never slower for a large run."""


class RunKind(StrEnum):
    """How a stage computed a delta."""

    SMALL = "small"
    """In the driver."""
    LARGE = "large"
    """On the executors."""
    WIDE = "wide"
    """On the executors, which also read and write the rows (`evertide.flow.wide`)."""
    RECOMPUTE = "recompute"
    """On the executors, from all rows of a leaf."""


class Stage:
    """A part of a view's plan, with the leaves that it reads and the collection that it outputs."""

    def __init__(self, cut: StageCut, fragment: Fragment, leaves: Sequence[Leaf], output: CircuitCollection) -> None:
        self.cut = cut
        self.fragment = fragment
        self.leaves = tuple(leaves)
        self.output = output
        self.run_counts: Counter[RunKind] = Counter()
        self._linear = LinearRule(cut, fragment.find_outer_joins)
        self.has_expansion = any(isinstance(node, Expand | Generate) for node in list_own_nodes(cut, cut.root))
        for at, attributes in sorted(find_lookups(cut)):
            self.leaves[at].need(attributes)

    def count_run(self, kind: RunKind) -> None:
        self.run_counts[kind] += 1

    def run(self, *, is_first: bool) -> None:
        """Set the delta of the output. The first time, rows that exist without input are new."""
        for leaf in self.leaves:
            leaf.begin()
        self.output.set_delta(cancel_out(self._compute_delta(is_first=is_first), self.output.name))

    def _compute_delta(self, *, is_first: bool) -> pa.Table:
        if not is_first and not any(leaf.delta.num_rows for leaf in self.leaves):
            return self.output.empty
        if (columns := self.list_selected_columns()) is not None:
            return self._select_columns(columns)
        cone = Cone(self.cut, self.leaves)
        cone.collect()
        split = [
            split_rows(leaf.delta, fetched, self.output.name)
            for leaf, fetched in zip(self.leaves, cone.fetched, strict=True)
        ]
        whole: list[Term] = [(-1, [each.old for each in split]), (1, [each.new for each in split])]
        terms = self._drop_empty(whole[is_first:])  # the first run has no old rows
        if not terms:
            return self.output.empty
        surplus = sum(each.unchanged.num_rows for each in split if each.changed_rows)
        large = self._make_large_terms(split, terms) if self._linear.is_valid and surplus else None
        if large is not None and large.keys() == {Form.WHOLE} and surplus > ROWS_SURPLUS_MAX:
            terms = large[Form.WHOLE]
            if not terms:
                return self.output.empty
        found = self.fragment.run(terms, uses=self._choose_uses(cone, terms), large=large)
        is_large = self.fragment.is_large(terms)  # the run may have changed this
        large_kind = RunKind.RECOMPUTE if any(leaf.was_scanned for leaf in self.leaves) else RunKind.LARGE
        self.run_counts[large_kind if is_large else RunKind.SMALL] += 1
        return found

    def _choose_uses(self, cone: Cone, terms: Sequence[Term]) -> tuple[ColumnUse, ...] | None:
        """What the reader needs of each column, if the executors are to condense the rows."""
        uses = self.output.uses if self.fragment.is_large(terms) else None
        return uses if uses is not None and self._is_multiplying(cone, terms) else None

    def _is_multiplying(self, cone: Cone, terms: Sequence[Term]) -> bool:
        """Whether the stage makes many more rows than it reads."""
        return self.has_expansion or any(multiplies_rows(self.cut, cone, rows) for _, rows in terms)

    def _make_large_terms(self, split: Sequence[SplitRows], terms: list[Term]) -> dict[Form, list[Term]] | None:
        """The terms of the linear rule, or None if the difference rule, with `terms`, is better: each term is a plan,
        and the more rows change, the fewer pairs are unchanged."""
        linear = [
            (sign, rows)
            for sign, rows in self._linear.make_terms(split)
            if not self._is_empty(self.cut.root, [each.num_rows for each in rows], is_inner=True)
        ]
        changed = [each for each in split if each.changed_rows]
        if len(linear) > TERMS_FEW and sum(each.unchanged.num_rows - each.changed_rows for each in changed) <= 0:
            return None
        return {self._linear.form: linear, **dict.fromkeys(self._linear.forms_unmatched, terms)}

    def _drop_empty(self, terms: list[Term]) -> list[Term]:
        return [(sign, rows) for sign, rows in terms if not self.is_empty([each.num_rows for each in rows])]

    def is_empty(self, counts: Sequence[int]) -> bool:
        """Whether the stage certainly outputs no rows, given the number of rows of each leaf."""
        return self._is_empty(self.cut.root, counts)

    def list_selected_columns(self) -> list[str] | None:
        """The columns of the only leaf that are the stage's output; None if the stage computes anything."""
        if not self.fragment.is_rename_only or len(self.leaves) != 1:
            return None
        [leaf] = self.leaves
        root = self.cut.root
        return [leaf.get_column(trace(self.cut, root, attribute.id)) for attribute in root.output]

    def _select_columns(self, columns: Sequence[str]) -> pa.Table:
        """Select and reorder the columns of the delta without Spark."""
        [leaf] = self.leaves
        self.run_counts[RunKind.SMALL] += 1
        selected = [leaf.delta.column(column) for column in (*columns, DIFF)]
        return pa.Table.from_arrays(selected, schema=self.output.empty.schema)

    def _is_empty(self, node: PlanNode, counts: Sequence[int], *, is_inner: bool = False) -> bool:
        """Whether the node certainly has no rows. `is_inner` treats all joins as inner."""
        if self.cut.is_leaf(node):
            return counts[self.cut.find_leaf(node)] == 0
        if isinstance(node, ConstantRows) or (isinstance(node, Aggregate) and not node.keys):
            return False
        found = [self._is_empty(child, counts, is_inner=is_inner) for child in node.children]
        if isinstance(node, Join):
            either = is_inner or node.join in (JoinType.INNER, JoinType.LEFT_SEMI)
            side = {JoinType.RIGHT_OUTER: found[1], JoinType.FULL_OUTER: all(found)}.get(node.join, found[0])
            return any(found) if either else side
        return all(found)


def list_joined(cut: StageCut, joins: Collection[JoinType]) -> Iterator[tuple[Lookup, Lookup]]:
    """Of each join of these types, the look-ups of its left and its right side, in the first leaf of each."""
    for node in list_own_nodes(cut, cut.root):
        if isinstance(node, Join) and node.join in joins:
            by = cut.joins[id(node)]
            left, right = (
                next(_find_matched(cut, side, keys), None)
                for side, keys in zip(node.children, (by.left, by.right), strict=True)
            )
            if left is not None and right is not None:
                yield left, right


def find_lookups(cut: StageCut) -> set[tuple[int, tuple[int, ...]]]:
    """All look-ups that a cone of this stage may do: leaf and attributes; no attributes for a scan."""
    return set(_find_lookups_below(cut, cut.root))


def _find_lookups_below(cut: StageCut, node: PlanNode) -> Iterator[tuple[int, tuple[int, ...]]]:
    if cut.is_leaf(node):
        return
    for child in node.children:
        yield from _find_lookups_below(cut, child)
    yield from find_own_lookups(cut, node)


def find_own_lookups(cut: StageCut, node: PlanNode) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The look-ups for this operator."""
    if isinstance(node, Join):
        left, right = node.children
        by = cut.joins[id(node)]
        is_outer = node.join is not JoinType.INNER
        if has_leaf(cut, right) or (is_outer and has_constant(cut, right)):
            yield from _find_matched(cut, left, by.left)
        if has_leaf(cut, left) or (is_outer and has_constant(cut, left)):
            yield from _find_matched(cut, right, by.right)
    elif isinstance(node, Aggregate | Window | TopK):
        keys = node.keys if isinstance(node, Aggregate) else node.partition if isinstance(node, Window) else ()
        yield from _find_matched(cut, node.children[0], keys)


def _find_matched(cut: StageCut, node: PlanNode, attributes: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The look-ups of `Cone._find_matching`."""
    if not has_leaf(cut, node):
        return
    if cut.is_leaf(node):
        leaf = cut.find_leaf(node)
        yield leaf, attributes
    elif isinstance(node, Union):
        places = [node.ids.index(attribute) for attribute in attributes]
        for child in node.children:
            yield from _find_matched(cut, child, tuple(child.ids[place] for place in places))
    elif isinstance(node, Join):
        left, right = node.children
        by = cut.joins[id(node)]
        if not attributes:
            yield from _find_matched(cut, left, ())
            yield from _find_matched(cut, right, ())
        elif attributes[0] in left.ids:
            yield from _find_matched(cut, left, attributes)
            yield from _find_matched(cut, right, by.right)
        else:
            yield from _find_matched(cut, right, attributes)
            yield from _find_matched(cut, left, by.left)
    else:
        yield from _find_matched(cut, node.children[0], tuple(node.passed[at] for at in attributes))
