"""The linear rule: what a delta makes of a stage of joins, without computing the pairs of rows that stay.

The difference rule computes the result over the new rows and over the old rows of the cone, and what is in both cancels
out. If a delta on each side of a join has the same frequent key, all pairs of rows with this key are in both results,
which costs up to two recomputations, and more to bring them to the driver. A stage of inner joins and row-wise
operators is linear in each of its leaves, so that only the pairs that come and those that go need to be computed. The
rows of leaf i are

    old = stays + goes        new = stays + comes

    rows that come = the sum over i of f(stays of the leaves before i, comes of i, new rows of the leaves after i)
    rows that go   = the sum over i of f(stays of the leaves before i, goes of i, old rows of the leaves after i)

1. Every pair that is computed is in the new result, or in the old one. So no expression is evaluated on a pair of rows
   that were never there together, and might fail.
2. A Union adds its branches. In the term of a leaf, the leaves of other branches have no rows.
3. A leaf that is read at two places is not linear. Nor is a branch of a Union with constants, as they would be in the
   term of each leaf.
4. An outer join is the sum of an inner join, and of the rows of a side without a partner, which are an anti join. The
   inner join runs by this rule. The anti joins run by the difference rule: their cost is that of their rows, not of
   pairs. A stage with one outer join is computed so, if no Union lies above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from evertide.flow.leaf_rows import Moves
from evertide.flow.trace import Cut, has_constant
from evertide.plan.algebra.nodes import Constant, Expand, Filter, Generate, Join, Map, Node, Union
from evertide.plan.fragment.forms import Form
from evertide.plan.fragment.fragment import Term

__all__ = ["Linear"]

_ROW_WISE = (Map, Filter, Expand, Generate, Constant)
_ALONE = {
    "LeftOuter": (Form.LEFT_ALONE,),
    "RightOuter": (Form.RIGHT_ALONE,),
    "FullOuter": (Form.LEFT_ALONE, Form.RIGHT_ALONE),
}


class Linear:
    """The terms of one stage."""

    def __init__(self, cut: Cut) -> None:
        outer = [node.join for node in _list_own_nodes(cut, cut.root) if isinstance(node, Join) and node.join in _ALONE]
        self.holds = _is_linear(cut) and len(outer) <= 1
        """Whether the rule is valid for the stage."""
        self.form = Form.MATCHED if outer else Form.WHOLE
        """Of which this rule computes the rows."""
        self.forms_alone = _ALONE[outer[0]] if self.holds and outer else ()
        """Of which the difference rule computes the others."""
        self._apart = (
            {at: frozenset(_find_apart(cut, cut.root, at)) for at in range(len(cut.leaves))} if self.holds else {}
        )
        """Of each leaf: those in other branches of a Union."""

    def make_terms(self, leaves: Sequence[Moves]) -> list[Term]:
        """Rows that go with the sign -1, and then rows that come."""
        found: list[Term] = []
        for sign in (-1, 1):
            for at, moves in enumerate(leaves):
                if (moves.goes if sign < 0 else moves.comes).num_rows:
                    found.append(
                        (sign, [self._choose_rows(sign, at, other, leaves[other]) for other in range(len(leaves))])
                    )
        return found

    def _choose_rows(self, sign: int, at: int, other: int, moves: Moves) -> pa.Table:
        if other in self._apart[at]:
            return moves.stays.slice(0, 0)
        if other < at:
            return moves.stays
        if other > at:
            return moves.old if sign < 0 else moves.new
        return moves.goes if sign < 0 else moves.comes


def _is_linear(cut: Cut) -> bool:
    places = Counter(id(leaf) for leaf in _list_leaves(cut, cut.root))
    return len(places) > 1 and max(places.values()) == 1 and _has_linear_nodes(cut, cut.root)


def _list_leaves(cut: Cut, node: Node) -> Iterator[Node]:
    if cut.is_leaf(node):
        yield node
        return
    for child in node.children:
        yield from _list_leaves(cut, child)


def _list_own_nodes(cut: Cut, node: Node) -> Iterator[Node]:
    """The nodes of the stage, without its leaves."""
    if not cut.is_leaf(node):
        yield node
        for child in node.children:
            yield from _list_own_nodes(cut, child)


def _has_linear_nodes(cut: Cut, node: Node) -> bool:
    if cut.is_leaf(node):
        return True
    if isinstance(node, Union):
        has_outer = any(isinstance(below, Join) and below.join in _ALONE for below in _list_own_nodes(cut, node))
        is_linear = not has_outer and not any(has_constant(cut, child) for child in node.children)
    elif isinstance(node, Join):
        is_linear = node.join == "Inner" or node.join in _ALONE
    else:
        is_linear = isinstance(node, _ROW_WISE)
    return is_linear and all(_has_linear_nodes(cut, child) for child in node.children)


def _find_apart(cut: Cut, node: Node, at: int) -> Iterator[int]:
    """The leaves that no row of the node has a part in together with the leaf `at`."""
    if cut.is_leaf(node):
        return
    for child in node.children:
        below = {cut.leaf_number(leaf) for leaf in _list_leaves(cut, child)}
        if at in below:
            yield from _find_apart(cut, child, at)
        elif isinstance(node, Union):
            yield from below
