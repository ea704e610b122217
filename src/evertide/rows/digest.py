"""Digests: 128-bit sums of the hashes of a multiset's rows, independent of order and encoding; and exact equality.

Stored as 32 hexadecimal digits in every part, batch and commit record. Version 1, frozen: a change of any
constant or step below makes every stored digest wrong, and needs a new version of the storage format.

The digest of a set of changes is the sum of hash(row) x diff, modulo 2^128. So:

1. it does not depend on the order of rows, on chunks, or on how they are spread over parts;
2. it is linear: the digest of a concatenation is the sum, an insertion and its retraction cancel out;
3. unlike an exclusive or, it detects duplicates.

The hash of a row is two lanes of 64 bits. A lane starts with its seed and mixes in the columns in order, each by
`lane = mix(lane ^ word)`; `mix` is a bijection with other constants per lane. The word of a column's value is

    bool, integers, dates, times, timestamps, durations    the value, extended to 64 bits (with its sign)
    decimals up to 64 bits, month and day-time intervals   the same, of the unscaled value
    float16, float32, float64                              its bits; any NaN is the one NaN; -0.0 and 0.0 differ
    decimal128, decimal256, month-day-nano interval        per lane: its 64-bit words, lowest first, mixed in turn
    string, binary, fixed size binary                      per lane: one half of XXH3-128 of its bytes (UTF-8)
    list, map (a list of entries, in stored order)         per lane: the sum of mix(element ^ position), with the length
    struct                                                 per lane: its fields mixed in turn, as those of a row
    dictionary, views, extension types                     the word of the value that they represent
    NULL                                                   a constant that differs between lanes, as no other word does

Types and names are not part of the hash, as they are fixed per shard: int32 5 and int64 5 hash alike, so do a string
and the binary of its bytes; float32 0.5 and float64 0.5 differ, so do decimals of up to 64, 128 and 256 bits.

`compare_rows` and `compare_values` decide the same equality on the values themselves: NULL equals NULL, any NaN equals
any NaN, -0.0 and 0.0 differ, lists are equal element by element, maps in stored order. Rows with equal hashes are
merged only if they are equal there, so that a hash collision never loses a row.

Hashing is a large part of the work of a transaction, so each row is hashed once: what netting hashed is kept with the
table that it returns (`keep_hashes`), until that table is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from evertide.errors import InvalidInput, Unexpected
from evertide.rows.columns import (
    BINARY,
    FIXED,
    LISTS,
    WIDE,
    Bools,
    Longs,
    Words,
    read_bits,
    read_bytes,
    read_lists,
    read_validity,
    read_wide_words,
    remove_encoding,
    to_array,
    unpack_bools,
)

ZERO = "0" * 32
"""The digest of nothing."""

_BITS_128 = (1 << 128) - 1
_BITS_32 = np.uint64(0xFFFF_FFFF)
_32 = np.uint64(32)


def _make_lanes(high: int, low: int) -> Words:
    return np.array([[high], [low]], np.uint64)


_SEED = _make_lanes(0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F)
_NULL = _make_lanes(0x6A09_E667_F3BC_C908, 0xBB67_AE85_84CA_A73B)
_WIDE = _make_lanes(0x3C6E_F372_FE94_F82B, 0xA54F_F53A_5F1D_36F1)
_STRUCT = _make_lanes(0x510E_527F_ADE6_82D1, 0x9B05_688C_2B3E_6C1F)
_LIST = _make_lanes(0x1F83_D9AB_FB41_BD6B, 0x5BE0_CD19_137E_2179)
_ELEMENT = _make_lanes(0xCBBB_9D5D_C105_9ED8, 0x629A_292A_367C_D507)
_POSITION = _make_lanes(0xD6E8_FEB8_6659_FD93, 0xA076_1D64_78BD_642F)

_MULTIPLY_1 = _make_lanes(0xBF58_476D_1CE4_E5B9, 0x7FB5_D329_728E_A185)
_MULTIPLY_2 = _make_lanes(0x94D0_49BB_1331_11EB, 0x81DA_DEF4_BC2D_D44D)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)

_BLOCK_ROWS = 8192
"""Rows mixed at a time, so that the lanes stay in the processor's cache."""

_SAMPLE_ROWS = 2048


class RowHashes(NamedTuple):
    """The hash of row i is `high[i] << 64 | low[i]`."""

    high: Words
    low: Words

    def take(self, rows: Longs) -> RowHashes:
        return RowHashes(self.high[rows], self.low[rows])

    def add_column(self, name: str, column: pa.ChunkedArray) -> RowHashes:
        """The hashes of the rows with one more column, the last one."""
        lanes = np.stack(self)
        _fold(lanes, [_hash_values(name, to_array(column))])
        return RowHashes(lanes[0], lanes[1])


def concatenate_hashes(hashes: Sequence[RowHashes]) -> RowHashes:
    if len(hashes) == 1:
        return hashes[0]
    return RowHashes(np.concatenate([one.high for one in hashes]), np.concatenate([one.low for one in hashes]))


_kept: dict[int, tuple[weakref.ref[pa.Table], RowHashes]] = {}
"""By identity of a table."""


def keep_hashes(table: pa.Table, hashes: RowHashes) -> None:
    """Keep the hashes of a table's rows, without `__time` and `__diff`, as long as this object exists."""
    key = id(table)
    _kept[key] = weakref.ref(table, lambda _: _kept.pop(key, None)), hashes


def find_hashes(table: pa.Table) -> RowHashes | None:
    """The hashes that `keep_hashes` got for this object. A table that is made from it has none."""
    found = _kept.get(id(table))
    return found[1] if found is not None and found[0]() is table else None


def carry_hashes(before: pa.Table, after: pa.Table) -> pa.Table:
    """Return `after`, which has the same rows as `before` and so their hashes."""
    hashes = find_hashes(before)
    if hashes is not None:
        keep_hashes(after, hashes)
    return after


def hash_rows(columns: pa.Table | pa.RecordBatch) -> RowHashes:
    """One hash per row over all columns in order: drop `__time` and `__diff` first."""
    rows = columns.num_rows
    words = [
        _hash_values(name, to_array(column)) for name, column in zip(columns.schema.names, columns.columns, strict=True)
    ]
    lanes = np.empty((2, rows), np.uint64)
    lanes[:] = _SEED
    _fold(lanes, words)
    return RowHashes(lanes[0], lanes[1])


def compute_digest(columns: pa.Table | pa.RecordBatch, diffs: Longs) -> int:
    """The sum of hash(row) x diff over all rows, modulo 2^128, exact for any diffs."""
    return sum_hashes(hash_rows(columns), diffs)


def sum_hashes(hashes: RowHashes, diffs: Longs) -> int:
    """The digest of the rows with these hashes and diffs."""
    high, low = hashes
    if len(high) != len(diffs):
        raise Unexpected(where="digest", why=f"{len(high)} rows have {len(diffs)} diffs")
    if len(diffs) == 0:
        return 0
    first = int(diffs[0])
    if (diffs == first).all():
        return (_sum_hashes(high, low) * first) & _BITS_128
    total = 0
    for start in range(0, len(diffs), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        total += _sum_weighted_hashes(high[block], low[block], diffs[block])
    return total & _BITS_128


def to_hex(value: int) -> str:
    return f"{value & _BITS_128:032x}"


def from_hex(value: str) -> int:
    return int(value, 16)


def add_digests(a: str, b: str) -> str:
    """The digest of two sets together, of digests as hexadecimal digits."""
    return to_hex(from_hex(a) + from_hex(b))


def _sum_hashes(high: Words, low: Words) -> int:
    """Sum `low` in halves of 32 bits, as 2^32 of them fit in 64 bits. `high` may wrap: the sum is modulo 2^128."""
    return (int(high.sum()) << 64) + _sum_in_halves(low)


def _sum_weighted_hashes(high: Words, low: Words, diffs: Longs) -> int:
    """Multiply in halves of 32 bits. A negative diff is 2^64 - |diff| here, so 2^64 x hash is subtracted at the end."""
    weights = diffs.view(np.uint64)
    low_0, low_1 = low & _BITS_32, low >> _32
    weight_0, weight_1 = weights & _BITS_32, weights >> _32
    total = _sum_in_halves(low_0 * weight_0)
    total += (_sum_in_halves(low_0 * weight_1) + _sum_in_halves(low_1 * weight_0)) << 32
    total += (int((low_1 * weight_1).sum()) + int((high * weights).sum())) << 64
    return total - (int(low[diffs < 0].sum()) << 64)


def _sum_in_halves(numbers: Words) -> int:
    return int((numbers & _BITS_32).sum()) + (int((numbers >> _32).sum()) << 32)


def _mix(lanes: Words, scratch: Words) -> None:
    """The finalizer of splitmix64 (lane 0) and of Stafford's variant 1 (lane 1), in place."""
    np.right_shift(lanes, _SHIFT_1, out=scratch)
    np.bitwise_xor(lanes, scratch, out=lanes)
    np.multiply(lanes, _MULTIPLY_1, out=lanes)
    np.right_shift(lanes, _SHIFT_2, out=scratch)
    np.bitwise_xor(lanes, scratch, out=lanes)
    np.multiply(lanes, _MULTIPLY_2, out=lanes)
    np.right_shift(lanes, _SHIFT_3, out=scratch)
    np.bitwise_xor(lanes, scratch, out=lanes)


def _fold(lanes: Words, words: list[Words]) -> None:
    """Mix words in, in order: each has one word per row, or one per lane and row."""
    rows = lanes.shape[1]
    scratch = np.empty((2, min(rows, _BLOCK_ROWS)), np.uint64)
    for start in range(0, rows, _BLOCK_ROWS):
        block = lanes[:, start : start + _BLOCK_ROWS]
        room = scratch[:, : block.shape[1]]
        for word in words:
            np.bitwise_xor(block, word[..., start : start + _BLOCK_ROWS], out=block)
            _mix(block, room)


def _hash_values(name: str, array: Any) -> Words:  # noqa: PLR0911 - one per kind of type
    """One word per row (n), or one per lane and row (2, n), NULL included."""
    if len(array) == 0:
        return np.empty(0, np.uint64)
    kind = array.type.id
    if kind in FIXED:
        return _replace_nulls(array, _to_unsigned(read_bits(array)))
    if kind in BINARY:
        return _hash_binaries(name, array)
    if kind == pa.lib.Type_DICTIONARY:
        return _hash_dictionary(name, array)
    if pa.types.is_nested(array.type) or kind in WIDE:
        return _replace_nulls(array, _hash_nested(name, array))
    if kind == pa.lib.Type_BOOL:
        return _replace_nulls(array, unpack_bools(array.buffers()[1], array.offset, len(array)).astype(np.uint64))
    return _hash_other(name, array)


def _hash_nested(name: str, array: Any) -> Words:
    kind = array.type.id
    if kind in WIDE:
        return _mix_columns(_WIDE, len(array), list(read_wide_words(array).T))
    if kind == pa.lib.Type_STRUCT:
        return _mix_columns(
            _STRUCT, len(array), [_hash_values(name, array.field(i)) for i in range(array.type.num_fields)]
        )
    return _hash_lists(name, array) if kind in LISTS else _hash_other(name, array)


def _hash_other(name: str, array: Any) -> Words:
    if array.type.id == pa.lib.Type_NA:
        return np.broadcast_to(_NULL, (2, len(array)))
    decoded = remove_encoding(array)
    if decoded is array:
        raise InvalidInput(where=f"column {name!r}", why=f"values of type {array.type} cannot be hashed")
    return _hash_values(name, decoded)


def _replace_nulls(array: Any, words: Words) -> Words:
    valid = read_validity(array)
    return words if valid is None else np.where(valid, words, _NULL)


def _to_unsigned(numbers: Any) -> Words:
    if numbers.dtype.itemsize == 8:
        return numbers.view(np.uint64)  # type: ignore[no-any-return]
    return numbers.astype(np.uint64)  # type: ignore[no-any-return]


def _mix_columns(seed: Words, rows: int, words: list[Words]) -> Words:
    lanes = np.empty((2, rows), np.uint64)
    lanes[:] = seed
    _fold(lanes, words)
    return lanes


def _hash_binaries(name: str, array: Any) -> Words:
    """If values repeat in a sample, hash each distinct value once; otherwise that would cost more than it saves."""
    if len(array) > 2 * _SAMPLE_ROWS and len(array.slice(0, _SAMPLE_ROWS).unique()) * 2 < _SAMPLE_ROWS:
        return _hash_dictionary(name, array.dictionary_encode())
    found = np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, read_bytes(array))), ">u8")
    return _replace_nulls(array, found.reshape(-1, 2).T.astype(np.uint64))


def _hash_dictionary(name: str, array: Any) -> Words:
    """A value of the dictionary may itself be NULL; an index under a NULL may be anything."""
    values = array.dictionary
    if len(values) == 0:
        return np.broadcast_to(_NULL, (2, len(array)))
    indices = read_bits(array.indices)
    valid = read_validity(array)
    if valid is not None:
        indices = np.where(valid, indices, 0)
    words = np.take(_hash_values(name, values), indices, axis=-1)
    return words if valid is None else np.where(valid, words, _NULL)


def _hash_lists(name: str, array: Any) -> Words:
    """Adjacent lists cover the elements without gaps, so summing from start to start skips empty lists."""
    offsets, values = read_lists(array)
    lengths = np.diff(offsets)
    lanes = _mix_columns(_LIST, len(array), [lengths.view(np.uint64)])
    filled = lengths > 0
    if filled.any():
        elements = _mix_columns(_ELEMENT, len(values), [_hash_values(name, values)])
        positions = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
        elements ^= (positions + 1).view(np.uint64) * _POSITION
        _mix(elements, np.empty_like(elements))
        lanes[:, filled] ^= np.add.reduceat(elements, offsets[:-1][filled], axis=1)
    _mix(lanes, np.empty_like(lanes))
    return lanes


def compare_rows(columns: pa.Table, left: Longs, right: Longs) -> Bools:
    """For each i, whether rows left[i] and right[i] are equal in all columns."""
    equal = np.ones(len(left), np.bool_)
    for column in columns.columns:
        equal &= compare_values(to_array(column.take(pa.array(left))), to_array(column.take(pa.array(right))))
    return equal


def compare_values(left: Any, right: Any) -> Bools:
    """Compare two arrays of the same type and length, row by row."""
    left, right = remove_encoding(left), remove_encoding(right)
    left_valid, right_valid = read_validity(left), read_validity(right)
    if left_valid is None and right_valid is None:
        return _compare_valid(left, right, np.ones(len(left), np.bool_))
    ones = np.ones(len(left), np.bool_)
    left_valid = ones if left_valid is None else left_valid
    right_valid = ones if right_valid is None else right_valid
    both = left_valid & right_valid
    return np.where(both, _compare_valid(left, right, both), left_valid == right_valid)


def _compare_valid(left: Any, right: Any, rows: Bools) -> Bools:
    """Only the results at `rows` count: in other rows one value is NULL, and the result is undefined."""
    kind = left.type.id
    found: Any
    if len(left) == 0 or kind == pa.lib.Type_NA:
        return rows
    if kind in FIXED:
        found = read_bits(left) == read_bits(right)
    elif kind == pa.lib.Type_BOOL:
        found = _read_bools(left) == _read_bools(right)
    elif kind in WIDE:
        found = (read_wide_words(left) == read_wide_words(right)).all(axis=1)
    elif kind in BINARY:
        found = _read_bools(pc.fill_null(pc.equal(left, right), False))  # noqa: FBT003 - a value, not a switch
    elif kind == pa.lib.Type_STRUCT:
        fields = range(left.type.num_fields)
        found = np.logical_and.reduce([rows, *(compare_values(left.field(i), right.field(i)) for i in fields)])
    elif kind in LISTS:
        found = _compare_lists(left, right, rows)
    else:
        raise TypeError(f"no equality for {left.type}")
    return found  # type: ignore[no-any-return]


def _read_bools(array: Any) -> Bools:
    return unpack_bools(array.buffers()[1], array.offset, len(array))


def _compare_lists(left: Any, right: Any, rows: Bools) -> Bools:
    """Compare lists of the same length element by element, all at once."""
    left_offsets, left_values = read_lists(left)
    right_offsets, right_values = read_lists(right)
    lengths = np.diff(left_offsets)
    equal: Bools = rows & (lengths == np.diff(right_offsets))
    filled = np.flatnonzero(equal & (lengths > 0))
    if len(filled) == 0:
        return equal
    lengths = lengths[filled]
    starts = np.cumsum(lengths) - lengths
    within = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    elements = compare_values(
        remove_encoding(left_values).take(pa.array(within + np.repeat(left_offsets[filled], lengths))),
        remove_encoding(right_values).take(pa.array(within + np.repeat(right_offsets[filled], lengths))),
    )
    equal[filled] = np.logical_and.reduceat(elements, starts)
    return equal
