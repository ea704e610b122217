"""A where clause as tokens, cut as PostgreSQL cuts them.

1. Names are lower-cased unless quoted. `'...'` is a text, `''` in it a quote; escapes are not read.
2. An operator is as many of its characters as there are, but a `+` or `-` at its end counts only if one of `~!@#%^&|`
   precedes: `a=-1` is `a = -1`, and `@-1` is an operator that nobody has.
3. Comments, `E''`, `U&''`, `B''`, `X''` and `$$` are refused.
4. Whatever is refused, here and by the parser, says at which character, and what stands there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from evertide.errors import InvalidInput

__all__ = ["TEXT_MAX", "Token", "refuse", "shortened", "tokens"]

TEXT_MAX: Final = 50_000
_SHOWN_MAX = 40
_DIGITS_MAX = 1000

_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\r\f\v]+)
    | (?P<comment>--|/\*)
    | (?P<string>'(?:[^']|'')*')
    | (?P<prefixed>(?:[eEbBxX]|[uU]&)['"]|\$[A-Za-z_\x80-\U0010ffff]*\$)
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<param>\$[0-9]+)
    | (?P<name>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
    | (?P<mark>::|[(),.\[\]])
    | (?P<operator>[-+*/<>=~!@#%^&|`?]+)""",
    re.VERBOSE,
)
_JUNK = re.compile(r"[A-Za-z0-9_\x80-\U0010ffff]")
_SIGNED = re.compile(r"[~!@#%^&|`?]")
_REASONS = {
    "comment": "comments are not supported",
    "prefixed": "only plain texts in single quotes are supported, and plain names in double quotes",
}


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is string, quoted, number, param, name, mark, operator or end; `text` is what it means."""

    kind: str
    text: str
    at: int
    shown: str


def refuse(at: int, why: str) -> NoReturn:
    """`at` counts from 0, people from 1."""
    raise InvalidInput(where="where clause", why=f"character {at + 1}: {why}")


def shortened(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")


def tokens(text: str) -> list[Token]:
    """Ends with one of kind `end`."""
    if len(text) > TEXT_MAX:
        refuse(TEXT_MAX, f"the clause has {len(text)} characters, and {TEXT_MAX} are the most")
    unfit = next((at for at, char in enumerate(text) if char == "\0" or "\ud800" <= char <= "\udfff"), None)
    if unfit is not None:
        refuse(unfit, f"{text[unfit]!r} is no character that a text can have")
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            refuse(at, f"{shortened(text[at])} is not understood{' (it is not closed)' if text[at] in _QUOTES else ''}")
        kind, piece = str(match.lastgroup), match[0]
        if kind in _REASONS:
            refuse(at, f"{shortened(piece)}: {_REASONS[kind]}")
        if kind != "space":
            token = _token(kind, piece, at)
            _check_end(token, text, at + len(token.shown))
            found.append(token)
            piece = token.shown
        at += len(piece)
    return [*found, Token("end", "", len(text), "the end")]


_QUOTES = "'\""


def _token(kind: str, piece: str, at: int) -> Token:
    if kind == "operator":
        piece = _operator(piece)
    if kind == "name":
        return Token(kind, _lowered(piece), at, piece)
    if kind in ("string", "quoted"):
        quote = piece[0]
        return Token(kind, piece[1:-1].replace(quote * 2, quote), at, piece)
    return Token(kind, piece, at, piece)


def _check_end(token: Token, text: str, end: int) -> None:
    """`1a` is no number and no name; a number of thousands of digits is one that nobody has."""
    if token.kind in ("number", "param"):
        if len(token.text) > _DIGITS_MAX:
            refuse(token.at, f"{shortened(token.text)}: numbers have at most {_DIGITS_MAX} digits")
        if _JUNK.match(text, end):
            refuse(end, f"{shortened(text[end])} follows a number without a space")


def _operator(piece: str) -> str:
    for comment in ("--", "/*"):
        cut = piece.find(comment)
        piece = piece if cut <= 0 else piece[:cut]
    while len(piece) > 1 and piece[-1] in "+-" and not _SIGNED.search(piece[:-1]):
        piece = piece[:-1]
    return piece


def _lowered(name: str) -> str:
    """As PostgreSQL does: letters beyond ASCII stay."""
    return name.lower() if name.isascii() else "".join(char.lower() if char.isascii() else char for char in name)
