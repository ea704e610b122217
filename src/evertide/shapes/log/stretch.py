"""`Stretch`: a range of a collection's changes, and the log entries that a shape gets from it.

1. Changes are ordered by time, and within a transaction in the shard's order, which depends only on the content: so the
   log of a shape is the same bytes in every process, however the storage was compacted.
2. Within a transaction, a removed and an added row with the same key are an update. If only one of them is in the
   shape, it is a delete or an insert: the row leaves or enters the shape. An update that changes no selected column is
   not sent.
3. A collection without a key has no updates: rows are inserted and deleted, copy by copy.
4. The position of an entry counts the collection's changes in its transaction, so that shapes can share messages. With
   a restriction, it counts the shape's own entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from evertide.rows.changes import DIFF, TIME
from evertide.rows.columns import Longs, Words, sort_distinct
from evertide.rows.digest import hash_rows
from evertide.shapes.log.copies import count_copies_before
from evertide.shapes.log.row_messages import MessageWriter, RowTexts, Value
from evertide.shapes.protocol.offsets import Offset

TxIds = Callable[[int], Sequence[int]]
"""The numbers of a transaction, given its time, as its writers know them."""

_NUMBERS = 8
"""More numbers than this are sent only with a transaction's last change, where clients collect them."""


class ShapeEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry of a log. Not tracked by the garbage collector, as millions may be in memory."""

    offset: Offset
    data: bytes


class _RenderedChange(msgspec.Struct, frozen=True, gc=False):
    """An added (diff > 0) or removed row with its texts; `place` is its index among the rendered rows."""

    place: int
    key: str
    value: Value
    time: int
    operation: int
    diff: int
    before: int


class _Step(msgspec.Struct, frozen=True, gc=False):
    """An insert, delete or update: its position in the transaction, and its rows."""

    operation: int
    key: str
    new: _RenderedChange | None
    old: _RenderedChange | None


class RenderedChanges:
    """The rows of a stretch that are in any shape: what does not depend on the shape is computed once.

    Thousands of shapes may each get a row or two, so a shape must cost little beside its rows. Shapes with identical
    messages share the same bytes in memory.
    """

    def __init__(self, stretch: Stretch, rows: Longs) -> None:
        is_whole = len(rows) == len(stretch)
        self.texts = RowTexts(stretch.rows if is_whole else stretch.rows.take(pa.array(rows)))
        self._places: list[int] | None = None
        if not is_whole:
            places = np.zeros(len(stretch), np.int64)
            places[rows] = np.arange(len(rows))
            self._places = places.tolist()
        before = np.zeros(len(rows), np.int64) if stretch.before is None else stretch.before[rows]
        columns = (stretch.times[rows], stretch.operations[rows], stretch.diffs[rows], before)
        self._facts: list[tuple[int, int, int, int]] = [*zip(*(column.tolist() for column in columns), strict=True)]
        self._messages: dict[tuple[Any, ...], bytes] = {}

    def changes(self, writer: MessageWriter, selected: Longs) -> list[_RenderedChange]:
        rows = selected.tolist()
        known = self._places
        places = rows if known is None else [known[row] for row in rows]
        texts = zip(places, writer.keys(self.texts, places), writer.values(self.texts, places), strict=True)
        facts = self._facts
        return [_RenderedChange(place, key, value, *facts[place]) for place, key, value in texts]

    def message(self, writer: MessageWriter, step: _Step, at: Offset, txids: Sequence[int], *, is_last: bool) -> bytes:
        new, old = step.new, step.old
        cache_key = (writer.form, at, new.place if new else -1, old.place if old else -1, is_last)
        message = self._messages.get(cache_key)
        if message is None:
            if new is None:
                assert old is not None  # noqa: S101 - a step has at least one of them
                message = writer.write_delete(step.key, old.value, at, txids, is_last=is_last)
            elif old is None:
                message = writer.write_insert(step.key, new.value, at, txids, is_last=is_last)
            else:
                message = writer.write_update(step.key, old.value, new.value, at, txids, is_last=is_last)
            self._messages[cache_key] = message
        return message


class Stretch:
    def __init__(self, changes: pa.Table, lower: int, upper: int) -> None:
        """`changes` are the changes of [lower, upper), with times and diffs."""
        times = changes.column(TIME).to_numpy()
        order = np.argsort(times, kind="stable")
        ordered = changes if (order[1:] > order[:-1]).all() else changes.take(pa.array(order))
        self.lower = lower
        self.upper = upper
        self.times: Longs = times[order]
        self.diffs: Longs = ordered.column(DIFF).to_numpy()
        self.rows = ordered.drop_columns([TIME, DIFF])
        self.operations = _compute_operations(self.times, self.diffs)
        self.before: Longs | None = None
        """How often each row occurred before its change, if the collection has no key."""

    def __len__(self) -> int:
        return len(self.times)

    def hashes(self) -> tuple[Words, Words]:
        hashes = hash_rows(self.rows)
        return hashes.high, hashes.low

    def count(self, hashes: tuple[Words, Words], after: Longs) -> None:
        self.before = count_copies_before(hashes, self.diffs, after)

    def between(self, lower: int, upper: int) -> Stretch:
        if lower <= self.lower and upper >= self.upper:
            return self
        part = Stretch.__new__(Stretch)
        part.lower, part.upper = max(lower, self.lower), min(upper, self.upper)
        start, end = (int(row) for row in np.searchsorted(self.times, (part.lower, part.upper)))
        part.times, part.diffs = self.times[start:end], self.diffs[start:end]
        part.operations = self.operations[start:end]
        part.rows = self.rows.slice(start, end - start)
        part.before = None if self.before is None else self.before[start:end]
        return part

    def render(self, selected: Iterable[Longs]) -> RenderedChanges:
        every = [*selected]
        rows = every[0] if len(every) == 1 else sort_distinct(np.concatenate(every)) if every else np.empty(0, np.int64)
        return RenderedChanges(self, rows)

    def entries(
        self, writer: MessageWriter, selected: Longs, rendered: RenderedChanges, txids: TxIds
    ) -> list[ShapeEntry]:
        """The entries that a shape gets for the rows that are in it."""
        changes = rendered.changes(writer, selected)
        is_keyed = self.before is None
        entries: list[ShapeEntry] = []
        end = 0
        while end < len(changes):
            start, time = end, changes[end].time
            while end < len(changes) and changes[end].time == time:
                end += 1
            steps = _pair_changes(writer, changes[start:end]) if is_keyed else _copy_steps(changes[start:end])
            named = txids(time)
            early = named if len(named) <= _NUMBERS else ()
            for number, step in enumerate(steps, 1):
                position = 2 * (number - 1) if writer.has_own_positions else step.operation
                at, is_last = Offset(time + 1, position), number == len(steps)
                message = rendered.message(writer, step, at, named if is_last else early, is_last=is_last)
                entries.append(ShapeEntry(at, message))
        return entries


def _pair_changes(writer: MessageWriter, changes: list[_RenderedChange]) -> list[_Step]:
    """The steps of one transaction, for a collection with a key."""
    removed: dict[str, list[_RenderedChange]] = {}
    for one in changes:
        if one.diff < 0:
            removed.setdefault(one.key, []).append(one)
    steps: list[_Step] = []
    for new in changes:
        if new.diff < 0:
            continue
        if old := removed.get(new.key):
            before = old.pop(0)
            if writer.find_changed_columns(before.value, new.value):
                steps.append(_Step(new.operation, new.key, new, before))
        else:
            steps.append(_Step(new.operation, new.key, new, None))
    if not removed:
        return steps
    steps += [_Step(one.operation, one.key, None, one) for old in removed.values() for one in old]
    return sorted(steps, key=lambda step: step.operation)


def _copy_steps(changes: list[_RenderedChange]) -> list[_Step]:
    """The steps of one transaction without a key, one per copy: the last copy added is the first removed."""
    steps = []
    for one in changes:
        is_new = one.diff > 0
        for each in range(abs(one.diff)):
            key = make_copy_key(one.key, one.before + 1 + each if is_new else one.before - each)
            steps.append(_Step(one.operation + 2 * each, key, one if is_new else None, None if is_new else one))
    return steps


def make_copy_key(key: str, copy: int) -> str:
    return key if copy <= 1 else f"{key}/+{copy}"


def _compute_operations(times: Longs, diffs: Longs) -> Longs:
    """The position of each change in its transaction: twice the number of rows before it."""
    sizes = np.abs(diffs)
    before = np.cumsum(sizes) - sizes
    starts = np.flatnonzero(np.diff(times, prepend=-1)) if len(times) else np.empty(0, np.int64)
    lengths = np.diff(np.append(starts, len(times)))
    operations: Longs = (before - np.repeat(before[starts], lengths)) * 2
    return operations
