"""`ask`: how DuckDB answers a question, and over what. In a worker (`evertide.server.query.answering`).

1. All collections are read at one time: the one asked for, or the last that all of them have. A view that failed is
   read as it was before.
2. If the question leaves the engine open, DuckDB answers if the collections have together few rows
   (`query_small_rows`) and it knows their types. Whoever names an engine gets that one.
3. The language is Spark's. Where the engine is open, DuckDB is asked in words of its own by which it gives Spark's
   answer (`evertide.server.query.agreeing`). Whoever names DuckDB gets DuckDB's own meaning.
4. What DuckDB does not answer by these rules, or cannot, is `NotUnderstood`: another engine may (`Workers`).
5. Both refuse whatever is more than reading, each by its own parser (`evertide.server.query.duck`,
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
    """What an engine found."""

    time: int
    rows: pa.Table
    is_truncated: bool


def as_now(reader: Reader) -> Collections:
    """By the definition that is in force now, and remains so for one question, whatever is declared meanwhile."""
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
    """Rows of its answer."""
    return settings.query_rows_max if question.limit is None else min(question.limit, settings.query_rows_max)


class _Asked:
    def __init__(self, collections: Collections, settings: Settings) -> None:
        self._collections = collections
        self._settings = settings

    def named(self, names: Iterable[str]) -> list[str]:
        """As they were declared."""
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
        """DuckDB gets the collections as a whole, in memory."""
        most = self._settings.query_read_rows_max
        for name in names:
            if (rows := self._rows(name)) > most:
                why = f"it reads {name!r}, which has some {rows} rows, and DuckDB may read {most} of each collection"
                raise LimitExceeded(where="query", why=f"{why}: ask Spark (engine 'spark'), or declare a view")

    def _rows(self, name: str) -> int:
        shard = self._collections.members().collection(name)
        return sum(part.count for part in shard.log.read().state.parts)
