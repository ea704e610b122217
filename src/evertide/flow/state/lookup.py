"""`WantedKeys`: the keys of one lookup, as words to search for and as values to verify what was found.

If the word is the key (a single integer-like column), only `SHARED_WORD` needs verification. Otherwise each found row
is compared with the keys that share its word, nearly always one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.flow.state.block import RowBlock
from evertide.flow.state.keys import SHARED_WORD, canonicalize, compare_keys, hash_keys, is_exact
from evertide.rows.columns import Longs

__all__ = ["WantedKeys"]


class WantedKeys:
    def __init__(self, names: Sequence[str], arrays: Sequence[Any]) -> None:
        """The key's columns, of at least one row."""
        self._names = names
        self._arrays = arrays
        self._all_words = hash_keys(pa.Table.from_arrays(list(arrays), names=list(names)))
        self._words = np.unique(self._all_words)
        self.bounds = np.empty(2 * len(self._words), np.int64)
        self.bounds[::2] = self._words
        self.bounds[1::2] = self._words + 1
        self.is_exact = is_exact([array.type for array in arrays]) and self._words[-1] != SHARED_WORD
        self._sorted: tuple[list[Any], Longs, Longs] | None = None

    def verify(self, block: RowBlock) -> RowBlock:
        """The rows of a block with one of the keys; all rows have a word of the keys."""
        if self.is_exact:
            return block
        keys, starts, counts = self._sort_keys()
        found = [canonicalize(block.columns[name]) for name in self._names]
        at = np.searchsorted(self._words, block.words)
        matches = compare_keys(found, _take(keys, starts[at]))
        step = 1
        while len(rest := np.flatnonzero(~matches & (counts[at] > step))):
            matches[rest] = compare_keys(_take(found, rest), _take(keys, starts[at[rest]] + step))
            step += 1
        return block if matches.all() else block.take(np.flatnonzero(matches))

    def _sort_keys(self) -> tuple[list[Any], Longs, Longs]:
        """The keys in the order of their words, and per word their start and number."""
        if self._sorted is None:
            order = np.argsort(self._all_words, kind="stable")
            keys = _take([canonicalize(array) for array in self._arrays], order)
            words = self._all_words[order]
            if len(words) > len(self._words):
                # Remove repeated keys, so that rows are not compared with them repeatedly.
                firsts = np.searchsorted(words, words)
                kept = ~compare_keys(keys, _take(keys, firsts))
                kept[firsts] = True
                rows = np.flatnonzero(kept)
                keys, words = _take(keys, rows), words[rows]
            starts = np.searchsorted(words, self._words)
            self._sorted = keys, starts, np.diff(np.append(starts, len(words)))
        return self._sorted


def _take(arrays: Sequence[Any], rows: Longs) -> list[Any]:
    indices = pa.array(rows)
    return [array.take(indices) for array in arrays]
