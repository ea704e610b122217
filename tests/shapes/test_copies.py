"""Counts of duplicate rows: updated, folded, and computed for earlier times."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from evertide.rows.changes import DIFF
from evertide.rows.digest import hash_rows
from evertide.shapes.log import copies as module
from evertide.shapes.log.copies import Copies, count_copies_before
from evertide.sources.generated.seeded import RandomStream

SCHEMA = pa.schema([("a", pa.int64()), (DIFF, pa.int64())])


def table(counts: dict[int, int]) -> pa.Table:
    return pa.table({"a": [*counts], DIFF: [*counts.values()]}, SCHEMA)


def hashes(rows: list[int]) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint64]], ...]:
    found = hash_rows(pa.table({"a": rows}, SCHEMA.remove(1)))
    return found.high, found.low


@pytest.mark.parametrize("seed", range(5))
def test_counts_follow_changes_and_can_be_reverted(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FOLD_ROWS", 5)
    chance = RandomStream(seed)
    counts = Counter({number: 1 + chance.below(3) for number in range(20) if chance.below(2)})
    copies = Copies(table(dict(counts)))
    rows: list[int] = []
    diffs: list[int] = []
    expected: list[int] = []
    for _ in range(40):
        changed = sorted({chance.below(20) for _ in range(chance.below(5))})
        step = [chance.below(4) - min(2, counts[number]) for number in changed]
        expected += [counts[number] for number in changed]
        copies.apply(hashes(changed), np.array(step, np.int64))  # type: ignore[arg-type]
        counts.update(dict(zip(changed, step, strict=True)))
        rows, diffs = rows + changed, diffs + step
        everyone = [*range(20)]
        assert copies.counts(hashes(everyone)).tolist() == [counts[number] for number in everyone]  # type: ignore[arg-type]
    found = hashes(rows)
    before = count_copies_before(found, np.array(diffs, np.int64), copies.counts(found))  # type: ignore[arg-type]
    assert before.tolist() == expected


def test_rows_that_share_half_of_a_hash_are_distinguished() -> None:
    copies = Copies(table({}))
    copies._high = np.array([7, 7, 7, 9], np.uint64)
    copies._low = np.array([1, 2, 5, 1], np.uint64)
    copies._counts = np.array([10, 20, 50, 90], np.int64)
    asked = np.array([7, 7, 7, 9, 9, 8], np.uint64), np.array([5, 2, 3, 1, 2, 1], np.uint64)
    assert copies.counts(asked).tolist() == [50, 20, 0, 90, 0, 0]
