"""Turns an error of Spark's parser into an error of a script; `QueryText` maps positions in a query to the script."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark.errors import PySparkException

from evertide.errors import InvalidInput
from evertide.plan.query.spark_errors import explain_error, find_offset
from evertide.plan.script.statement_splitter import StatementText
from evertide.suggestions import suggest

_WORD = re.compile(r"\w+")
_KEYWORDS = (
    *("CREATE", "TABLE", "MATERIALIZED", "TEMPORARY", "STREAMING", "VIEW", "FLOW", "SELECT", "FROM", "WHERE", "GROUP"),
    *("ORDER", "HAVING", "LIMIT", "JOIN", "UNION", "PRIMARY", "USING", "OPTIONS", "TBLPROPERTIES", "COMMENT", "WITH"),
)
_REPLACED = re.compile(r"CREATE\s+OR\s+REPLACE\s+(?:MATERIALIZED|STREAMING)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class QueryText:
    """The text of a query in its statement. `start` is the place of the query in the statement."""

    statement: StatementText
    start: int
    text: str

    @classmethod
    def find(cls, statement: StatementText, query: str) -> QueryText:
        """A query is the end of its statement."""
        return cls(statement, max(statement.text.rfind(query), 0), query)

    def locate(self, query: str, offset: int) -> str:
        """The position in the script of a character of `query`, which is the text or the text without STREAM."""
        if query != self.text:  # the same word stands at this place or further right
            word = _WORD.match(query, offset)
            offset = max(self.text.find(word[0], offset), offset) if word else offset
        return self.statement.locate(self.start + offset)


def make_statement_error(error: PySparkException, statement: StatementText) -> InvalidInput:
    """The error of a statement that Spark cannot parse."""
    offset = find_offset(error, statement.text)
    why = explain_error(error)
    if _REPLACED.match(statement.text):
        why = "OR REPLACE is not needed: leave it out; a changed script replaces the view when the pipeline opens it"
    elif word := _find_misspelled(statement.text, offset):
        why += suggest(word, _KEYWORDS)
    return InvalidInput(where=statement.locate(offset or 0), why=why)


def _find_misspelled(text: str, offset: int | None) -> str:
    """The word at which the parser stopped; empty if it is spelled correctly."""
    found = _WORD.match(text, offset) if offset is not None else None
    return found[0] if found and found[0].upper() not in _KEYWORDS else ""
