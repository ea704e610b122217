"""Queries that are asked once, over rows that are at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from evertide.errors import InvalidInput
from evertide.plan.failure import reason, without_traces
from evertide.plan.scala import sequence
from evertide.plan.walk import kind

__all__ = ["frame_of", "query"]


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows)


def query(spark: SparkSession, text: str, load: Callable[[Iterable[str]], Mapping[str, pa.Table]]) -> pa.Table:
    """The answer of a query over collections, which `load` gets by their names."""
    session = spark.newSession()
    try:
        with without_traces():
            names = _names(session, text)
            for name, rows in load(names).items():
                frame_of(session, rows).createOrReplaceTempView(f"`{name}`" if not name.isidentifier() else name)
            return session.sql(text).toArrow()
    except PySparkException as error:
        raise InvalidInput(where="query", why=reason(error)) from error


def _names(session: SparkSession, text: str) -> list[str]:
    """The relations that it reads, less what it names itself (WITH)."""
    plan = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    return list(dict.fromkeys(_read(plan, frozenset())))


def _read(plan: Any, own: frozenset[str]) -> Iterator[str]:
    """A name of WITH hides a collection from where it is declared on, and from itself if it is recursive."""
    match kind(plan):
        case "UnresolvedWith":
            for pair in sequence(plan.cteRelations()):
                named = frozenset([pair._1().lower()])
                yield from _read(pair._2(), own | named if plan.allowRecursion() else own)
                own |= named
        case "UnresolvedRelation":
            name = ".".join(sequence(plan.multipartIdentifier()))
            if name.lower() not in own:
                yield name
    for child in (*sequence(plan.children()), *sequence(plan.subqueries())):
        yield from _read(child, own)
