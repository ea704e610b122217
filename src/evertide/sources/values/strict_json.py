"""JSON in which no object has a name twice.

Which of two values counts is not said anywhere: some decoders keep the last one, others the first. So such a text is
refused, with the name.

Decoders do not tell. A text has at least as many colons as names, and as many names as the decoded value, or more if
one is there twice: where the two counts agree, which costs little, none is. Otherwise, as colons are in texts too, the
names are counted, and if these disagree as well, the text is decoded once more, name by name.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

__all__ = ["RepeatedName", "decode_json"]

_NAME = re.compile(rb'"\s*:')


class RepeatedName(ValueError):
    """An object has a name twice."""


def decode_json(decoder: msgspec.json.Decoder[Any], content: bytes) -> Any:
    """What the decoder makes of it. `RepeatedName` if an object in it has a name twice."""
    found = decoder.decode(content)
    count = _names(found)
    if content.count(b":") != count and len(_NAME.findall(content)) != count:
        json.loads(content, object_pairs_hook=_unique, parse_int=str, parse_float=str)
    return found


def _names(value: Any) -> int:
    """How many names all objects in it have."""
    count, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        if type(each) is dict:
            count += len(each)
            waiting += [one for one in each.values() if type(one) is dict or type(one) is list]
        elif type(each) is list:
            waiting += [one for one in each if type(one) is dict or type(one) is list]
    return count


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise RepeatedName(f"an object has the name {name!r} twice")
        seen.add(name)
