"""Estimate how much memory a JSON or CSV body takes once it is decoded, before it is decoded.

A text of ordinary rows takes six to eight times its size as values. A text of rows that are almost empty (`{}`) takes
up to eighty times its size. So rows and values are counted, by the bytes that begin or separate them. Such bytes inside
of quotes count as well: the estimate may be too large, for texts that consist of punctuation.
"""

from __future__ import annotations

from evertide.media import CSV

__all__ = ["count_text_bytes"]

_OBJECT_BYTES = 216
"""Of an object with at most five names, and of its row in the columns to which it is converted."""
_LIST_BYTES = 72
_VALUE_BYTES = 40
_RECORD_BYTES = 64
"""Size of a CSV record: CSV is decoded to columns, not to an object for each value."""
_FIELD_BYTES = 16


def count_text_bytes(content: bytes, kind: str) -> int:
    """The decoded size of JSON, JSON lines or CSV, estimated."""
    if kind == CSV:
        records = content.count(b"\n")
        return len(content) + records * (_RECORD_BYTES + _FIELD_BYTES) + content.count(b",") * _FIELD_BYTES
    objects, lists = content.count(b"{") * _OBJECT_BYTES, content.count(b"[") * _LIST_BYTES
    return len(content) + objects + lists + content.count(b",") * _VALUE_BYTES
