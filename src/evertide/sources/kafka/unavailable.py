"""Values that Debezium does not have: it writes a placeholder instead of a value that did not change.

PostgreSQL leaves out large values that an UPDATE does not touch (TOAST), Oracle large objects. Debezium puts its
setting `unavailable.value.placeholder` in their place, written as the column's type has it:

| type | placeholder |
|---|---|
| text, JSON | the text |
| bytes | its bytes; in JSON as base64, or as its `binary.handling.mode` says |
| hstore | a map of the text to itself, or that as JSON |
| array | an array with the text or its bytes in it; of numbers: one number for each of its bytes |

The placeholder is never a value. In a table with a key the column stays as it is under the key; without a key nobody
knows which value it is.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

__all__ = ["DEFAULT_PLACEHOLDER", "UNAVAILABLE", "Placeholder"]

DEFAULT_PLACEHOLDER = "__debezium_unavailable_value"
_HEX = "hex:"


class _Unavailable:
    """What stands for a value that is not there."""

    def __repr__(self) -> str:
        return "unavailable"

    def __reduce__(self) -> str:
        return "UNAVAILABLE"


UNAVAILABLE = _Unavailable()


@dataclass(frozen=True)
class Placeholder:
    """`setting` is that of the connector: a text, or `hex:` and the hexadecimal digits of its bytes."""

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
            {text, pair, content.hex(), content.hex().upper(), *(code(content).decode() for code in coded)}
        )

    @cached_property
    def _numbers(self) -> list[int]:
        return [each - 256 if each > 127 else each for each in self._bytes]

    def stands_for(self, value: Any) -> bool:
        """Whether a value, as the record has it, is the placeholder."""
        if isinstance(value, str):
            return value in self._texts
        if isinstance(value, bytes | bytearray):
            return value == self._bytes
        if isinstance(value, Mapping):
            return len(value) == 1 and all(map(self.stands_for, (*value, *value.values())))
        if isinstance(value, list):
            return any(map(self.stands_for, value)) or (bool(value) and value == self._numbers)
        return False

    def marked(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with `UNAVAILABLE` where the placeholder is."""
        return {name: UNAVAILABLE if self.stands_for(value) else value for name, value in row.items()}
