"""Parses Thrift's compact protocol, as far as Parquet uses it: a struct becomes a dict by field number.

1. Any input yields a struct or `Malformed`, in time linear in its length.
2. A repeated field is malformed, because two readers could each use another value. So is a map, which Parquet does not
   use.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Malformed", "read_struct"]

_DEPTH = 16
_SKIPPED = {1: 0, 2: 0, 3: 1, 7: 8}
"""Types whose values are ignored, and their size in bytes: true, false, byte, double."""
_TRUE, _FALSE, _BYTES, _LIST, _SET, _STRUCT = 1, 2, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)


class Malformed(Exception):
    pass


def read_struct(content: bytes, at: int = 0, *, has_lists: bool) -> tuple[dict[int, Any], int]:
    """The struct at `at`, and the position after it."""
    try:
        return _read_struct(content, at, _DEPTH if has_lists else 0, _DEPTH)
    except IndexError as error:
        raise Malformed from error


def _read_struct(content: bytes, at: int, lists: int, depth: int) -> tuple[dict[int, Any], int]:
    found: dict[int, Any] = {}
    number = 0
    while (first := content[at]) != 0:
        at += 1
        if first >> 4:
            number += first >> 4
        else:
            number, at = _read_integer(content, at)
        if number in found:
            raise Malformed
        found[number], at = _read_value(content, at, first & 15, lists, depth - 1)
    return found, at + 1


def _read_value(content: bytes, at: int, kind: int, lists: int, depth: int) -> tuple[Any, int]:
    if depth == 0:
        raise Malformed
    if kind in _SKIPPED:
        return None, at + _SKIPPED[kind]
    if kind in _INTEGERS:
        return _read_integer(content, at)
    if kind == _STRUCT:
        return _read_struct(content, at, lists, depth)
    if kind == _BYTES:
        length, at = _read_varint(content, at)
        if at + length > len(content):
            raise Malformed
        return content[at : at + length], at + length
    if kind in (_LIST, _SET) and lists:
        return _read_list(content, at, lists, depth)
    raise Malformed


def _read_list(content: bytes, at: int, lists: int, depth: int) -> tuple[list[Any], int]:
    first = content[at]
    count, at = (first >> 4, at + 1) if first >> 4 < 15 else _read_varint(content, at + 1)
    kind = first & 15
    if at + count > len(content):  # each element has at least one byte
        raise Malformed
    if kind in (_TRUE, _FALSE):
        return [], at + count
    found = []
    for _ in range(count):
        value, at = _read_value(content, at, kind, lists, depth - 1)
        found.append(value)
    return found, at


def _read_integer(content: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(content, at)
    return (value >> 1) ^ -(value & 1), at


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise Malformed
