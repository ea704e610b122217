"""`Copies`: how often each row occurs in a collection without a key, so that equal rows can be numbered.

For a client, a row that occurs three times is three rows: the first has the row's key, the others also their number.
When the count falls from 3 to 2, the copy with the number 3 is deleted, so the client holds the same multiset.

`Copies` holds the counts after all transactions below `upper`: 24 bytes per distinct row, plus recent changes. The
count before an earlier transaction is computed by undoing later changes, so a log can be derived again from any time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from evertide.rows.changes import DIFF
from evertide.rows.columns import Longs, Words
from evertide.rows.digest import hash_rows

_FOLD_ROWS = 65_536


class Copies:
    def __init__(self, content: pa.Table) -> None:
        """`content` has each distinct row of a collection once, with `__diff`."""
        self._high, self._low, self._counts = _sort_by_hash(content)
        self._changed: dict[tuple[int, int], int] = {}
        """Counts that override those in the arrays."""

    def apply(self, hashes: tuple[Words, Words], diffs: Longs) -> None:
        counts = self.counts(hashes)
        keys = list(zip(hashes[0].tolist(), hashes[1].tolist(), strict=True))
        for key, count in zip(keys, counts.tolist(), strict=True):
            self._changed.setdefault(key, count)
        for key, diff in zip(keys, diffs.tolist(), strict=True):
            self._changed[key] += diff
        if len(self._changed) > max(_FOLD_ROWS, len(self._counts) // 4):
            self._fold()

    def counts(self, hashes: tuple[Words, Words]) -> Longs:
        high, low = hashes
        counts = np.zeros(len(high), np.int64)
        at = np.searchsorted(self._high, high)
        pending = np.flatnonzero(at < len(self._high))
        while len(pending):  # one round, unless two rows share half of their hash
            here = at[pending]
            same = self._high[here] == high[pending]
            hit = same & (self._low[here] == low[pending])
            counts[pending[hit]] = self._counts[here[hit]]
            pending = pending[same & ~hit]
            at[pending] += 1
            pending = pending[at[pending] < len(self._high)]
        if self._changed:
            for row, key in enumerate(zip(high.tolist(), low.tolist(), strict=True)):
                changed = self._changed.get(key)
                if changed is not None:
                    counts[row] = changed
        return counts

    def _fold(self) -> None:
        keys = np.array(list(self._changed), np.uint64).reshape(-1, 2)
        counts = np.fromiter(self._changed.values(), np.int64, len(self._changed))
        stays = np.ones(len(self._high), np.bool_)
        known = {(high, low) for high, low in self._changed}
        for row in np.flatnonzero(np.isin(self._high, keys[:, 0])):
            stays[row] = (int(self._high[row]), int(self._low[row])) not in known
        high = np.concatenate([self._high[stays], keys[counts > 0, 0]])
        low = np.concatenate([self._low[stays], keys[counts > 0, 1]])
        counts = np.concatenate([self._counts[stays], counts[counts > 0]])
        order = np.lexsort((low, high))
        self._high, self._low, self._counts = high[order], low[order], counts[order]
        self._changed = {}


def count_copies_before(hashes: tuple[Words, Words], diffs: Longs, after: Longs) -> Longs:
    """How often the row of each change occurred before it, given how often it occurs after all changes.

    Changes are in order of time; a row changes at most once per time.
    """
    if not len(diffs):
        return after
    high, low = hashes
    order = np.lexsort((np.arange(len(diffs)), low, high))
    ordered = diffs[order]
    totals = np.cumsum(ordered)
    last = np.flatnonzero(np.append((np.diff(high[order]) != 0) | (np.diff(low[order]) != 0), True))
    lengths = np.diff(last, prepend=-1)
    until_end = np.repeat(totals[last], lengths) - (totals - ordered)
    """The sum of this change and of all later ones of the same row."""
    before = np.empty_like(after)
    before[order] = after[order] - until_end
    return before


def _sort_by_hash(content: pa.Table) -> tuple[Words, Words, Longs]:
    high, low = hash_rows(content.drop_columns([DIFF]))
    order = np.lexsort((low, high))
    counts = content.column(DIFF).to_numpy()
    return high[order], low[order], counts[order]
