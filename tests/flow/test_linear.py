"""The linear rule against the difference rule: the same delta, from fewer pairs, all of which existed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import pyarrow as pa
import pytest

from evertide.flow.leaf_rows import SplitRows, split_rows
from evertide.flow.linear import LinearRule
from evertide.flow.trace import StageCut
from evertide.plan.algebra.nodes import Aggregate, ConstantRows, Join, JoinType, Map, PlanNode, Scan, Union
from evertide.plan.fragment.forms import Form
from evertide.rows.changes import DIFF, expand
from tests.kit.runtime import RandomStream

ROWS = range(4)
SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64())])


def scan() -> Scan:
    return Scan(jvm=None, output=(), collection="t")


def join(left: PlanNode, right: PlanNode, kind: JoinType = JoinType.INNER) -> Join:
    return Join(jvm=None, output=(), children=(left, right), join=kind, keys=((1, 2),), is_null_safe=(), has_more=False)


def union(*children: PlanNode) -> Union:
    return Union(jvm=None, output=(), children=children)


def cut_of(root: PlanNode, *leaves: PlanNode) -> StageCut:
    return StageCut(root, leaves=list(leaves))


A, B, C, D = scan(), scan(), scan(), scan()
LINEAR = {
    "two": cut_of(join(A, B), A, B),
    "three": cut_of(join(join(A, B), C), A, B, C),
    "a bush": cut_of(join(join(A, B), join(C, D)), A, B, C, D),
    "a union": cut_of(union(A, B), A, B),
    "a union below": cut_of(join(union(A, B), C), A, B, C),
    "joins below a union": cut_of(join(union(join(A, B), C), D), A, B, C, D),
    "unions below unions": cut_of(union(union(A, B), join(C, D)), A, B, C, D),
    "a constant": cut_of(join(join(A, ConstantRows(jvm=None, output=())), B), A, B),
}
OTHERS = {
    "one leaf": cut_of(Map(jvm=None, output=(), children=(A,)), A),
    "a leaf at two places": cut_of(join(join(A, B), A), A, B),
    "a semi join": cut_of(join(A, B, JoinType.LEFT_SEMI), A, B),
    "two outer joins": cut_of(join(join(A, B, JoinType.LEFT_OUTER), C, JoinType.LEFT_OUTER), A, B, C),
    "an outer join below a union": cut_of(union(join(A, B, JoinType.LEFT_OUTER), C), A, B, C),
    "an aggregate": cut_of(Aggregate(jvm=None, output=(), children=(join(A, B),), keys=(1,)), A, B),
    "a constant in a union": cut_of(join(union(A, ConstantRows(jvm=None, output=())), B), A, B),
}


def rows_of(cut: StageCut, node: PlanNode, leaves: Sequence[pa.Table]) -> list[tuple[tuple[int, int], ...]]:
    """The node's result over these rows, by nested loops: each row as the rows that it is made of."""
    if cut.is_leaf(node):
        return [((row["k"], row["v"]),) for row in leaves[cut.find_leaf(node)].to_pylist()]
    if isinstance(node, ConstantRows):
        return [((1, -1),), ((2, -1),)]
    below = [rows_of(cut, child, leaves) for child in node.children]
    if isinstance(node, Union):
        return [row for rows in below for row in rows]
    return [a + b for a, b in product(*below) if a[0][0] == b[0][0]]


def random_moves(chance: RandomStream) -> SplitRows:
    """Rows of few keys, each several times; some are added, some removed, and removed ones may not be looked up."""
    held = [(k, v, 1 + chance.below(2)) for k in ROWS for v in ROWS if chance.below(2)]
    changes = [(k, v, 1 + chance.below(2)) for k in ROWS for v in ROWS if not chance.below(4)]
    changes += [(k, v, -1 - chance.below(n)) for k, v, n in held if not chance.below(3)]
    settled: Counter[tuple[int, int]] = Counter()
    for k, v, n in changes:
        settled[k, v] += n
    delta = changes_of([(k, v, n) for (k, v), n in settled.items() if n])
    return split_rows(delta, [changes_of(held)] if held else [], "leaf")


def changes_of(rows: Sequence[tuple[int, int, int]]) -> pa.Table:
    schema = pa.schema([*SCHEMA, pa.field(DIFF, pa.int64(), nullable=False)])
    return pa.Table.from_pylist([{"k": k, "v": v, DIFF: n} for k, v, n in rows], schema=schema)


@pytest.mark.parametrize("shape", LINEAR)
@pytest.mark.parametrize("seed", range(5))
def test_v3_the_linear_rule_gives_the_same_delta_from_fewer_rows(shape: str, seed: int) -> None:
    cut, chance = LINEAR[shape], RandomStream(seed)
    leaves = [random_moves(chance) for _ in cut.leaves]
    old, new = (Counter(rows_of(cut, cut.root, rows)) for rows in ([m.old for m in leaves], [m.new for m in leaves]))
    linear = LinearRule(cut, list)
    assert linear.is_valid
    goes: Counter[object] = Counter()
    comes: Counter[object] = Counter()
    for sign, rows in linear.make_terms(leaves):
        (goes if sign < 0 else comes).update(rows_of(cut, cut.root, rows))
    assert {row: n for row in {*old, *new} if (n := new[row] - old[row])} == {
        row: n for row in {*goes, *comes} if (n := comes[row] - goes[row])
    }
    assert comes <= new
    assert goes <= old


@pytest.mark.parametrize("shape", OTHERS)
def test_v3_the_linear_rule_is_not_used_where_it_does_not_hold(shape: str) -> None:
    assert not LinearRule(OTHERS[shape], list).is_valid


def test_v3_the_linear_rule_is_not_used_if_the_optimizer_changed_the_outer_join() -> None:
    cut = cut_of(join(A, B, JoinType.FULL_OUTER), A, B)
    assert LinearRule(cut, lambda: [JoinType.FULL_OUTER]).forms_unmatched == (Form.UNMATCHED_LEFT, Form.UNMATCHED_RIGHT)
    assert not LinearRule(cut, lambda: [JoinType.LEFT_OUTER]).is_valid
    assert not LinearRule(cut, list).is_valid


def test_v3_rows_that_stay_are_the_old_rows_without_the_removed_ones() -> None:
    """A row that was not looked up existed as often as it is removed."""
    held, delta = changes_of([(1, 1, 3), (2, 2, 1)]), changes_of([(1, 1, -2), (2, 2, -1), (3, 3, -1), (4, 4, 2)])
    moves = split_rows(delta, [held], "leaf")
    assert moves.unchanged.to_pylist() == expand(changes_of([(1, 1, 1)])).to_pylist()
    assert Counter(tuple(row.values()) for row in moves.removed.to_pylist()) == {(1, 1): 2, (2, 2): 1, (3, 3): 1}
    assert Counter(tuple(row.values()) for row in moves.added.to_pylist()) == {(4, 4): 2}
    assert moves.old.num_rows == 5
    assert moves.new.num_rows == 3
