"""The linear rule: computes the delta of a stage of joins without the pairs of unchanged rows.

The difference rule computes the results over the new rows and over the old rows of the cone; rows in both cancel out.
If a delta on each side of a join has the same frequent key, all pairs of rows with this key are in both results. They
cost up to two recomputations, and their transfer to the driver costs more. A stage of inner joins and row-wise
operators is linear in each of its leaves, so only the added and the removed pairs need to be computed. The rows of
leaf i are

    old = unchanged + removed        new = unchanged + added

    added   = the sum over i of f(unchanged rows of leaves before i, added rows of i, new rows of leaves after i)
    removed = the sum over i of f(unchanged rows of leaves before i, removed rows of i, old rows of leaves after i)

1. Every computed pair is in the new or in the old result. So no expression is evaluated on a pair of rows that never
   existed at the same time, which could raise an error.
2. A Union adds its branches. In the term of a leaf, the leaves of other branches have no rows.
3. A stage that reads a leaf in two places is not linear. Nor is a Union with constants in a branch, which would be in
   the term of each leaf.
4. An outer join is the sum of an inner join and of anti joins: the rows of a side without a partner. The inner join
   runs by the linear rule. The anti joins run by the difference rule, at a cost per row, not per pair. This applies to
   a stage with one outer join, which the optimizer left as it is, and no Union above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from evertide.flow.leaf_rows import SplitRows
from evertide.flow.trace import StageCut, has_constant, list_own_nodes
from evertide.plan.algebra.nodes import ConstantRows, Expand, Filter, Generate, Join, JoinType, Map, PlanNode, Union
from evertide.plan.fragment.forms import Form
from evertide.plan.fragment.fragment import Term

_ROW_WISE = (Map, Filter, Expand, Generate, ConstantRows)
_UNMATCHED = {
    JoinType.LEFT_OUTER: (Form.UNMATCHED_LEFT,),
    JoinType.RIGHT_OUTER: (Form.UNMATCHED_RIGHT,),
    JoinType.FULL_OUTER: (Form.UNMATCHED_LEFT, Form.UNMATCHED_RIGHT),
}


class LinearRule:
    """The terms of one stage."""

    def __init__(self, cut: StageCut, find_outer_joins: Callable[[], list[JoinType]]) -> None:
        """`find_outer_joins` returns the types of the outer joins that the optimizer left."""
        outer = [
            node.join for node in list_own_nodes(cut, cut.root) if isinstance(node, Join) and node.join in _UNMATCHED
        ]
        self.is_valid = _is_linear(cut) and len(outer) <= 1 and (not outer or find_outer_joins() == outer)
        """Whether the rule may be used for the stage."""
        self.form = Form.MATCHED if outer else Form.WHOLE
        """The form of the stage that runs by the linear rule."""
        self.forms_unmatched = _UNMATCHED[outer[0]] if self.is_valid and outer else ()
        """The forms that run by the difference rule."""
        self._apart = (
            {at: frozenset(_find_apart(cut, cut.root, at)) for at in range(len(cut.leaves))} if self.is_valid else {}
        )
        """Per leaf: the leaves in other branches of a Union."""

    def make_terms(self, leaves: Sequence[SplitRows]) -> list[Term]:
        """The terms of removed rows, with the sign -1, then those of added rows."""
        found: list[Term] = []
        for sign in (-1, 1):
            for at, split in enumerate(leaves):
                if (split.removed if sign < 0 else split.added).num_rows:
                    found.append(
                        (sign, [self._choose_rows(sign, at, other, leaves[other]) for other in range(len(leaves))])
                    )
        return found

    def _choose_rows(self, sign: int, at: int, other: int, split: SplitRows) -> pa.Table:
        if other in self._apart[at]:
            return split.unchanged.slice(0, 0)
        if other < at:
            return split.unchanged
        if other > at:
            return split.old if sign < 0 else split.new
        return split.removed if sign < 0 else split.added


def _is_linear(cut: StageCut) -> bool:
    places = Counter(id(leaf) for leaf in _list_leaves(cut, cut.root))
    return len(places) > 1 and max(places.values()) == 1 and _has_linear_nodes(cut, cut.root)


def _list_leaves(cut: StageCut, node: PlanNode) -> Iterator[PlanNode]:
    if cut.is_leaf(node):
        yield node
        return
    for child in node.children:
        yield from _list_leaves(cut, child)


def _has_linear_nodes(cut: StageCut, node: PlanNode) -> bool:
    if cut.is_leaf(node):
        return True
    if isinstance(node, Union):
        has_outer = any(isinstance(below, Join) and below.join in _UNMATCHED for below in list_own_nodes(cut, node))
        is_linear = not has_outer and not any(has_constant(cut, child) for child in node.children)
    elif isinstance(node, Join):
        is_linear = node.join is JoinType.INNER or node.join in _UNMATCHED
    else:
        is_linear = isinstance(node, _ROW_WISE)
    return is_linear and all(_has_linear_nodes(cut, child) for child in node.children)


def _find_apart(cut: StageCut, node: PlanNode, at: int) -> Iterator[int]:
    """The leaves whose rows never form a row of the node together with rows of the leaf `at`."""
    if cut.is_leaf(node):
        return
    for child in node.children:
        below = {cut.find_leaf(leaf) for leaf in _list_leaves(cut, child)}
        if at in below:
            yield from _find_apart(cut, child, at)
        elif isinstance(node, Union):
            yield from below
