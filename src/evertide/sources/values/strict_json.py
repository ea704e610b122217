"""Decode JSON, and refuse an object that repeats a name, and a text that is nested too deeply.

JSON does not define which of two values counts: some decoders keep the last one, others the first. The decoder does not
report repeated names, so they are detected by counting:

1. If the text has as many colons as the decoded value has names, no name is repeated. This is cheap.
2. Otherwise, as colons also occur inside texts, quoted texts before a colon are counted.
3. If that count differs as well, the text is decoded once more, name by name.

The decoder's own limit of nesting depends on the depth of the stack, so that a text could be valid in one process and
invalid in another. `_LEVELS_MAX` is fixed, and below it.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_NAME = re.compile(rb'"\s*:')


_LEVELS_MAX = 500


class TooDeep(RecursionError):
    """Lists and objects are nested too deeply."""


class RepeatedName(ValueError):
    """A JSON object repeats a name."""


def decode_json(decoder: msgspec.json.Decoder[Any], content: bytes) -> Any:
    """Decode; raise `RepeatedName` if an object repeats a name, `TooDeep` beyond `_LEVELS_MAX` levels."""
    value = decoder.decode(content)
    count = _count_names(value)
    if content.count(b":") != count and len(_NAME.findall(content)) != count:
        json.loads(content, object_pairs_hook=_check_names, parse_int=str, parse_float=str)
    return value


def _count_names(value: Any) -> int:
    """The number of names of all objects inside a value, level by level."""
    count, level = 0, [value]
    for _ in range(_LEVELS_MAX):
        inner: list[Any] = []
        for each in level:
            if type(each) is dict:
                count += len(each)
                inner += [one for one in each.values() if type(one) is dict or type(one) is list]
            elif type(each) is list:
                inner += [one for one in each if type(one) is dict or type(one) is list]
        if not inner:
            return count
        level = inner
    raise TooDeep(f"lists and objects are nested more than {_LEVELS_MAX} levels deep")


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise RepeatedName(f"an object repeats the name {name!r}")
        seen.add(name)
