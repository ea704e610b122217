"""`answer_with_duckdb`: answers a query with DuckDB, in a worker process (`evertide.server.query.answering`).

1. All collections are read at one time: the requested one, or the last that all of them have. A view that failed is
   read as of its last time before the failure.
2. With engine `auto`, DuckDB answers if the collections together have at most `query_small_rows` rows and DuckDB has
   the types of their columns. A client that names an engine gets that engine.
3. The language is Spark's. With engine `auto`, the query is rewritten so that DuckDB returns Spark's answer
   (`evertide.server.query.translation`). With engine `duckdb`, DuckDB's own semantics apply.
4. If DuckDB declines a query, by these rules or because it fails, `DuckDeclined` lets `Workers` try Spark.
5. Each engine refuses everything but reading with its own parser (`evertide.server.query.duck`,
   `evertide.plan.query.query`).
6. A misspelled name or keyword is refused before Spark starts (`evertide.server.query.name_check`,
   `evertide.plan.syntax.check`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from evertide.errors import InvalidInput, LimitExceeded
from evertide.pipeline.reading.collections import Collections
from evertide.pipeline.reading.query import EngineChoice, Question
from evertide.pipeline.reading.reader import StorageReader
from evertide.plan.syntax.check import check_syntax
from evertide.server.query.duck import Duck, DuckDeclined, Parsed, can_hold
from evertide.server.query.name_check import check_columns, check_functions
from evertide.server.query.translation import translate_query
from evertide.settings import Settings


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    time: int
    rows: pa.Table
    is_truncated: bool
    stale: Sequence[str] = ()


def pin_collections(reader: StorageReader) -> Collections:
    """The collections of the current definition, fixed for one query even if the definition changes meanwhile."""
    members = reader.collections.members()
    return Collections(lambda: members)


def answer_with_duckdb(collections: Collections, question: Question, duck: Duck) -> EngineAnswer:
    try:
        return _answer(collections, question, duck)
    except DuckDeclined:
        if question.engine is EngineChoice.auto:  # Spark is next
            check_syntax(question.sql)
        raise


def _answer(collections: Collections, question: Question, duck: Duck) -> EngineAnswer:
    check = _CollectionCheck(collections, duck.settings)
    parsed = duck.parse(question.sql, lambda parsed: check.check_names(question, parsed))
    names, translated = check.list_declared_names(parsed.names), question
    if question.engine is EngineChoice.auto:
        translated = translate_query(question, parsed.tree, check.list_schemas(names), duck.zone)
        check.check_small(names)
    check.check_readable(names)
    time = choose_time(collections, question, names)
    _, tables = collections.read_tables_at(names, time)
    rows, is_truncated = duck.answer(
        translated.sql, tables, list(translated.parameters), find_row_limit(question, duck.settings)
    )
    return EngineAnswer(time, rows, is_truncated, find_stale(collections, question, names))


def choose_time(collections: Collections, question: Question, names: Sequence[str]) -> int:
    return collections.find_common_time(names) if question.as_of is None else question.as_of


def find_stale(collections: Collections, question: Question, names: Iterable[str]) -> list[str]:
    """A reader that names a time asked for the content of that time."""
    return collections.find_stale(names) if question.as_of is None else []


def find_row_limit(question: Question, settings: Settings) -> int:
    """The limit of the query, at most `query_rows_max`."""
    return settings.query_rows_max if question.limit is None else min(question.limit, settings.query_rows_max)


class _CollectionCheck:
    def __init__(self, collections: Collections, settings: Settings) -> None:
        self._collections = collections
        self._settings = settings

    def check_names(self, question: Question, parsed: Parsed) -> None:
        """Refuse a misspelled name at once, before the query goes to another engine."""
        for name, offset in parsed.names.items():
            if why := self._collections.explain_unknown(name):
                raise InvalidInput(where=parsed.locate(offset), why=why)
        if question.engine is EngineChoice.auto:
            check_functions(parsed)
            check_columns(parsed, self.list_schemas(self.list_declared_names(parsed.names)))

    def list_declared_names(self, names: Iterable[str]) -> list[str]:
        """The names as they were declared."""
        return [self._collections.view(name).name for name in names]

    def list_schemas(self, names: Iterable[str]) -> dict[str, pa.Schema]:
        members = self._collections.members()
        return {name: members.open_collection(name).schema for name in names}

    def check_small(self, names: Sequence[str]) -> None:
        if not all(map(can_hold, self.list_schemas(names).values())):
            raise DuckDeclined(where="query", why="a column has a type that DuckDB does not have")
        for name in names:
            if compared := self._collections.list_compared_types(name):
                why = f"column {next(iter(compared))!r} of {name!r} is CHAR, which DuckDB compares without padding"
                raise DuckDeclined(where="query", why=why)
        if (rows := sum(map(self._count_rows, names))) > (most := self._settings.query_small_rows):
            why = f"the query reads about {rows} rows; the limit is {most} (query_small_rows)"
            raise DuckDeclined(where="query", why=why)

    def check_readable(self, names: Iterable[str]) -> None:
        """DuckDB loads whole collections into memory, so each may have at most `query_read_rows_max` rows."""
        most = self._settings.query_read_rows_max
        for name in names:
            if (rows := self._count_rows(name)) > most:
                why = f"collection {name!r} has about {rows} rows; DuckDB reads at most {most} (query_read_rows_max)"
                raise LimitExceeded(where="query", why=f"{why}; use the engine 'spark', or declare a view")

    def _count_rows(self, name: str) -> int:
        shard = self._collections.members().open_collection(name)
        return sum(part.count for part in shard.log.read().state.parts)
