"""Split a where clause into tokens as PostgreSQL does.

1. Names are lower-cased unless quoted. `'...'` is a text, in which `''` is a quote; escapes are not interpreted.
2. An operator is the longest run of operator characters, but a `+` or `-` at its end belongs to it only if it contains
   one of `~!@#%^&|`: `a=-1` is `a = -1`, and `@-1` contains the (unknown) operator `@-`.
3. Comments, `E''`, `U&''`, `B''`, `X''` and `$$` are refused.
4. Every refusal, here and in the parser, gives the character's position and the text found there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final, NoReturn

from evertide.errors import InvalidInput

TEXT_MAX: Final = 50_000
_SHOWN_MAX = 40
_DIGITS_MAX = 1000

_GRAMMAR = r"""(?P<space>[ \t\n\r\f\v]+)
    | (?P<comment>--|/\*)
    | (?P<string>'(?:[^']|'')*')
    | (?P<prefixed>(?:[eEbBxX]|[uU]&)['"]|\$[A-Za-z_\x80-\U0010ffff]*\$)
    | (?P<quoted>{q}(?:[^{q}]|{q}{q})*{q})
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<param>\$[0-9]+)
    | (?P<name>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
    | (?P<mark>::|[(),.\[\]])
    | (?P<operator>[-+*/<>=~!@#%^&|`?]+)"""
_NAME_CHARACTER = re.compile(r"[A-Za-z0-9_\x80-\U0010ffff]")
_SIGN_ALLOWED = re.compile(r"[~!@#%^&|`?]")
_REASONS = {
    "comment": "comments are not supported",
    "prefixed": "only plain texts in single quotes are supported, and plain names in double quotes",
}


@cache
def _pattern(name_quote: str) -> re.Pattern[str]:
    return re.compile(_GRAMMAR.replace("{q}", name_quote), re.VERBOSE)


@dataclass(frozen=True, slots=True)
class SqlToken:
    """`kind` is string, quoted, number, param, name, mark, operator or end; `text` is its value, `shown` its source."""

    kind: str
    text: str
    at: int
    shown: str


def refuse(at: int, why: str) -> NoReturn:
    """`at` counts from 0; the message counts from 1."""
    raise InvalidInput(where="where clause", why=f"character {at + 1}: {why}")


def shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")


def tokenize_clause(text: str, name_quote: str = '"') -> list[SqlToken]:
    """The tokens of a clause; the last one is of kind `end`."""
    if len(text) > TEXT_MAX:
        refuse(TEXT_MAX, f"the clause has {len(text)} characters; the limit is {TEXT_MAX}")
    unfit = next((at for at, char in enumerate(text) if char == "\0" or "\ud800" <= char <= "\udfff"), None)
    if unfit is not None:
        refuse(unfit, f"a text cannot contain {text[unfit]!r}")
    pattern = _pattern(name_quote)
    tokens: list[SqlToken] = []
    at = 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            refuse(
                at,
                f"{shorten(text[at])} is not valid here{' (the quote is not closed)' if text[at] in _QUOTES else ''}",
            )
        kind, lexeme = str(match.lastgroup), match[0]
        if kind in _REASONS:
            refuse(at, f"{shorten(lexeme)}: {_REASONS[kind]}")
        if kind != "space":
            token = _token(kind, lexeme, at)
            _check_end(token, text, at + len(token.shown))
            tokens.append(token)
            lexeme = token.shown
        at += len(lexeme)
    return [*tokens, SqlToken("end", "", len(text), "the end")]


_QUOTES = "'\""


def _token(kind: str, lexeme: str, at: int) -> SqlToken:
    if kind == "operator":
        lexeme = _operator(lexeme)
    if kind == "name":
        return SqlToken(kind, _lower(lexeme), at, lexeme)
    if kind in ("string", "quoted"):
        quote = lexeme[0]
        return SqlToken(kind, lexeme[1:-1].replace(quote * 2, quote), at, lexeme)
    return SqlToken(kind, lexeme, at, lexeme)


def _check_end(token: SqlToken, text: str, end: int) -> None:
    """Refuse `1a`, and numbers of more than `_DIGITS_MAX` digits."""
    if token.kind in ("number", "param"):
        if len(token.text) > _DIGITS_MAX:
            refuse(token.at, f"{shorten(token.text)}: a number has at most {_DIGITS_MAX} digits")
        if _NAME_CHARACTER.match(text, end):
            refuse(end, f"{shorten(text[end])} follows a number without a space")


def _operator(lexeme: str) -> str:
    for comment in ("--", "/*"):
        cut = lexeme.find(comment)
        lexeme = lexeme if cut <= 0 else lexeme[:cut]
    while len(lexeme) > 1 and lexeme[-1] in "+-" and not _SIGN_ALLOWED.search(lexeme[:-1]):
        lexeme = lexeme[:-1]
    return lexeme


def _lower(name: str) -> str:
    """As PostgreSQL does: only ASCII letters change."""
    return name.lower() if name.isascii() else "".join(char.lower() if char.isascii() else char for char in name)
