"""Turns an error of Spark's parser or analyzer into an error of a script: its position, the cause, and a remedy.

Spark gives an error a class, parameters, and a position in the text that it was given. `QueryText` maps that position
to the script. An error that `explain_error` does not know keeps Spark's first line, without Spark's own position.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException

from evertide.errors import InvalidInput
from evertide.plan.catalyst.failure import read_first_line
from evertide.plan.catalyst.walk import read_option
from evertide.plan.query.functions import ALLOWED
from evertide.plan.script.statement_splitter import StatementText
from evertide.suggestions import find_similar, list_names, suggest

_SPARK_PLACE = re.compile(r"\.?\s*(?:SQLSTATE: \w+)?[;.]?\s*(?:\(?line \d+,? pos \d+\)?)?;?\s*$")
_PART = re.compile(r"`((?:[^`]|``)*)`")
_WORD = re.compile(r"\w+")
_TYPES = {
    **dict.fromkeys(("TEXT", "CLOB", "NVARCHAR", "CHARACTER VARYING", "VARCHAR", "CHAR", "CHARACTER"), "STRING"),
    **dict.fromkeys(("UUID", "JSON", "JSONB", "ENUM"), "STRING"),
    **dict.fromkeys(("DATETIME", "TIMESTAMPTZ"), "TIMESTAMP"),
    **dict.fromkeys(("SERIAL", "BIGSERIAL", "INT8", "INT64"), "BIGINT"),
    **dict.fromkeys(("INT4", "INT32", "MEDIUMINT"), "INT"),
    **dict.fromkeys(("INT2", "INT16"), "SMALLINT"),
    **dict.fromkeys(("FLOAT8", "FLOAT64", "DOUBLE PRECISION"), "DOUBLE"),
    **dict.fromkeys(("FLOAT4", "FLOAT32"), "FLOAT"),
    **dict.fromkeys(("BLOB", "BYTEA", "BYTES", "VARBINARY"), "BINARY"),
    **dict.fromkeys(("NUMBER", "MONEY"), "DECIMAL(18, 2)"),
    "BOOL": "BOOLEAN",
}
_SPARK_TYPES = (
    *("STRING", "BIGINT", "INT", "INTEGER", "SMALLINT", "TINYINT", "DOUBLE", "FLOAT", "DECIMAL", "BOOLEAN", "DATE"),
    *("TIMESTAMP", "TIMESTAMP_NTZ", "BINARY", "INTERVAL", "ARRAY", "MAP", "STRUCT", "VARIANT"),
)
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


def find_offset(error: PySparkException, text: str) -> int | None:
    """The place of the error in the text that Spark was given; None if Spark gives none."""
    origin: Any = getattr(error, "_origin", None)
    line = read_option(origin.line()) if origin is not None else None
    column = read_option(origin.startPosition()) if origin is not None else None
    if line is None or column is None:
        return None
    return sum(len(each) + 1 for each in text.split("\n")[: line - 1]) + int(column)


def explain_error(
    error: PySparkException, names: Iterable[str] = (), relations: Callable[[], Mapping[str, str]] = dict
) -> str:
    """What is wrong. `names` are the declared tables and views; `relations` gives those of the query by alias."""
    facts = error.getMessageParameters() or {}
    condition = str(error.getCondition()).partition(".")[0]
    match condition:
        case "TABLE_OR_VIEW_NOT_FOUND":
            name = ".".join(_read_parts(facts.get("relationName", "")))
            return f"no table or view {name!r}{list_names(name, names, 'the script declares')}"
        case "UNRESOLVED_COLUMN":
            proposals = [_read_parts(each) for each in facts.get("proposal", "").split(", ")]
            return _explain_column(_read_parts(facts.get("objectName", "")), proposals, relations())
        case "UNRESOLVED_ROUTINE":
            name = ".".join(_read_parts(facts.get("routineName", "")))
            return f"no function {name!r}{suggest(name, ALLOWED)}"
        case "AMBIGUOUS_REFERENCE":
            name = ".".join(_read_parts(facts.get("name", "")))
            choices = [".".join(_read_parts(each)) for each in facts.get("referenceNames", "").strip("[]").split(", ")]
            return f"column {name!r} is ambiguous; write {' or '.join(choices)}"
    return (
        _explain_syntax(condition, facts)
        or _SPARK_PLACE.sub("", read_first_line(error))
        or "the statement cannot be parsed"
    )


def _explain_syntax(condition: str, facts: Mapping[str, str]) -> str:
    """What the parser refuses; empty for an error of another kind."""
    if condition == "PARSE_SYNTAX_ERROR":
        return f"syntax error at {facts.get('error', '')}{facts.get('hint', '')}"
    if condition not in ("UNSUPPORTED_DATATYPE", "DATATYPE_MISSING_SIZE"):
        return ""
    name = facts.get("typeName", facts.get("type", "")).strip('"')
    remedy = _TYPES.get(name.upper(), "") or find_similar(name, _SPARK_TYPES)
    return f"the type {name} does not exist; {f'use {remedy}' if remedy else 'docs/sql.md lists the types'}"


def _read_parts(name: str) -> list[str]:
    """The parts of a name that Spark has quoted."""
    return [part.replace("``", "`") for part in _PART.findall(name)] or [name]


def _explain_column(path: list[str], proposals: list[list[str]], relations: Mapping[str, str]) -> str:
    """`relations` are the tables by alias; a column without an alias belongs to a single one."""
    if len(path) > 1 and path[0].lower() not in relations:
        name, known = ".".join(path), [".".join(each) for each in proposals]
        return f"no column {name!r}{list_names(name, filter(None, known), 'the query has')}"
    name, known = path[-1], list(dict.fromkeys(each[-1] for each in proposals if each[-1]))
    relation = relations[path[0].lower()] if len(path) > 1 else next(iter({*relations.values()}), "")
    is_known = bool(relation) and (len(path) > 1 or len({*relations.values()}) == 1)
    place = f" in {relation!r}" if is_known else ""
    return f"no column {name!r}{place}{list_names(name, known, 'the columns are')}"
