"""Exact numbers, one per group: their encoding, addition and rounding.

A sum that is rounded at each step depends on the order of its terms, and a retraction leaves a residue. So sums are
exact: integers of any length times a power of two, as are doubles and their products. They are rounded once, when a
value of a view is computed.

They are stored in `binary` columns of the state, a type that Spark, Arrow and Parquet have. Version 1:

    zero          no bytes
    otherwise     exponent e (2 bytes, signed), then the integer m (two's complement); both little endian
                  the number is m * 256^e; m takes as few bytes as its sign allows, and its lowest byte is not zero

Each number has one encoding, so equal sums have equal bytes, whatever their terms and order; a delta and its inverse
leave no bytes.

In memory, `ExactNumbers` is a matrix of digits, one row per digit of 32 bits and one column per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evertide.rows.columns import Bools, Longs, Words

Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

_MASK = 0xFFFF_FFFF
_HEADER = 2
_DIGITS_MAX = 1 << 22
"""Digits in memory at once. If exponents differ so much that more are needed, the groups are split."""

_FEW = 64
"""Up to this number, adding one by one is faster than with numpy."""


@dataclass(frozen=True, eq=False)
class ExactNumbers:
    """The number of group i is the sum over j of digits[j, i] * 2^(32 (base + j)).

    Digits are in [0, 2^32), except the last, which has the sign and is in [-2^31, 2^31).
    """

    digits: Longs
    base: int

    def get_digit(self, word: int) -> Longs:
        """The digit with the weight 2^(32 word), stored or not; never negative."""
        at = word - self.base
        if at < 0:
            return np.zeros(self.digits.shape[1], np.int64)
        found: Longs = self.digits[at] if at < len(self.digits) else self.digits[-1] >> 31
        return found & _MASK

    def get_low_words(self, count: int) -> tuple[Words, Bools]:
        """The lowest `count` words of 64 bits per integer, and whether it fits into them. Only for integers."""
        words = np.empty((self.digits.shape[1], count), np.uint64)
        for at in range(count):
            words[:, at] = (self.get_digit(2 * at) | (self.get_digit(2 * at + 1) << 32)).view(np.uint64)
        sign = words[:, -1].view(np.int64) >> 63
        fits = np.ones(len(words), np.bool_)
        for word in range(2 * count, self.base + len(self.digits)):
            fits &= self.get_digit(word) == sign & _MASK
        return words, fits

    def to_doubles(self) -> Doubles:
        """The nearest doubles, ties to even. Only for multiples of 2^-1074, as all sums of doubles are.

        Take 64 bits from the first one on, with the last one set if any further bit is: rounding those is rounding the
        whole. Numbers below the normal doubles have fewer bits than that and are not rounded at all.
        """
        negative = self.digits[-1] < 0
        digits = np.where(negative, -self.digits, self.digits)
        _carry(digits)
        padded = np.concatenate((np.zeros((2, digits.shape[1]), np.int64), digits)).view(np.uint64)
        there = padded != 0
        top = np.maximum(len(padded) - 1 - there[::-1].argmax(axis=0), 2)
        column = np.arange(padded.shape[1])
        first, second, third = (padded[top - back, column] for back in range(3))
        shift = (32 - np.frexp(first.astype(np.float64))[1]).astype(np.uint64)
        w32 = np.uint64(32)
        bits = (first << (shift + w32)) | (second << shift) | (third >> (w32 - shift))
        further = ((third << shift) & np.uint64(_MASK) != 0) | (there.argmax(axis=0) < top - 2)
        further &= first != 0
        exponent = 32 * (self.base + top - 3) - shift.astype(np.int64)
        with np.errstate(over="ignore"):
            found: Doubles = np.ldexp((bits | further).astype(np.float64), exponent.astype(np.int32))
        return np.where(negative, -found, found)


def make_zeros(count: int) -> Any:
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bytes(4 * (count + 1))), pa.py_buffer(b"")])


def is_zero(array: Any) -> bool:
    """Whether all numbers are zero."""
    offsets, _ = _read_buffers(array)
    return bool(offsets[0] == offsets[-1])


def is_too_large(digits: int, count: int) -> bool:
    """Whether `count` numbers with `digits` digits each should be split."""
    return count > 1 and digits * count > _DIGITS_MAX


def sum_terms(terms: Sequence[tuple[Longs, int]], count: int) -> ExactNumbers:
    """The sum of (integers per group, below 2^54) * 2^(bits); up to 2^28 terms."""
    if not terms:
        return ExactNumbers(np.zeros((1, count), np.int64), 0)
    base = min(bits for _, bits in terms) // 32
    digits = np.zeros((max(bits for _, bits in terms) // 32 - base + 3, count), np.int64)
    for integers_, bits in terms:
        at, shift = divmod(bits - 32 * base, 32)
        if shift == 0:
            digits[at] += integers_ & _MASK
            digits[at + 1] += integers_ >> 32
        else:
            low, high = (integers_ & _MASK) << shift, (integers_ >> 32) << shift
            digits[at] += low & _MASK
            digits[at + 1] += (low >> 32) + (high & _MASK)
            digits[at + 2] += high >> 32
    _carry(digits)
    return ExactNumbers(digits, base)


def _carry(digits: Longs) -> None:
    for at in range(len(digits) - 1):
        digits[at + 1] += digits[at] >> 32
        digits[at] &= _MASK


def add(left: Any, right: Any) -> Any:
    """Add encoded numbers per group."""
    if is_zero(right):
        return left
    if is_zero(left):
        return right
    if len(left) <= _FEW:
        return _add_few(left, right)
    a, b = _find_range(left), _find_range(right)
    base, end = min(a[0], b[0]), max(a[1], b[1]) + 1
    if is_too_large(end - base, len(left)):
        half = len(left) // 2
        return pa.concat_arrays([add(left[:half], right[:half]), add(left[half:], right[half:])])
    digits = _decode_digits(left, base, end) + _decode_digits(right, base, end)
    _carry(digits)
    return encode(ExactNumbers(digits, base))


def _add_few(left: Any, right: Any) -> Any:
    found = []
    for (one, one_at), (other, other_at) in zip(to_integers(left), to_integers(right), strict=True):
        at = min(one_at, other_at)
        total = (one << (one_at - at)) + (other << (other_at - at))
        if total:
            raw = total.to_bytes((total if total > 0 else ~total).bit_length() // 8 + 1, "little", signed=True)
            body = raw.lstrip(b"\0")
            found.append((at // 8 + len(raw) - len(body)).to_bytes(_HEADER, "little", signed=True) + body)
        else:
            found.append(b"")
    return pa.array(found, pa.binary())


def encode(numbers: ExactNumbers) -> Any:
    digits = _trim(numbers.digits)
    found = np.ascontiguousarray(digits.T.astype("<u4")).view(np.uint8)
    count, width = found.shape
    sign = (digits[-1] < 0).astype(np.uint8)
    other = found != (sign * np.uint8(255))[:, None]
    end = width - other[:, ::-1].argmax(axis=1)
    end[~other.any(axis=1)] = 0
    last = np.where(end > 0, found[np.arange(count), end - 1], 0)
    end += (last >> 7) != sign
    start = (found != 0).argmax(axis=1)
    there = end > 0

    exponents = (start + 4 * numbers.base).astype("<i2")
    framed = np.concatenate((exponents.view(np.uint8).reshape(count, _HEADER), found), axis=1)
    at = np.arange(-_HEADER, width)
    taken = (at >= start[:, None]) & (at < end[:, None])
    taken[:, :_HEADER] = there[:, None]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.where(there, end - start + _HEADER, 0), out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(framed[taken])])


def _trim(digits: Longs) -> Longs:
    """Drop last digits that only repeat the sign of all numbers, since encoding costs time per byte."""
    end = len(digits)
    while end > 1 and np.array_equal(
        digits[end - 1] if end == len(digits) else _to_signed(digits[end - 1]), _to_signed(digits[end - 2]) >> 31
    ):
        end -= 1
    return digits if end == len(digits) else np.concatenate((digits[: end - 1], _to_signed(digits[end - 1])[None]))


def _to_signed(digit: Longs) -> Longs:
    """A digit as a signed number of 32 bits, as the last digit is."""
    return digit.astype(np.uint32).view(np.int32).astype(np.int64)


def decode(array: Any) -> ExactNumbers:
    if is_zero(array):
        return sum_terms((), len(array))
    base, end = _find_range(array)
    return ExactNumbers(_decode_digits(array, base, end + 1), base)


def _read_buffers(array: Any) -> tuple[npt.NDArray[np.int32], Bytes]:
    _, offsets, content = array.buffers()
    found = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset)
    return found, np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)


def _split_frames(array: Any) -> tuple[Longs, Longs, Longs, Bytes]:
    """The rows that are not zero; their exponents, their numbers of bytes, and these bytes one after the other."""
    offsets, content = _read_buffers(array)
    content, offsets = content[offsets[0] : offsets[-1]], offsets - offsets[0]
    rows = np.flatnonzero(np.diff(offsets))
    begin = offsets[rows]
    exponents = content[begin].astype(np.int64) + (content[begin + 1].astype(np.int64) << 8)
    exponents -= (exponents >> 15) << 16
    body = np.ones(len(content), np.bool_)
    body[begin] = body[begin + 1] = False
    return rows, exponents, offsets[rows + 1] - begin - _HEADER, content[body]


def _find_range(array: Any) -> tuple[int, int]:
    """The range of digits of numbers that are not all zero."""
    _, exponents, lengths, _ = _split_frames(array)
    return int(exponents.min()) // 4, -(-int((exponents + lengths).max()) // 4)


def _decode_digits(array: Any, base: int, end: int) -> Longs:
    """Digits from `base` to `end`, which must include one digit for a carry."""
    rows, exponents, lengths, content = _split_frames(array)
    width = 4 * (end - base)
    found = np.zeros((len(rows), width), np.uint8)
    at = np.arange(width)
    start = (exponents - 4 * base)[:, None]
    stop = start + lengths[:, None]
    found[(at >= start) & (at < stop)] = content
    negative = found[np.arange(len(rows)), stop[:, 0] - 1] >> 7
    found[(at >= stop) & (negative == 1)[:, None]] = 255
    digits = np.zeros((end - base, len(array)), np.int64)
    digits[:, rows] = found.view("<u4").T
    digits[-1] = digits[-1].astype(np.uint32).view(np.int32)
    return digits


def to_integers(array: Any) -> list[tuple[int, int]]:
    """Each number as (integer, exponent of two), zero as (0, 0); slow."""
    return [
        (
            int.from_bytes(found[_HEADER:], "little", signed=True),
            8 * int.from_bytes(found[:_HEADER], "little", signed=True),
        )
        for found in array.to_pylist()
    ]


def divide(numerator: int, denominator: int, exponent: int) -> float:
    """The double nearest to numerator / denominator * 2^exponent, ties to even; the denominator is positive."""
    if exponent >= 0:
        numerator <<= exponent
    else:
        denominator <<= -exponent
    try:
        return numerator / denominator
    except OverflowError:
        return float("inf") if numerator > 0 else float("-inf")
