"""Decode many messages of the stream at once: new rows as columns of texts, without a Python object per value.

Nearly all messages are new rows: inserts, and updates without an old row or unchanged values. The offsets of their
values are computed column by column, for all messages together, and each column is then extracted at once. Any other
message is left to `evertide.sources.postgres.messages`, which defines the result: both ways give the same rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evertide.rows.columns import Longs

HEAD = 25
"""Bytes of an outer message before the pgoutput message: kind, two positions, and a timestamp."""

WORTHWHILE = 48
"""Fewer messages than this are decoded one by one, which is faster."""

_INSERT, _UPDATE, _NEW = b"IUN"
_STREAM_START, _STREAM_STOP = b"SE"
_TEXT, _NULL = b"tn"
_PAD = b"\0" * 16
"""Padding, so that decoding a truncated message reads zeros, not beyond the end."""
_BYTES_MAX = 2**31 - 1024

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class NewRows:
    """The new rows of one relation, in order."""

    relation: int
    columns: tuple[Any, ...]
    """Binary arrays, by place in the relation."""
    xids: Longs
    """The subtransaction of each row in a streamed block; else 0."""
    sizes: list[int]
    """Bytes before each row, and the total at the end."""
    before: list[int]
    """The number of these rows before each message, and the total at the end."""

    def count_fitting(self, first: int, room: int) -> int:
        """About how many rows from `first` on fit into `room` bytes; at least one."""
        return max(1, bisect_right(self.sizes, self.sizes[first] + room) - 1 - first)


def extract_new_rows(messages: Sequence[bytes], *, is_streamed: bool) -> tuple[list[NewRows], list[int]]:
    """Extract the new rows from outer data messages, by relation; also return the indexes of all other messages."""
    everything = range(len(messages))
    content = b"".join([*messages, _PAD])
    if len(content) > _BYTES_MAX:
        return [], list(everything)
    data = np.frombuffer(content, np.uint8)
    ends = np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)))
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1])) + HEAD
    kinds = data[starts]
    inside = int(is_streamed) + np.cumsum(kinds == _STREAM_START) - np.cumsum(kinds == _STREAM_STOP)
    bodies = starts + np.where(inside > 0, 5, 1)
    places = np.flatnonzero(((kinds == _INSERT) | (kinds == _UPDATE)) & (data[bodies + 4] == _NEW))
    relations = _number(data, bodies[places], 4)
    shapes = (relations << 16) | _number(data, bodies[places] + 5, 2)
    found = []
    is_left = np.ones(len(messages), np.bool_)
    for shape in np.unique(shapes).tolist():
        at = places[shapes == shape]
        begins, value_ends, is_null, is_whole = _values(data, bodies[at] + 7, ends[at], shape & 0xFFFF)
        if not is_whole.all():
            at = at[is_whole]
            begins, value_ends, is_null = begins[:, is_whole], value_ends[:, is_whole], is_null[:, is_whole]
        if not len(at):
            continue
        is_left[at] = False
        whole = np.zeros(len(messages) + 1, np.int64)
        whole[at + 1] = 1
        found.append(
            NewRows(
                shape >> 16,
                tuple(_texts(content, *column) for column in zip(begins, value_ends, is_null, strict=True)),
                np.where(inside[at] > 0, _number(data, starts[at] + 1, 4), 0),
                [0, *np.cumsum(ends[at] - starts[at]).tolist()],
                np.cumsum(whole).tolist(),
            )
        )
    return found, np.flatnonzero(is_left).tolist()


def _number(data: Bytes, at: Longs, width: int) -> Longs:
    """Read unsigned big-endian numbers."""
    found = data[at].astype(np.int64)
    for place in range(1, width):
        found = (found << 8) | data[at + place]
    return found


def _values(data: Bytes, at: Longs, ends: Longs, count: int) -> tuple[Longs, Longs, npt.NDArray[np.bool_], Any]:
    """Start and end of each value and whether it is NULL, by column; and which messages have only texts and NULLs."""
    last = len(data) - len(_PAD)
    begins, value_ends = np.empty((count, len(at)), np.int64), np.empty((count, len(at)), np.int64)
    is_null = np.empty((count, len(at)), np.bool_)
    is_whole = np.ones(len(at), np.bool_)
    for column in range(count):
        kinds = data[at]
        is_text = kinds == _TEXT
        is_null[column] = ~is_text
        is_whole &= is_text | (kinds == _NULL)
        begins[column] = np.where(is_text, at + 5, at + 1)
        end = begins[column] + np.where(is_text, _number(data, at + 1, 4), 0)
        is_whole &= end <= ends  # before it is limited: at the end of the data, a truncated value would look complete
        value_ends[column] = at = np.minimum(end, last)
    return begins, value_ends, is_null, is_whole & (at == ends)


def _texts(content: bytes, begins: Longs, ends: Longs, is_null: Any) -> Any:
    """Slice the values out of the content: an array over all offsets, of which every second element is a value."""
    offsets = np.empty(2 * len(begins), np.int32)
    offsets[::2], offsets[1::2] = begins, ends
    every = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(content)])
    chosen = pa.array(np.arange(0, len(offsets), 2), mask=is_null if is_null.any() else None)
    return every.take(chosen)
