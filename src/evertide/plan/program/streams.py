"""Removes the keyword `STREAM` of Declarative Pipelines from a query.

In Spark, the keyword marks tables that are read as a stream. Evertide maintains views over all changes of a table, so
it needs no mark, and the analyzer would refuse it, since no table of a pipeline is a streaming relation. Spark's parser
finds the keyword, so a column named `stream` is not touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from evertide.plan.catalyst.parsed import walk_parsed
from evertide.plan.catalyst.scala import read_option
from evertide.plan.catalyst.walk import get_kind

__all__ = ["remove_streams"]

_CALL = re.compile(r"STREAM\s*\(\s*(.*?)\s*\)", re.IGNORECASE | re.DOTALL)
_KEYWORD = re.compile(r"STREAM\s+", re.IGNORECASE)
_UNIT = "utf-16-le"
"""The JVM counts positions in UTF-16 code units of two bytes."""


def remove_streams(parser: Any, query: str) -> str:
    """Replace `STREAM t` and `STREAM(t)` by `t` in a query that can be parsed."""
    if "stream" not in query.lower():
        return query
    text = query.encode(_UNIT)
    for start in sorted(set(_find_places(parser.parsePlan(query))), reverse=True):
        rest = text[2 * start :].decode(_UNIT)
        plain = _CALL.sub(r"\1", rest, count=1) if _CALL.match(rest) else _KEYWORD.sub("", rest, count=1)
        text = text[: 2 * start] + plain.encode(_UNIT)
    return text.decode(_UNIT)


def _find_places(plan: Any) -> Iterator[int]:
    for node in walk_parsed(plan):
        if get_kind(node) == "UnresolvedRelation" and node.isStreaming():
            start = read_option(node.origin().startIndex())
            if start is not None:
                yield start
