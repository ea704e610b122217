"""A stretch of a collection's changes, and the entries that it makes in the log of a shape.

1. Changes are in order of time, and within a transaction in the order that a shard gives them out in, which the content
   decides: so the log of a shape is the same bytes in every process, however storage was merged meanwhile.
2. Of a transaction, a row that goes and one that comes under the same key are an update. If only one of them is in the
   shape, it is a delete or an insert: the row moves out of the shape, or into it. An update that changes no selected
   column is not told.
3. Of a collection without a key there are no updates: rows come and go, each copy by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from evertide.shapes.copies import copies_before
from evertide.shapes.messages import Rendered, Teller, Value
from evertide.shapes.offsets import Offset
from evertide.shard.changes import DIFF, TIME
from evertide.shard.columns import Longs, Words
from evertide.shard.digest import row_hashes

__all__ = ["Entry", "Stretch", "TxIds", "own_number"]

TxIds = Callable[[int], Sequence[int]]
"""The numbers under which a transaction, given by its time, is known to those who wrote it."""


def own_number(time: int) -> Sequence[int]:
    return (time + 1,)


class Entry(NamedTuple):
    offset: Offset
    data: bytes


class _Change(NamedTuple):
    """A row that comes (diff > 0) or goes, with its texts."""

    operation: int
    diff: int
    before: int
    key: str
    value: Value


class _Step(NamedTuple):
    """Something to tell: where it stands in its transaction, and how."""

    operation: int
    tell: Callable[..., bytes]
    of: tuple[Any, ...]


class Stretch:
    def __init__(self, changes: pa.Table, lower: int, upper: int) -> None:
        """`changes` are those of [lower, upper), with times and diffs."""
        times = changes.column(TIME).to_numpy()
        order = np.argsort(times, kind="stable")
        ordered = changes if (order[1:] > order[:-1]).all() else changes.take(pa.array(order))
        self.lower = lower
        self.upper = upper
        self.times: Longs = times[order]
        self.diffs: Longs = ordered.column(DIFF).to_numpy()
        self.rows = ordered.drop_columns([TIME, DIFF])
        self.operations = _operations(self.times, self.diffs)
        self.before: Longs | None = None
        """How often each row was there before, if the collection has no key."""

    def __len__(self) -> int:
        return len(self.times)

    def hashes(self) -> tuple[Words, Words]:
        found = row_hashes(self.rows)
        return found.high, found.low

    def count(self, hashes: tuple[Words, Words], after: Longs) -> None:
        self.before = copies_before(hashes, self.diffs, after)

    def between(self, lower: int, upper: int) -> Stretch:
        """The changes of [lower, upper), as far as they are here."""
        if lower <= self.lower and upper >= self.upper:
            return self
        made = Stretch.__new__(Stretch)
        made.lower, made.upper = max(lower, self.lower), min(upper, self.upper)
        start, end = (int(row) for row in np.searchsorted(self.times, (made.lower, made.upper)))
        made.times, made.diffs = self.times[start:end], self.diffs[start:end]
        made.operations = self.operations[start:end]
        made.rows = self.rows.slice(start, end - start)
        made.before = None if self.before is None else self.before[start:end]
        return made

    def rendered(self, chosen: Iterable[Longs]) -> tuple[Longs, Rendered]:
        """The rows that somebody tells of: their numbers, in order, and their texts."""
        every = [*chosen]
        rows = every[0] if len(every) == 1 else np.unique(np.concatenate(every)) if every else np.empty(0, np.int64)
        return rows, Rendered(self.rows if len(rows) == len(self) else self.rows.take(pa.array(rows)))

    def entries(self, teller: Teller, chosen: Longs, rendered: tuple[Longs, Rendered], txids: TxIds) -> list[Entry]:
        """What a shape is told, of the rows that are in it."""
        if not len(chosen):
            return []
        told, texts = rendered
        places = np.searchsorted(told, chosen).tolist()
        before = np.zeros(len(chosen), np.int64) if self.before is None else self.before[chosen]
        columns = (self.operations[chosen].tolist(), self.diffs[chosen].tolist(), before.tolist())
        rows = zip(*columns, teller.keys(texts, places), teller.values(texts, places), strict=True)
        changes = [_Change(*row) for row in rows]
        steps_of = _keyed if self.before is None else _copied
        times = self.times[chosen]
        starts = np.flatnonzero(np.diff(times, prepend=times[0] - 1)).tolist()
        found: list[Entry] = []
        for start, end in zip(starts, [*starts[1:], len(chosen)], strict=True):
            steps = steps_of(teller, changes[start:end])
            transaction, named = int(times[start]) + 1, list(txids(int(times[start])))
            for at, step in enumerate(steps):
                offset = Offset(transaction, step.operation)
                found.append(Entry(offset, step.tell(*step.of, offset, named, is_last=at == len(steps) - 1)))
        return found


def _keyed(teller: Teller, changes: list[_Change]) -> list[_Step]:
    """Of one transaction."""
    gone: dict[str, list[_Change]] = {}
    for one in changes:
        if one.diff < 0:
            gone.setdefault(one.key, []).append(one)
    steps: list[_Step] = []
    for new in changes:
        if new.diff < 0:
            continue
        if old := gone.get(new.key):
            before = old.pop(0).value
            if teller.changed(before, new.value):
                steps.append(_Step(new.operation, teller.updated, (new.key, before, new.value)))
        else:
            steps.append(_Step(new.operation, teller.inserted, (new.key, new.value)))
    left = [_Step(one.operation, teller.deleted, (one.key, one.value)) for old in gone.values() for one in old]
    return sorted(steps + left, key=lambda step: step.operation) if left else steps


def _copied(teller: Teller, changes: list[_Change]) -> list[_Step]:
    """Each copy by itself: the last that came is the first that goes."""
    steps = []
    for one in changes:
        tell = teller.inserted if one.diff > 0 else teller.deleted
        for each in range(abs(one.diff)):
            copy = one.before + 1 + each if one.diff > 0 else one.before - each
            steps.append(_Step(one.operation + 2 * each, tell, (copy_key(one.key, copy), one.value)))
    return steps


def copy_key(key: str, copy: int) -> str:
    return key if copy <= 1 else f"{key}/+{copy}"


def _operations(times: Longs, diffs: Longs) -> Longs:
    """Where each change stands in its transaction: twice as many as there are rows before it."""
    sizes = np.abs(diffs)
    before = np.cumsum(sizes) - sizes
    starts = np.flatnonzero(np.diff(times, prepend=-1)) if len(times) else np.empty(0, np.int64)
    lengths = np.diff(np.append(starts, len(times)))
    found: Longs = (before - np.repeat(before[starts], lengths)) * 2
    return found
