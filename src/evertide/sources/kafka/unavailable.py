"""Recognize the placeholder that Debezium writes instead of a value that did not change.

PostgreSQL omits large values that an UPDATE does not touch (TOAST), Oracle omits large objects. Debezium writes its
setting `unavailable.value.placeholder` in their place, in the form of the column's type:

| type | placeholder |
|---|---|
| text, JSON | the text |
| bytes | its bytes; in JSON as base64, or as `binary.handling.mode` says |
| hstore | a map of the text to itself, or that as JSON |
| array | an array that contains the text or its bytes; of UUIDs: one UUID, made of its bytes |
| array of numbers | one number for each of its bytes; of decimals, the byte is the unscaled value |

1. The placeholder of an array of booleans cannot be distinguished from a value.
2. The placeholder is never a value. In a table with a key, the column keeps the value stored under the key; without a
   key, the row is a fault.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from evertide.sources.values.values import Number

DEFAULT_PLACEHOLDER = "__debezium_unavailable_value"
_HEX = "hex:"


class _OmittedValue:
    """Marks a value that the record does not contain."""

    def __repr__(self) -> str:
        return "unavailable"

    def __reduce__(self) -> str:
        return "UNAVAILABLE"


UNAVAILABLE = _OmittedValue()


@dataclass(frozen=True)
class Placeholder:
    """`setting` is the connector's `unavailable.value.placeholder`: a text, or `hex:` and hexadecimal digits."""

    setting: str = DEFAULT_PLACEHOLDER

    @cached_property
    def _bytes(self) -> bytes:
        return bytes.fromhex(self.setting[len(_HEX) :]) if self.setting.startswith(_HEX) else self.setting.encode()

    @cached_property
    def _texts(self) -> frozenset[str]:
        text, content = self._bytes.decode(errors="replace"), self._bytes
        pair = msgspec.json.encode({text: text}).decode()
        coded: tuple[Callable[[bytes], bytes], ...] = (base64.b64encode, base64.urlsafe_b64encode)
        return frozenset(
            {
                text,
                pair,
                content.hex(),
                content.hex().upper(),
                _uuid(content),
                *(code(content).decode() for code in coded),
            }
        )

    @cached_property
    def _numbers(self) -> list[int]:
        return [each - 256 if each > 127 else each for each in self._bytes]

    def stands_for(self, value: Any) -> bool:
        """Whether a value of a record is the placeholder."""
        if isinstance(value, str):
            return value in self._texts
        if isinstance(value, bytes | bytearray):
            return value == self._bytes
        if isinstance(value, Mapping):
            return len(value) == 1 and all(map(self.stands_for, (*value, *value.values())))
        if isinstance(value, list):
            return any(map(self.stands_for, value)) or self._is_numbers(value)
        return False

    def _is_numbers(self, values: Sequence[Any]) -> bool:
        """Whether the values are the placeholder's bytes, as numbers of any type."""
        if not values or len(values) != len(self._numbers):
            return False
        return all(_whole(value) == number for value, number in zip(values, self._numbers, strict=True))

    def is_among(self, texts: Any) -> bool:
        """Whether an array of texts contains the placeholder."""
        return bool(pc.any(pc.is_in(texts, pa.array(sorted(self._texts), texts.type))).as_py())

    def mark(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Replace placeholders in a row by `UNAVAILABLE`."""
        return {name: UNAVAILABLE if self.stands_for(value) else value for name, value in row.items()}


def _uuid(content: bytes) -> str:
    """A UUID of version 3 without a namespace, like Java's `UUID.nameUUIDFromBytes`."""
    digits = bytearray(hashlib.md5(content, usedforsecurity=False).digest())
    digits[6], digits[8] = digits[6] & 0x0F | 0x30, digits[8] & 0x3F | 0x80
    text = digits.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _whole(value: Any) -> int | float | None:
    """An array element as a number: of a decimal, the unscaled value, which JSON has as base64."""
    if isinstance(value, Mapping):  # a decimal with its own scale
        return _whole(value.get("value"))
    if isinstance(value, Decimal):
        return int(value.scaleb(-int(value.as_tuple().exponent))) if value.is_finite() else None
    if isinstance(value, Number):
        return float(value)
    if isinstance(value, str):
        try:
            value = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return None
    if isinstance(value, bytes | bytearray):
        return int.from_bytes(value, "big", signed=True) if len(value) == 1 else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
