"""Explains errors of Spark's parser and analyzer: the cause, the place in the text, and a remedy.

Spark gives an error a class, parameters, and a position in the text that it was given. An error that `explain_error`
does not know keeps Spark's first line, without Spark's own position.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.errors import AnalysisException, PySparkException

from evertide.plan.catalyst.failure import read_first_line
from evertide.plan.catalyst.walk import get_kind, read_list, read_option, walk_nodes
from evertide.plan.query.functions import ALLOWED
from evertide.suggestions import find_similar, list_names, suggest

_SPARK_PLACE = re.compile(r"\.?\s*(?:SQLSTATE: \w+)?[;.]?\s*(?:\(?line \d+,? pos \d+\)?)?;?\s*$")
_BYPASS = re.compile(r" If necessary set \"[\w.]+\" to \"\w+\" to bypass this error\.")
_PART = re.compile(r"`((?:[^`]|``)*)`")
_TYPES = {
    **dict.fromkeys(("TEXT", "CLOB", "NVARCHAR", "CHARACTER VARYING"), "STRING"),
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


def find_offset(error: PySparkException, text: str) -> int | None:
    """The place of the error in the text that Spark was given; None if Spark gives none."""
    for each in error.getQueryContext():
        start, fragment = int(each.startIndex()), each.fragment()
        # Spark's positions count characters, but it cuts the fragment out by positions of UTF-16 units.
        if fragment and text.encode("utf-16-le")[2 * start :].startswith(fragment.encode("utf-16-le")):
            return start
        if fragment and text.count(fragment) == 1:  # Spark was given the text with the values of parameters
            return text.find(fragment)
    origin: Any = getattr(error, "_origin", None)
    if not isinstance(error, AnalysisException) or origin is None:  # a ParseException is one
        return None
    line, column = read_option(origin.line()), read_option(origin.startPosition())
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
        case "UNSUPPORTED_TIME_TYPE":
            return "the type TIME is off in this Spark session; set spark.sql.timeType.enabled to true"
    return (
        _explain_syntax(condition, facts)
        or _SPARK_PLACE.sub("", _BYPASS.sub("", read_first_line(error)))
        or "the statement cannot be parsed"
    )


def _explain_syntax(condition: str, facts: Mapping[str, str]) -> str:
    """What the parser refuses; empty for an error of another kind."""
    if condition == "PARSE_SYNTAX_ERROR":
        return f"syntax error at {facts.get('error', '')}{facts.get('hint', '')}"
    if condition not in ("UNSUPPORTED_DATATYPE", "DATATYPE_MISSING_SIZE"):
        return ""
    name = facts.get("typeName", facts.get("type", "")).strip('"')
    if condition == "DATATYPE_MISSING_SIZE":
        return f"the type {name} needs a length, as in {name}(20); or use STRING"
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


def find_relations(parser: Any, query: str) -> dict[str, str]:
    """The tables and views that a query reads, by alias and by name in lower case."""
    found: dict[str, str] = {}
    selects = 0
    for node in walk_nodes(parser.parsePlan(query)):
        kind = get_kind(node)
        selects += kind in ("Project", "Aggregate")
        if kind == "UnresolvedRelation":
            name = ".".join(read_list(node.multipartIdentifier()))
            found.setdefault(name.lower(), name)
        elif kind == "SubqueryAlias" and get_kind(node.child()) == "UnresolvedRelation":
            found[node.alias().lower()] = ".".join(read_list(node.child().multipartIdentifier()))
    return found if selects <= 1 else {**found, "": ""}  # a column may be one of a nested query
