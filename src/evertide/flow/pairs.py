"""Estimates whether joins make many more rows than they read, from the keys of a sample of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from evertide.flow.aggregates.groups import group_rows
from evertide.flow.cone import Cone
from evertide.flow.trace import StageCut, has_constant, list_own_nodes
from evertide.plan.algebra.nodes import Join, JoinType
from evertide.rows.columns import Longs
from evertide.rows.conform import conform_table

_ROWS_SAMPLED = 8_192
FACTOR = 4
"""Rows that a join makes, per row that it reads, above which it multiplies rows."""
MULTIPLYING = (JoinType.INNER, JoinType.LEFT_OUTER, JoinType.RIGHT_OUTER, JoinType.FULL_OUTER)


def multiplies_rows(cut: StageCut, cone: Cone, rows: Sequence[pa.Table]) -> bool:
    """Whether a join of a stage makes many more rows than it reads, with these rows of the leaves."""
    joins = (node for node in list_own_nodes(cut, cut.root) if isinstance(node, Join))
    return any(_multiplies(cut, cone, node, rows) for node in joins if node.join in MULTIPLYING)


def _multiplies(cut: StageCut, cone: Cone, join: Join, rows: Sequence[pa.Table]) -> bool:
    if any(has_constant(cut, side) for side in join.children):
        return False  # their keys are unknown here
    by = cut.joins[id(join)]
    present = {at: [table] for at, table in enumerate(rows)}
    left, right = (
        cone.collect_keys(node, keys, present, by.is_null_safe)
        for node, keys in zip(join.children, (by.left, by.right), strict=True)
    )
    if left is None or right is None:
        return True  # without keys, each pair of rows is tried
    few, many = (left, right) if left.num_rows < right.num_rows else (right, left)
    return bool(few.num_rows) and _estimate_pairs(few, many) > FACTOR * (few.num_rows + many.num_rows)


def estimate_pairs(left: Longs, right: Longs, step: int) -> int:
    """The number of pairs with equal words, from samples that have each `step`-th word of the sorted words."""
    words, counts = np.unique(left, return_counts=True)
    others, other_counts = np.unique(right, return_counts=True)
    _, at, other_at = np.intersect1d(words, others, assume_unique=True, return_indices=True)
    return int((counts[at] * other_counts[other_at]).sum()) * step * step


def _estimate_pairs(few: pa.Table, many: pa.Table) -> int:
    """The number of pairs with equal keys, if the sampled rows of the larger side are typical."""
    step = -(-many.num_rows // _ROWS_SAMPLED)
    schema = pa.schema([pa.field(each.name, each.type) for each in few.schema])
    sample = conform_table(many.take(pa.array(np.arange(0, many.num_rows, step))), schema)
    numbers, first = group_rows(pa.concat_tables([conform_table(few, schema), sample]))
    counts = np.bincount(numbers[: few.num_rows], minlength=len(first))
    pairs: Longs = counts[numbers[few.num_rows :]]
    return int(pairs.sum() * step)
