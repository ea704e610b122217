"""Cuts a plan into stages, and traces columns of nodes to columns of a stage's leaves.

A stage is a part of a plan that runs as one fragment. Its leaves are collections: tables, groups of an additive
aggregate, outputs of other stages. Rows of the leaves meet by keys: of joins, groups, partitions. To find the rows that
a delta can touch, keys are *traced*: a key column of a node is a column of one leaf that is passed up unchanged. Where
it is not (it is computed, or is NULL for rows without a match), the plan is cut: the node below becomes a stage, and so
a leaf with that key as a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from evertide.plan.algebra.nodes import (
    Aggregate,
    ConstantRows,
    Filter,
    Join,
    JoinType,
    Map,
    PlanNode,
    Scan,
    TopK,
    Union,
    Window,
    walk,
)


@dataclass(frozen=True, slots=True)
class JoinKeys:
    """The keys by which rows of a join find their partners; without keys, any row may be a partner."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    is_null_safe: tuple[bool, ...]


@dataclass(slots=True)
class StageCut:
    """A stage: its root, its leaves in order of appearance (by identity), and the keys of its joins by node."""

    root: PlanNode
    leaves: list[PlanNode] = field(default_factory=list)
    joins: dict[int, JoinKeys] = field(default_factory=dict)
    shared: Set[int] = frozenset()

    def is_leaf(self, node: PlanNode) -> bool:
        return any(node is leaf for leaf in self.leaves)

    def find_leaf(self, node: PlanNode) -> int:
        return next(at for at, leaf in enumerate(self.leaves) if leaf is node)

    def find_source(self, node: PlanNode, attribute: int, *, for_match: bool) -> tuple[int, ...] | None:  # noqa: PLR0911 - per kind
        """The leaves (one, or one per branch of a Union) with the attribute as a column; None if it is computed.

        `for_match`: a look-up in the leaf must find all rows of the node with a value of the attribute.
        """
        if self.is_leaf(node):
            return (self.find_leaf(node),) if attribute in node.ids else None
        if isinstance(node, Union):
            at = node.ids.index(attribute)
            found = [self.find_source(child, child.ids[at], for_match=for_match) for child in node.children]
            if any(part is None for part in found):
                return None
            return tuple(leaf for part in found if part is not None for leaf in part)
        if isinstance(node, Join):
            return self._find_source_in_join(node, attribute, for_match=for_match)
        if isinstance(node, TopK) and for_match:
            return None
        if isinstance(node, ConstantRows) or attribute not in node.passed:
            return None
        below = node.passed[attribute]
        if isinstance(node, Window) and for_match and below not in node.partition:
            return None
        return self.find_source(node.children[0], below, for_match=for_match)

    def _find_source_in_join(self, node: Join, attribute: int, *, for_match: bool) -> tuple[int, ...] | None:
        left, right = node.children
        if attribute in left.ids:
            if for_match and node.join in (JoinType.RIGHT_OUTER, JoinType.FULL_OUTER):
                return None
            return self.find_source(left, attribute, for_match=for_match)
        if attribute not in right.ids or (for_match and node.join not in (JoinType.INNER, JoinType.RIGHT_OUTER)):
            return None
        return self.find_source(right, attribute, for_match=for_match)


def cut_plan(root: PlanNode, shared: Set[int] = frozenset()) -> StageCut:
    """Cut the stage of this root; leaves that are not tables or additive aggregates are roots of further stages.

    `shared` has the ids of nodes that several parts of the plan read; each becomes a stage.
    """
    cut = StageCut(root, shared=shared)
    _cut(cut, root)
    cut.leaves = _list_reached_leaves(root, cut)
    return cut


def find_shared(plan: PlanNode) -> Set[int]:
    """Ids of the nodes that copies read (`evertide.plan.algebra.sharing`), without nodes that have state anyway."""
    found: set[int] = set()
    seen: set[int] = set()
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            waiting += node.children
            if isinstance(node, Map) and node.is_copy and not _is_own_collection(_skip_maps(node)):
                found.add(id(node.children[0]))
    return found


def _skip_maps(node: PlanNode) -> PlanNode:
    while isinstance(node, Map | Filter):
        [node] = node.children
    return node


def _list_reached_leaves(node: PlanNode, cut: StageCut) -> list[PlanNode]:
    """The leaves of the stage: a cut further up hides those below it."""
    if cut.is_leaf(node):
        return [node]
    found: list[PlanNode] = []
    for child in node.children:
        found += [leaf for leaf in _list_reached_leaves(child, cut) if not any(leaf is other for other in found)]
    return found


def _cut(cut: StageCut, node: PlanNode) -> None:
    if cut.is_leaf(node):
        return
    if isinstance(node, Scan) or _is_own_collection(node) or (id(node) in cut.shared and node is not cut.root):
        cut.leaves.append(node)
        return
    for child in node.children:
        _cut(cut, child)
    if isinstance(node, Join):
        _cut_join(cut, node)
    elif isinstance(node, Aggregate | Window):
        keys = node.keys if isinstance(node, Aggregate) else node.partition
        if keys and not _is_one_leaf(cut, node.children[0], keys):
            _make_leaf(cut, node.children[0])


def _is_own_collection(node: PlanNode) -> bool:
    """Whether the node has its own state, and so never runs inside a stage."""
    return (isinstance(node, Aggregate) and node.is_additive) or (isinstance(node, TopK) and node.first is not None)


def _is_one_leaf(cut: StageCut, node: PlanNode, attributes: Iterable[int]) -> bool:
    """Whether all attributes come from one leaf, so that one look-up can use all of them."""
    found = {cut.find_source(node, attribute, for_match=True) for attribute in attributes}
    return len(found) == 1 and None not in found


def _make_leaf(cut: StageCut, node: PlanNode) -> None:
    """Make a node a leaf, unless it is constant: constants never change. Aggregates of constants are leaves.

    For a node without columns, its inputs become leaves: an Arrow table without columns has no rows.
    """
    if not node.output:
        for child in node.children:
            _make_leaf(cut, child)
        return
    if not cut.is_leaf(node) and any(isinstance(below, Scan) or _is_own_collection(below) for below in walk(node)):
        cut.leaves.append(node)


def _cut_join(cut: StageCut, node: Join) -> None:
    left, right = node.children
    if not node.keys:
        cut.joins[id(node)] = JoinKeys((), (), ())
        for child in (left, right):
            if is_one_row(child):
                _make_leaf(cut, child)
        return
    chosen = _choose_keys(cut, node)
    if not chosen:
        for child, at in ((left, 0), (right, 1)):
            if all(cut.find_source(child, pair[at], for_match=True) is None for pair in node.keys):
                _make_leaf(cut, child)
        chosen = _choose_keys(cut, node)
    if not chosen:  # no pair can be traced on both sides: cut both
        _make_leaf(cut, left)
        _make_leaf(cut, right)
        chosen = _choose_keys(cut, node)
    pairs = [node.keys[at] for at in chosen]
    null_safe = tuple(node.is_null_safe[at] for at in chosen)
    cut.joins[id(node)] = JoinKeys(tuple(a for a, _ in pairs), tuple(b for _, b in pairs), null_safe)


def is_one_row(node: PlanNode) -> bool:
    """Whether the node has one row. As a leaf, it touches the other side only when its final value changes."""
    node = _skip_maps(node)
    return isinstance(node, Aggregate) and not node.keys


def _choose_keys(cut: StageCut, node: Join) -> list[int]:
    """The most selective pairs of keys between one leaf on each side: a unique key, or else the most columns."""
    left, right = node.children
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for at, (a, b) in enumerate(node.keys):
        sources = cut.find_source(left, a, for_match=True), cut.find_source(right, b, for_match=True)
        if sources[0] is not None and sources[1] is not None:
            groups.setdefault((sources[0], sources[1]), []).append(at)
    if not groups:
        return []

    def rate(item: tuple[tuple[tuple[int, ...], tuple[int, ...]], list[int]]) -> tuple[bool, int]:
        (_, sources), pairs = item
        columns = {node.keys[at][1] for at in pairs}
        return _has_unique_key(cut, right, sources, columns), len(pairs)

    return max(groups.items(), key=rate)[1]


def _has_unique_key(cut: StageCut, node: PlanNode, sources: tuple[int, ...], columns: set[int]) -> bool:
    if len(sources) != 1:
        return False
    leaf = cut.leaves[sources[0]]
    unique = leaf.unique if isinstance(leaf, Scan) else leaf.keys if isinstance(leaf, Aggregate) else ()
    below = {trace(cut, node, column) for column in columns}
    return bool(unique) and set(unique) <= below


def trace(cut: StageCut, node: PlanNode, attribute: int) -> int:
    """The attribute of the leaf behind an attribute that comes from one leaf."""
    while not cut.is_leaf(node):
        if isinstance(node, Join):
            node = next(child for child in node.children if attribute in child.ids)
        else:
            attribute, node = node.passed[attribute], node.children[0]
    return attribute


def has_constant(cut: StageCut, node: PlanNode) -> bool:
    """Whether the node has rows that are in no leaf."""
    if cut.is_leaf(node):
        return False
    return isinstance(node, ConstantRows) or any(has_constant(cut, child) for child in node.children)


def has_leaf(cut: StageCut, node: PlanNode) -> bool:
    """Whether the node reads a leaf, so that its rows can change."""
    return cut.is_leaf(node) or any(has_leaf(cut, child) for child in node.children)


def list_own_nodes(cut: StageCut, node: PlanNode) -> Iterator[PlanNode]:
    """The nodes of the stage, without its leaves."""
    if not cut.is_leaf(node):
        yield node
        for child in node.children:
            yield from list_own_nodes(cut, child)
