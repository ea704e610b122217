"""Rows of a leaf before and after a transaction, from what was looked up and the delta."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from evertide.rows.changes import DIFF, expand, net

__all__ = ["add_diffs", "cancel_out", "diffs_of", "split_before_after"]

_DIFF_FIELD = pa.field(DIFF, pa.int64(), nullable=False)


def diffs_of(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return table.column(DIFF).to_numpy()  # type: ignore[no-any-return]


def add_diffs(rows: pa.Table, diffs: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    """Rows without diffs, with these."""
    return rows.append_column(_DIFF_FIELD, pa.array(diffs))


def cancel_out(delta: pa.Table, where: str) -> pa.Table:
    """The same delta, in which no row both comes and goes: all that a delta inside the engine promises.

    A row may occur twice. Of one that only brings rows nothing can cancel out, and nothing has to be summed.
    """
    return net(delta, where, is_sorted=False) if _has_retractions(delta) else delta


def _has_retractions(delta: pa.Table) -> bool:
    return bool(delta.num_rows) and bool(diffs_of(delta).min() < 0)


def split_before_after(delta: pa.Table, fetched: list[pa.Table], where: str) -> tuple[pa.Table, pa.Table]:
    """Multisets, each row repeated: what was there of the cone, and what is there now.

    A row that was looked up came with its whole count. One that the delta takes away and nobody looked up is there
    before in so many copies as are taken.
    """
    before = _deduplicate(fetched, where) if fetched else delta.slice(0, 0)
    if delta.num_rows == 0:
        rows = expand(before, where)
        return rows, rows
    if not _has_retractions(delta):
        olds = expand(before, where)
        return olds, pa.concat_tables([olds, expand(delta, where)])
    total = net(pa.concat_tables([before, delta]), where, is_sorted=False)
    counts = diffs_of(total)
    missing = counts < 0
    if missing.any():
        taken = total.filter(pa.array(missing))
        before = pa.concat_tables([before, add_diffs(taken.drop_columns([DIFF]), -diffs_of(taken))])
        total = total.filter(pa.array(~missing))
    return expand(before, where), expand(total, where)


def _deduplicate(fetched: list[pa.Table], where: str) -> pa.Table:
    """Look-ups by different keys may bring the same row, each time with its whole count."""
    if len(fetched) == 1:
        return fetched[0]
    rows = pa.concat_tables(fetched)
    plain = rows.drop_columns([DIFF])
    counts = diffs_of(net(rows, where))
    found = net(add_diffs(plain, np.ones(plain.num_rows, np.int64)), where)
    return add_diffs(found.drop_columns([DIFF]), counts // diffs_of(found))
