"""`ask`: answers a query with DuckDB, in a worker process (`evertide.server.query.answering`).

1. All collections are read at one time: the requested one, or the last that all of them have. A view that failed is
   read as of its last time before the failure.
2. With engine `auto`, DuckDB answers if the collections together have at most `query_small_rows` rows and DuckDB has
   the types of their columns. A client that names an engine gets that engine.
3. The language is Spark's. With engine `auto`, the query is rewritten so that DuckDB returns Spark's answer
   (`evertide.server.query.agreeing`). With engine `duckdb`, DuckDB's own semantics apply.
4. If DuckDB declines a query, by these rules or because it fails, `NotUnderstood` lets `Workers` try Spark.
5. Each engine refuses everything but reading with its own parser (`evertide.server.query.duck`,
   `evertide.plan.query.query`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from evertide.errors import LimitExceeded
from evertide.pipeline.reading.collections import Collections
from evertide.pipeline.reading.query import Chosen, Question
from evertide.pipeline.reading.reader import Reader
from evertide.server.query.agreeing import agreed
from evertide.server.query.duck import Duck, NotUnderstood, can_hold
from evertide.settings import Settings

__all__ = ["Given", "as_now", "ask", "rows_wanted", "time_of"]


@dataclass(frozen=True, slots=True)
class Given:
    time: int
    rows: pa.Table
    is_truncated: bool


def as_now(reader: Reader) -> Collections:
    """The collections of the current definition, fixed for one query even if the definition changes meanwhile."""
    members = reader.collections.members()
    return Collections(lambda: members)


def ask(collections: Collections, question: Question, duck: Duck) -> Given:
    parsed, asked = duck.parse(question.sql), _Asked(collections, duck.settings)
    names, said = asked.named(parsed.names), question
    if question.engine is Chosen.auto:
        said = agreed(question, parsed.tree, asked.schemas(names), duck.zone)
        asked.check_small(names)
    asked.check_readable(names)
    time = time_of(collections, question, names)
    tables = collections.tables_at(names, time)
    rows, is_truncated = duck.answered(said.sql, tables, list(said.parameters), rows_wanted(question, duck.settings))
    return Given(time, rows, is_truncated)


def time_of(collections: Collections, question: Question, names: Sequence[str]) -> int:
    return collections.common_time(names) if question.as_of is None else question.as_of


def rows_wanted(question: Question, settings: Settings) -> int:
    """The limit of the query, at most `query_rows_max`."""
    return settings.query_rows_max if question.limit is None else min(question.limit, settings.query_rows_max)


class _Asked:
    def __init__(self, collections: Collections, settings: Settings) -> None:
        self._collections = collections
        self._settings = settings

    def named(self, names: Iterable[str]) -> list[str]:
        """The names as they were declared."""
        return [self._collections.view(name).name for name in names]

    def schemas(self, names: Iterable[str]) -> dict[str, pa.Schema]:
        members = self._collections.members()
        return {name: members.collection(name).schema for name in names}

    def check_small(self, names: Sequence[str]) -> None:
        if not all(map(can_hold, self.schemas(names).values())):
            raise NotUnderstood(where="query", why="it reads a column of a type that DuckDB does not have")
        if (rows := sum(map(self._rows, names))) > self._settings.query_small_rows:
            raise NotUnderstood(where="query", why=f"it reads some {rows} rows, which is for Spark")

    def check_readable(self, names: Iterable[str]) -> None:
        """DuckDB loads whole collections into memory, so each may have at most `query_read_rows_max` rows."""
        most = self._settings.query_read_rows_max
        for name in names:
            if (rows := self._rows(name)) > most:
                why = f"it reads {name!r}, which has some {rows} rows, and DuckDB may read {most} of each collection"
                raise LimitExceeded(where="query", why=f"{why}: ask Spark (engine 'spark'), or declare a view")

    def _rows(self, name: str) -> int:
        shard = self._collections.members().collection(name)
        return sum(part.count for part in shard.log.read().state.parts)
