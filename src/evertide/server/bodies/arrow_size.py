"""Computes the decoded size of an Arrow stream from its messages, before the stream is decoded.

1. A compressed buffer starts with its decoded length, which is what the reader allocates. The sum of these lengths is
   known without decoding. Values without a buffer (a column of NULL) count as well.
2. A dictionary or a view can refer to a large value many times in a few bytes. The values that it refers to count
   (`count_plain_bytes`), because the rows are expanded later. Unions and run-end encoding could do the same; tables do
   not have these types, so they are detected (`is_foreign`) and refused.

The metadata is a flatbuffer, of which three tables are parsed here: Arrow has verified a message that it returns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from evertide.pgexpr.types.sqltypes import is_list
from evertide.rows.columns import Longs

_VALUE_BYTES = 8
"""Minimum size of a value of any type, including its position in the transaction."""

_HEADER, _RECORDS, _DICTIONARY = 2, 3, 2
"""The field of a message that is its header, and the kinds of header that carry values."""
_NODES, _BUFFERS, _COMPRESSION = 1, 2, 3
_PAIR = struct.Struct("<qq")


def count_message_bytes(message: Any) -> int:
    """The decoded size of a message. A schema counts as 0."""
    buffer = message.metadata
    root = _FlatTable(buffer, struct.unpack_from("<I", buffer, 0)[0])
    header = root.table(_HEADER)
    kind = root.byte(1)
    batch = header if kind == _RECORDS else header.table(1) if header and kind == _DICTIONARY else None
    if batch is None:
        return 0
    is_compressed = batch.table(_COMPRESSION) is not None
    body = message.body
    held = sum(
        _read_decoded_bytes(body, at, length) if is_compressed else length for at, length in batch.pairs(_BUFFERS)
    )
    return max(held, sum(length for length, _ in batch.pairs(_NODES)) * _VALUE_BYTES)


def _read_decoded_bytes(body: Any, at: int, length: int) -> int:
    """A negative length means that the buffer is not compressed."""
    if length < 8 or at < 0 or at + length > body.size:
        return max(0, length)
    size: int = struct.unpack_from("<q", body, at)[0]
    return size if size >= 0 else length


class _FlatTable:
    """A table of a flatbuffer, with fields by number."""

    def __init__(self, buffer: Any, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields = at - struct.unpack_from("<i", buffer, at)[0]
        self._end = self._fields + struct.unpack_from("<H", buffer, self._fields)[0]

    def byte(self, field: int) -> int:
        at = self._find_field(field)
        return 0 if at is None else struct.unpack_from("<B", self._buffer, at)[0]

    def table(self, field: int) -> _FlatTable | None:
        at = self._find_field(field)
        return None if at is None else _FlatTable(self._buffer, at + struct.unpack_from("<I", self._buffer, at)[0])

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """A vector of structs of two longs."""
        at = self._find_field(field)
        if at is None:
            return
        start = at + struct.unpack_from("<I", self._buffer, at)[0]
        count = struct.unpack_from("<I", self._buffer, start)[0]
        for number in range(count):
            yield _PAIR.unpack_from(self._buffer, start + 4 + number * _PAIR.size)

    def _find_field(self, field: int) -> int | None:
        at = self._fields + 4 + 2 * field
        offset = struct.unpack_from("<H", self._buffer, at)[0] if at + 2 <= self._end else 0
        return self._at + offset if offset else None


def may_repeat(kind: Any) -> bool:
    """Whether values of a type can refer to more bytes than their buffers hold."""
    return _has(kind, (kinds.is_dictionary, _is_view, _is_list_view))


def is_foreign(kind: Any) -> bool:
    """Whether a type is or contains one that no table can have."""
    return _has(kind, (kinds.is_run_end_encoded, kinds.is_union))


def _has(kind: Any, tests: tuple[Callable[[Any], bool], ...]) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has(kind.storage_type, tests)
    if any(test(kind) for test in tests):
        return True
    inner = [kind.value_type] if kinds.is_dictionary(kind) else [kind.field(at).type for at in range(kind.num_fields)]
    return any(_has(one, tests) for one in inner)


def count_plain_bytes(array: Any) -> int:
    """The size of the values of a validated array, with dictionaries and views expanded."""
    for is_kind, count in _COUNTERS:
        if is_kind(array.type):
            return count(array)
    return int(array.nbytes)


def _count_repeated_bytes(values: Any, indices: Any) -> int:
    kind = values.type
    if _is_view(kind) or _is_text(kind):
        lengths = _view_lengths(values) if _is_view(kind) else pc.binary_length(values).cast(pa.int64())
        return int(pc.sum(pa.array(lengths).take(indices)).as_py() or 0)
    if kinds.is_nested(kind) or kinds.is_dictionary(kind):  # rare: upper bound, each index counts as all values
        return len(indices) * count_plain_bytes(values)
    return len(indices) * _VALUE_BYTES * 2


def _view_lengths(array: Any) -> Longs:
    """A view is four words, of which the first is its length; Arrow has no function for it."""
    words = np.frombuffer(array.buffers()[1] or b"", np.int32)[array.offset * 4 :][: len(array) * 4 : 4]
    return np.where(np.asarray(array.is_valid()), words, 0).astype(np.int64)


def _is_view(kind: Any) -> bool:
    return bool(kinds.is_string_view(kind) or kinds.is_binary_view(kind))


def _is_text(kind: Any) -> bool:
    tests = (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)
    return any(test(kind) for test in tests)


def _is_list_view(kind: Any) -> bool:
    return bool(kinds.is_list_view(kind) or kinds.is_large_list_view(kind))


_COUNTERS: tuple[tuple[Callable[[Any], bool], Callable[[Any], int]], ...] = (
    (lambda kind: isinstance(kind, pa.BaseExtensionType), lambda array: count_plain_bytes(array.storage)),
    (kinds.is_dictionary, lambda array: _count_repeated_bytes(array.dictionary, array.indices)),
    (_is_view, lambda array: int(_view_lengths(array).sum())),
    (_is_list_view, lambda array: len(array) * count_plain_bytes(array.values)),  # lists may overlap
    (kinds.is_struct, lambda array: sum(map(count_plain_bytes, array.flatten()))),
    (kinds.is_map, lambda array: count_plain_bytes(array.keys) + count_plain_bytes(array.items)),
    (is_list, lambda array: count_plain_bytes(array.flatten())),
)
