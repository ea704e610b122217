"""Text operations: LIKE and ILIKE, upper and lower case, concatenation.

1. LIKE takes at most time proportional to text times pattern, for any pattern: every segment between two `%` has a
   fixed length, so taking the first place where it matches is always correct.
2. Case conversion works character by character, in all languages; a character whose other case is several characters
   stays as it is. ILIKE compares in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow.compute as pc

from evertide.pgexpr.expressions import Operation
from evertide.pgexpr.types.sqltypes import BOOL, TEXT


def _lower(text: str) -> str:
    return text.lower() if text.isascii() else "".join(_single(char, char.lower()) for char in text)


def _upper(text: str) -> str:
    return text.upper() if text.isascii() else "".join(_single(char, char.upper()) for char in text)


def _single(char: str, other: str) -> str:
    return other if len(other) == 1 else char


def _join(left: Any, right: Any) -> Any:
    return pc.binary_join_element_wise(left, right, "")


LOWER = Operation("lower", TEXT, "lower({0})", _lower)
UPPER = Operation("upper", TEXT, "upper({0})", _upper)
CONCAT = Operation("||", TEXT, "({0} || {1})", lambda left, right: left + right, _join, joins=True)


def like_operation(*, folded: bool) -> Operation:
    """LIKE; with `folded`, ILIKE."""
    name = "ILIKE" if folded else "LIKE"
    vectorized = None if folded else _match_texts
    return Operation(name.lower(), BOOL, f"({{0}} {name} {{1}})", make_matcher(folded=folded), vectorized)


def make_matcher(*, folded: bool, negated: bool = False) -> Callable[[str, str], bool]:

    def scalar(text: str, pattern: str) -> bool:
        if folded:
            text, pattern = _lower(text), _lower(pattern)
        return _compile_cached(pattern)(text) is not negated

    return scalar


def _match_texts(text: Any, pattern: Any) -> Any:
    """For the common constant patterns: a text with `%` before or after it. None for all others."""
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


def convert_escape(pattern: str, escape: str) -> str:
    """Rewrite a pattern with another escape character, or none, to use `\\`."""
    if len(escape) > 1:
        raise ArithmeticError("the escape of LIKE must be one character or empty")
    if escape == "\\":
        return pattern
    converted, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == escape:
            converted += "\\" + pattern[at : at + 1]
            at += 1
        else:
            converted += "\\\\" if char == "\\" else char
    return converted


def _compile_cached(pattern: str) -> Callable[[str], bool]:
    return _short(pattern) if len(pattern) <= _SHORT else _long(pattern)


def _compile(pattern: str) -> Callable[[str], bool]:
    segments: list[list[str]] = [[]]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "%":
            segments.append([])
        else:
            if char == "\\":
                at += 1
            segments[-1].append("." if char == "_" else re.escape(pattern[at : at + 1]))
            if at == len(pattern):
                return _refuse_unfinished
        at += 1
    compiled = [re.compile("".join(segment), re.DOTALL) for segment in segments]
    last_length = len(segments[-1])
    return lambda text: _fits(text, compiled, last_length)


_SHORT = 1000
_short = lru_cache(maxsize=1024)(_compile)
_long = lru_cache(maxsize=8)(_compile)
"""Few are cached: a compiled pattern takes much more memory than its text."""


def _refuse_unfinished(_: str) -> bool:
    """Fails for every text; PostgreSQL fails only if matching reaches the end of the pattern."""
    raise ArithmeticError("a LIKE pattern must not end with its escape")


def _fits(text: str, segments: list[re.Pattern[str]], last_length: int) -> bool:
    first, *middle = segments
    if not middle:
        return first.fullmatch(text) is not None
    start = first.match(text)
    if start is None:
        return False
    at = start.end()
    *middle, last = middle
    for segment in middle:
        match = segment.search(text, at)
        if match is None:
            return False
        at = match.end()
    end = len(text) - last_length
    return end >= at and last.match(text, end) is not None
