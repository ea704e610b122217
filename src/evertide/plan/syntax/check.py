"""`check_syntax`: refuses a query that Spark's parser refuses, in milliseconds and without a JVM.

The grammar is Spark's own (`evertide.plan.syntax.grammar`). Conditions of its rules count as met, so this accepts
slightly more than Spark, and never less. Where the tokens are not certain, it accepts the text.

All ways through the grammar are followed at once, token by token. A way is a state, and the call of the rule that it is
in. Calls of one rule at one token are one call, for all callers, so that the work grows with the length of the text
and not with the number of ways.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from evertide.errors import InvalidInput
from evertide.plan.syntax.grammar import Grammar, find_grammar
from evertide.plan.syntax.tokens import END, QueryToken, Unclosed, UnknownToken, split_tokens
from evertide.source_text import locate_in_query
from evertide.suggestions import find_similar

_TOKENS_MAX = 3000
"""Longer queries are left to Spark."""
_MISSPELLED_MIN = 3
"""Shorter words are names."""


@dataclass(eq=False, slots=True)
class _Call:
    """A call of a rule at one token."""

    returns: set[tuple[int, _Call]] = field(default_factory=set)
    """Where the callers continue."""
    is_empty: bool = False
    """Whether the rule may have ended where it began."""


def check_syntax(sql: str) -> None:
    """Raise `InvalidInput` if Spark's parser refuses the text."""
    if (grammar := find_grammar()) is None:
        return
    try:
        tokens = list(split_tokens(sql, grammar))
    except Unclosed as error:
        raise InvalidInput(where=locate_in_query(sql, error.start), why=f"{error.what} is not closed") from None
    except UnknownToken:
        return
    if len(tokens) > _TOKENS_MAX:
        return
    reader = _Reader(grammar)
    if (index := reader.read_all(tokens)) < len(tokens):
        raise _make_refusal(sql, tokens, index, reader)


def _make_refusal(sql: str, tokens: list[QueryToken], index: int, reader: _Reader) -> InvalidInput:
    """The error at a token; or at a misspelled keyword there or before, if the text can be read further without it."""
    found: list[tuple[int, int, str]] = []
    for place, expected in ((index, reader.expected), (index - 1, reader.expected_before)):
        keyword = reader.find_keyword(tokens[place], expected) if place >= 0 else ""
        if keyword:
            kind = reader.grammar.literals[keyword]
            corrected = [*tokens[:place], replace(tokens[place], kind=kind), *tokens[place + 1 :]]
            found.append((_Reader(reader.grammar).read_all(corrected), place, keyword))
    reached, place, keyword = max(found, default=(0, index, ""))
    token = tokens[place] if reached > index else tokens[index]
    why = "syntax error at " + (repr(token.text) if token.kind != END else "end of input")
    hint = f"; did you mean {keyword!r}?" if reached > index else ""
    return InvalidInput(where=locate_in_query(sql, token.start), why=why + hint)


class _Reader:
    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._ways: set[tuple[int, _Call]] = {(grammar.start, _Call())}
        self.expected: set[int] = set()
        """The tokens that could have stood at the place of the last one."""
        self.expected_before: set[int] = set()
        """The tokens that could have stood before it."""

    def read_all(self, tokens: list[QueryToken]) -> int:
        """The number of tokens that were read."""
        return next((index for index, token in enumerate(tokens) if not self.read(token)), len(tokens))

    def find_keyword(self, token: QueryToken, expected: set[int]) -> str:
        """The keyword, among the expected tokens, that a word is most like; empty if none is."""
        if token.kind != self.grammar.names["IDENTIFIER"] or len(token.text) < _MISSPELLED_MIN:
            return ""
        return find_similar(token.text, [text for text, kind in self.grammar.literals.items() if kind in expected])

    def read(self, token: QueryToken) -> bool:
        """Go on with all ways that take this token; whether there are any."""
        reached = self._follow()
        tokens = self.grammar.parser.tokens
        self.expected_before = self.expected
        self.expected = {kind for state, _ in reached for kinds, _ in tokens[state] for kind in kinds}
        self._ways = {
            (target, call) for state, call in reached for kinds, target in tokens[state] if token.kind in kinds
        }
        return bool(self._ways)

    def _follow(self) -> set[tuple[int, _Call]]:
        """The ways before the next token: through steps without a token, into rules, and out of those that end."""
        network, reached, waiting = self.grammar.parser, set(self._ways), list(self._ways)
        calls: dict[int, _Call] = {}
        begun: set[_Call] = set()
        while waiting:
            state, call = waiting.pop()
            found = [(target, call) for target in network.steps[state]]
            for start, target in network.calls[state]:
                if (inner := calls.get(start)) is None:
                    inner = calls[start] = _Call()
                    begun.add(inner)
                    found.append((start, inner))
                inner.returns.add((target, call))
                if inner.is_empty:
                    found.append((target, call))
            if network.is_end[state]:
                call.is_empty = call in begun
                found += call.returns
            for way in found:
                if way not in reached:
                    reached.add(way)
                    waiting.append(way)
        return reached
