"""Splits a text into tokens, as Spark's lexer does.

Where Spark's rule depends on more than the text at the place, or is rare (hints, texts in dollar signs, numbers that
run into words, letters outside of ASCII), `UnknownToken` is raised, and Spark alone can say what the text means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from evertide.plan.syntax.grammar import Grammar

END = -1
_PIECE = re.compile(
    r"""
      (?P<space>   [ \t\r\n]+                                              )
    | (?P<line>    --[^\r\n]*                                              )
    | (?P<comment> /\*(?!\+)                                               )
    | (?P<raw>     [rR](?:'[^']*'|"[^"]*")                                 )
    | (?P<string>  '(?:[^'\\]|\\.|'')*'                                    )
    | (?P<double>  "(?:[^"\\]|\\.|"")*"                                    )
    | (?P<name>    `(?:[^`]|``)*`                                          )
    | (?P<number>  (?P<digits>\d+\.\d*|\.\d+|\d+)(?P<power>[eE][+-]?\d+)?(?P<suffix>[a-zA-Z]{0,2})(?![\w.]) )
    | (?P<word>    [A-Za-z_][A-Za-z0-9_]*(?!://)                           )
    | (?P<sign>    [^\w\s'"`$@{}\\]+                                       )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_SUFFIXES = {
    "L": "BIGINT_LITERAL",
    "S": "SMALLINT_LITERAL",
    "Y": "TINYINT_LITERAL",
    "F": "FLOAT_LITERAL",
    "D": "DOUBLE_LITERAL",
    "BD": "BIGDECIMAL_LITERAL",
}
_WHOLE = "LSY"
"""Suffixes of numbers without a point and an exponent."""
_SIGN_MAX = 3
_QUOTED = {
    "raw": "STRING_LITERAL",
    "string": "STRING_LITERAL",
    "double": "DOUBLEQUOTED_STRING",
    "name": "BACKQUOTED_IDENTIFIER",
}


@dataclass(frozen=True, slots=True)
class QueryToken:
    kind: int
    text: str
    start: int


class UnknownToken(Exception):
    """The text has a token that this module does not know."""


class Unclosed(Exception):
    """A quote or a comment is not closed."""

    def __init__(self, start: int, what: str) -> None:
        super().__init__(start, what)
        self.start = start
        self.what = what


def split_tokens(text: str, grammar: Grammar) -> Iterator[QueryToken]:
    """The tokens of a text, and its end."""
    at = 0
    while at < len(text):
        found = _PIECE.match(text, at)
        if found is None:
            if text[at] in "'\"`":
                raise Unclosed(at, f"the quote {text[at]}")
            raise UnknownToken(text[at])
        if found.lastgroup == "comment":
            at = _find_comment_end(text, at)
        elif (token := _read_token(found, grammar)) is not None:
            yield token
            at += len(token.text)
        else:
            at = found.end()
    yield QueryToken(END, "", len(text))


def _read_token(found: re.Match[str], grammar: Grammar) -> QueryToken | None:
    """None for space and a comment."""
    piece, start = found[0], found.start()
    match found.lastgroup:
        case "space":
            return None
        case "line":
            if piece.endswith("\\"):  # Spark continues the comment on the next line
                raise UnknownToken(piece)
            return None
        case "word":
            return QueryToken(grammar.literals.get(piece.upper(), grammar.names["IDENTIFIER"]), piece, start)
        case "sign":
            return _read_sign(piece, start, grammar)
        case "number" | "suffix":
            return QueryToken(grammar.names[_classify_number(found)], piece, start)
        case kind:
            return QueryToken(grammar.names[_QUOTED[str(kind)]], piece, start)


def _read_sign(piece: str, start: int, grammar: Grammar) -> QueryToken:
    """The longest operator at the beginning."""
    if ">>" in piece or "/*" in piece or "--" in piece:  # one operator, or the ends of two types; or a comment follows
        cut = min(at for at in map(piece.find, (">>", "/*", "--")) if at >= 0)
        piece = piece[:cut]
    for size in range(min(_SIGN_MAX, len(piece)), 0, -1):
        if (kind := grammar.literals.get(piece[:size])) is not None:
            return QueryToken(kind, piece[:size], start)
    raise UnknownToken(piece)


def _classify_number(found: re.Match[str]) -> str:
    digits, power, suffix = found["digits"], found["power"], found["suffix"].upper()
    before = found.string[: found.start()][-1:]
    is_whole = digits.isdigit() and power is None
    if digits.startswith(".") and (before.isalnum() or before in tuple("_)]}`\"'.")):
        raise UnknownToken(found[0])  # a field, or a number
    if not suffix:
        return "INTEGER_VALUE" if is_whole else "DECIMAL_VALUE" if power is None else "EXPONENT_VALUE"
    if suffix not in _SUFFIXES or (suffix in _WHOLE and not is_whole):
        raise UnknownToken(found[0])
    return _SUFFIXES[suffix]


def _find_comment_end(text: str, start: int) -> int:
    """The end of a bracketed comment; they nest."""
    depth, at = 1, start + 2
    while depth:
        edge = _COMMENT_EDGE.search(text, at)
        if edge is None:
            raise Unclosed(start, "the comment /*")
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
    return at
