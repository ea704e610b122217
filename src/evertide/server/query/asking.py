"""`ask`: which engine answers a question, and over what.

1. All collections are read at one time: the one asked for, or the last that all of them have. A view that failed is
   read as it was before.
2. DuckDB answers if the collections have together few rows (`query_small_rows`) and it knows their types; Spark
   otherwise. Whoever names an engine gets that one.
3. The language is Spark's. DuckDB's is close to it; a query that DuckDB does not understand goes to Spark, if there is
   one and no engine was named. The answer says who gave it.
4. Both refuse whatever is more than reading, each by its own parser (`evertide.server.query.duck`,
   `evertide.plan.query`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from evertide.errors import InvalidInput, LimitExceeded
from evertide.pipeline.question import Answer, Chosen, Question
from evertide.pipeline.reading import Collections
from evertide.runtime import Runtime
from evertide.server.query.duck import Duck, NotUnderstood, can_hold

if TYPE_CHECKING:  # pyspark, which DuckDB does without
    from evertide.plan.session import SparkSession

__all__ = ["Spark", "ask"]

Spark = Callable[[], "SparkSession"]
"""Spark, once it is needed; `InvalidInput` if there is none."""


def ask(collections: Collections, question: Question, *, duck: Duck, spark: Spark | None, runtime: Runtime) -> Answer:
    began_s = runtime.monotonic_s()
    asked = _Asked(collections, question, duck)
    if question.engine is Chosen.spark:
        rows, engine = asked.by_spark(spark, runtime), Chosen.spark
    else:
        try:
            names, engine = asked.named(duck.parse(question.sql).names), Chosen.duckdb
            if question.engine is Chosen.auto and spark is not None and not asked.is_small(names):
                rows, engine = asked.by_spark(spark, runtime), Chosen.spark
            else:
                rows = asked.by_duckdb(names)
        except NotUnderstood:
            if question.engine is Chosen.duckdb or spark is None:
                raise
            rows, engine = asked.by_spark(spark, runtime), Chosen.spark
    took_ms = round((runtime.monotonic_s() - began_s) * 1000, 3)
    return Answer(asked.time, rows, asked.is_truncated, engine, took_ms)


class _Asked:
    def __init__(self, collections: Collections, question: Question, duck: Duck) -> None:
        self._collections = collections
        self._question = question
        self._duck = duck
        self._settings = settings = duck.settings
        self.time = collections.time() if question.as_of is None else question.as_of
        self.is_truncated = False
        wanted = settings.query_rows_max if question.limit is None else question.limit
        self._rows_max = min(wanted, settings.query_rows_max)

    def named(self, names: Iterable[str]) -> list[str]:
        """As they were declared."""
        return [self._collections.view(name).name for name in names]

    def is_small(self, names: Iterable[str]) -> bool:
        members, rows = self._collections.members(), 0
        for name in names:
            shard = members.collection(name)
            rows += sum(part.count for part in shard.log.read().state.parts)
            if not can_hold(shard.schema):
                return False
        return rows <= self._settings.query_small_rows

    def by_duckdb(self, names: list[str]) -> pa.Table:
        tables, parameters = self._tables(names), list(self._question.parameters)
        found, self.is_truncated = self._duck.answered(self._question.sql, tables, parameters, self._rows_max)
        return found

    def by_spark(self, spark: Spark | None, runtime: Runtime) -> pa.Table:
        if spark is None:
            raise InvalidInput(where="engine 'spark'", why="this pipeline does not run on Spark")
        from evertide.plan.query import query  # noqa: PLC0415 - pyspark

        found = query(
            spark(),
            self._question.sql,
            self._tables,
            self._question.parameters,
            rows_max=self._rows_max + 1,
            limit_s=self._settings.query_limit_s,
            tag=f"evertide-query-{runtime.new_id()}",
        )
        if found.nbytes > self._settings.query_bytes_max:
            why = f"its answer is larger than {self._settings.query_bytes_max} bytes: ask for less, or with a limit"
            raise LimitExceeded(where="query", why=why)
        self.is_truncated = found.num_rows > self._rows_max
        return found.slice(0, self._rows_max)

    def _check_size(self, names: Iterable[str]) -> None:
        """Both engines get the collections as a whole, by way of this process."""
        members, most = self._collections.members(), self._settings.query_read_rows_max
        for name in names:
            parts = members.collection(self._collections.view(name).name).log.read().state.parts
            if (rows := sum(part.count for part in parts)) > most:
                why = f"it reads {name!r}, which has some {rows} rows, and a query may read {most} of each collection"
                raise LimitExceeded(
                    where="query", why=f"{why}: declare a view, or read it with Spark (format evertide)"
                )

    def _tables(self, names: Iterable[str]) -> dict[str, pa.Table]:
        wanted = [*names]
        if self._question.as_of is None:
            self.time = self._collections.common_time(wanted)
        self._check_size(wanted)
        return self._collections.tables_at(wanted, self.time)
