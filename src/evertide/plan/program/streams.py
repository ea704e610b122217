"""`STREAM`, as Declarative Pipelines spell "what is added to this table", taken out of a query.

Spark reads a stream once, and so needs to be told which tables are streams. Here every table is read by its changes,
and a view over it is right whatever changes: the word adds nothing, and the analyzer would refuse it, as no table of a
pipeline is a streaming relation. Where it stands is Spark's parser's word, so that a column of that name stays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from evertide.plan.catalyst.scala import optional, sequence
from evertide.plan.catalyst.walk import kind, nodes

__all__ = ["without_streams"]

_CALLED = re.compile(r"STREAM\s*\(\s*(.*?)\s*\)", re.IGNORECASE | re.DOTALL)
_SAID = re.compile(r"STREAM\s+", re.IGNORECASE)
_UNIT = "utf-16-le"
"""The JVM counts places in units of UTF-16, two bytes each."""


def without_streams(parser: Any, query: str) -> str:
    """The query, parsable as it is, with `STREAM t` and `STREAM(t)` as `t`."""
    if "stream" not in query.lower():
        return query
    text = query.encode(_UNIT)
    for start in sorted(set(_places(parser.parsePlan(query))), reverse=True):
        said = text[2 * start :].decode(_UNIT)
        plain = _CALLED.sub(r"\1", said, count=1) if _CALLED.match(said) else _SAID.sub("", said, count=1)
        text = text[: 2 * start] + plain.encode(_UNIT)
    return text.decode(_UNIT)


def _places(plan: Any) -> Iterator[int]:
    for node in nodes(plan):
        if kind(node) == "UnresolvedRelation" and node.isStreaming():
            start = optional(node.origin().startIndex())
            if start is not None:
                yield start
        elif kind(node) == "UnresolvedWith":  # its queries are no children of it
            for named in sequence(node.cteRelations()):
                yield from _places(named._2())
