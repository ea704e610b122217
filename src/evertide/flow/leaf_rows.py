"""Splits the rows of a leaf into unchanged, removed and added ones in a transaction, from look-ups and the delta."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from evertide.rows.changes import DIFF, DIFF_FIELD, consolidate_delta, expand


def get_diffs(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return table.column(DIFF).to_numpy()  # type: ignore[no-any-return]


def add_diffs(rows: pa.Table, diffs: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    return rows.append_column(DIFF_FIELD, pa.array(diffs))


def add_sign(rows: pa.Table, sign: int) -> pa.Table:
    """Give every row the same diff."""
    return add_diffs(rows, np.full(rows.num_rows, sign, np.int64))


def cancel_out(delta: pa.Table, where: str) -> pa.Table:
    """Cancel out rows that a delta both adds and removes, as deltas inside the engine must be.

    A row may still occur twice. A delta that only adds rows is returned as it is.
    """
    return consolidate_delta(delta, where, is_sorted=False) if _has_retractions(delta) else delta


def _has_retractions(delta: pa.Table) -> bool:
    return bool(delta.num_rows) and bool(get_diffs(delta).min() < 0)


@dataclass(frozen=True, slots=True)
class SplitRows:
    """The rows of a leaf in the cone, as multisets with repeated rows."""

    unchanged: pa.Table
    removed: pa.Table
    added: pa.Table
    old: pa.Table
    """The rows before: `unchanged` and `removed`."""
    new: pa.Table
    """The rows after: `unchanged` and `added`."""

    @property
    def changed_rows(self) -> int:
        """The number of removed and added rows."""
        return int(self.removed.num_rows + self.added.num_rows)


def split_rows(delta: pa.Table, fetched: list[pa.Table], where: str) -> SplitRows:
    """Split the looked-up rows and those of the delta, which does not both add and remove a row.

    A looked-up row has its whole count. For a row that the delta removes and that was not looked up, the count before
    is the number removed.
    """
    before = _deduplicate(fetched, where) if fetched else delta.slice(0, 0)
    nothing = before.slice(0, 0).drop_columns([DIFF])
    if delta.num_rows == 0:
        rows = expand(before, where)
        return SplitRows(rows, nothing, nothing, rows, rows)
    if not _has_retractions(delta):
        olds, added = expand(before, where), expand(delta, where)
        return SplitRows(olds, nothing, added, olds, pa.concat_tables([olds, added]))
    diffs = get_diffs(delta)
    removals = delta.filter(pa.array(diffs < 0))
    added = expand(delta.filter(pa.array(diffs > 0)), where)
    removed = expand(add_diffs(removals.drop_columns([DIFF]), -get_diffs(removals)), where)
    unchanged = nothing
    if before.num_rows:
        left = consolidate_delta(pa.concat_tables([before, removals]), where, is_sorted=False)
        unchanged = expand(left.filter(pa.array(get_diffs(left) > 0)), where)
    return SplitRows(
        unchanged, removed, added, pa.concat_tables([unchanged, removed]), pa.concat_tables([unchanged, added])
    )


def _deduplicate(fetched: list[pa.Table], where: str) -> pa.Table:
    """Look-ups by different keys may return the same row, each time with its whole count."""
    if len(fetched) == 1:
        return fetched[0]
    rows = pa.concat_tables(fetched)
    plain = rows.drop_columns([DIFF])
    counts = get_diffs(consolidate_delta(rows, where))
    found = consolidate_delta(add_sign(plain, 1), where)
    return add_diffs(found.drop_columns([DIFF]), counts // get_diffs(found))
