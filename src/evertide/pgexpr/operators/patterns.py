"""Texts: LIKE, case, and what is put together.

1. LIKE takes time in proportion to text times pattern, whatever the pattern: between two `%` all is of fixed length,
   and the first place where it fits is as good as any.
2. Upper and lower case are those of single characters, in all languages; a character whose other case is several
   characters stays. ILIKE compares in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow.compute as pc

from evertide.pgexpr.expressions import Operation
from evertide.pgexpr.types.sqltypes import BOOL, TEXT

__all__ = ["CONCAT", "LOWER", "UPPER", "escaped_pattern", "like", "likeness"]


def _lowered(text: str) -> str:
    return text.lower() if text.isascii() else "".join(_single(char, char.lower()) for char in text)


def _raised(text: str) -> str:
    return text.upper() if text.isascii() else "".join(_single(char, char.upper()) for char in text)


def _single(char: str, other: str) -> str:
    return other if len(other) == 1 else char


def _joined(left: Any, right: Any) -> Any:
    return pc.binary_join_element_wise(left, right, "")


LOWER = Operation("lower", TEXT, "lower({0})", _lowered)
UPPER = Operation("upper", TEXT, "upper({0})", _raised)
CONCAT = Operation("||", TEXT, "({0} || {1})", lambda left, right: left + right, _joined, joins=True)


def like(*, folded: bool) -> Operation:
    """`folded`: ILIKE."""
    name = "ILIKE" if folded else "LIKE"
    whole = None if folded else _whole_like
    return Operation(name.lower(), BOOL, f"({{0}} {name} {{1}})", likeness(folded=folded), whole)


def likeness(*, folded: bool, negated: bool = False) -> Callable[[str, str], bool]:
    """Of a text and a pattern."""

    def scalar(text: str, pattern: str) -> bool:
        if folded:
            text, pattern = _lowered(text), _lowered(pattern)
        return _matcher(pattern)(text) is not negated

    return scalar


def _whole_like(text: Any, pattern: Any) -> Any:
    """For patterns as most are: a text, with `%` before or after it. None for others, and for patterns from rows."""
    fixed = pattern.as_py() if not hasattr(pattern, "__len__") else None
    if fixed is None or hasattr(text, "as_py"):
        return None
    body = fixed.strip("%")
    if not body or re.search(r"[%_\\]", body):
        return None
    match = {(False, False): pc.equal, (True, False): pc.ends_with, (False, True): pc.starts_with}.get(
        (fixed.startswith("%"), fixed.endswith("%")), pc.match_substring
    )
    return match(text, body)


def escaped_pattern(pattern: str, escape: str) -> str:
    """The pattern with `\\` as its escape, for one that has another, or none."""
    if len(escape) > 1:
        raise ArithmeticError("the escape of LIKE is one character, or none")
    if escape == "\\":
        return pattern
    made, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == escape:
            made += "\\" + pattern[at : at + 1]
            at += 1
        else:
            made += "\\\\" if char == "\\" else char
    return made


def _matcher(pattern: str) -> Callable[[str], bool]:
    return _short(pattern) if len(pattern) <= _SHORT else _long(pattern)


def _made(pattern: str) -> Callable[[str], bool]:
    pieces: list[list[str]] = [[]]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "%":
            pieces.append([])
        else:
            if char == "\\":
                at += 1
            pieces[-1].append("." if char == "_" else re.escape(pattern[at : at + 1]))
            if at == len(pattern):
                return _unfinished
        at += 1
    compiled = [re.compile("".join(piece), re.DOTALL) for piece in pieces]
    last_length = len(pieces[-1])
    return lambda text: _fits(text, compiled, last_length)


_SHORT = 1000
_short = lru_cache(maxsize=1024)(_made)
_long = lru_cache(maxsize=8)(_made)
"""A compiled pattern takes much more than its text."""


def _unfinished(_: str) -> bool:
    """PostgreSQL fails only where it comes so far; here it is wrong for all."""
    raise ArithmeticError("a LIKE pattern must not end with its escape")


def _fits(text: str, pieces: list[re.Pattern[str]], last_length: int) -> bool:
    first, *middle = pieces
    if not middle:
        return first.fullmatch(text) is not None
    start = first.match(text)
    if start is None:
        return False
    at = start.end()
    *middle, last = middle
    for piece in middle:
        found = piece.search(text, at)
        if found is None:
            return False
        at = found.end()
    end = len(text) - last_length
    return end >= at and last.match(text, end) is not None
