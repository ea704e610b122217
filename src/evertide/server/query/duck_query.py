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
6. A misspelled column is refused before an engine starts (`check_columns`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from evertide.errors import InvalidInput, LimitExceeded
from evertide.pipeline.reading.collections import Collections
from evertide.pipeline.reading.query import EngineChoice, Question
from evertide.pipeline.reading.reader import StorageReader
from evertide.server.query.duck import Duck, DuckDeclined, Parsed, can_hold, walk_tree
from evertide.server.query.translation import translate_query
from evertide.settings import Settings
from evertide.suggestions import list_names, suggest

_CHECKED = re.compile(r"[A-Za-z_]\w*")
_RELATIONS = frozenset(("BASE_TABLE", "SUBQUERY", "JOIN", "EMPTY"))
_WORDS = frozenset(
    (
        *("col", "key", "value", "pos", "user", "session_user", "localtimestamp", "localtime", "nan", "infinity"),
        *("microsecond", "millisecond", "second", "minute", "hour", "day", "dayofyear", "week", "month", "quarter"),
        *("year", "decade", "century", "millennium", "epoch", "dow", "doy", "isodow", "isoyear"),
    )
)
"""Names that Spark knows without a table: of generated columns, of functions without parentheses, of units of time."""


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
        known = self._collections.names()
        declared = {name.lower() for name in (*known, *self._collections.definition.tables)}
        for name in parsed.names:
            if name.lower() not in declared and (hint := suggest(name, known)):
                raise InvalidInput(where="query", why=f"no table or view {name!r}{hint}")
        if question.engine is EngineChoice.auto:
            check_columns(question.sql, parsed.tree, self.list_schemas(self.list_declared_names(parsed.names)))

    def list_declared_names(self, names: Iterable[str]) -> list[str]:
        """The names as they were declared."""
        return [self._collections.view(name).name for name in names]

    def list_schemas(self, names: Iterable[str]) -> dict[str, pa.Schema]:
        members = self._collections.members()
        return {name: members.open_collection(name).schema for name in names}

    def check_small(self, names: Sequence[str]) -> None:
        if not all(map(can_hold, self.list_schemas(names).values())):
            raise DuckDeclined(where="query", why="a column has a type that DuckDB does not have")
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


def check_columns(sql: str, tree: Mapping[str, Any], schemas: Mapping[str, pa.Schema]) -> None:
    """Refuse a misspelled column; `tree` is DuckDB's tree of the query, `schemas` has the collections that it reads.

    A name is refused only if nothing in the query can have it: no column or field of its tables, no alias anywhere, and
    no word of the language. Queries whose tables make up names (functions in FROM, VALUES, PIVOT, lambdas) are not
    checked.
    """
    nodes = list(walk_tree(tree))
    if any(map(_makes_names, nodes)) or '"' in sql:  # Spark reads "..." as a text
        return
    columns = {name for schema in schemas.values() for name in schema.names}
    known = {name.lower() for name in (*schemas, *_list_fields(schemas), *_list_aliases(nodes))}
    for node in nodes:
        if node.get("class") == "COLUMN_REF":
            name = str(node["column_names"][0])
            word = name.lower()
            if _CHECKED.fullmatch(name) and word not in known | _WORDS and not word.startswith("current_"):
                place = f" in {next(iter(schemas))!r}" if len(schemas) == 1 else ""
                why = f"no column {name!r}{place}{list_names(name, sorted(columns), 'the columns are')}"
                raise InvalidInput(where="query", why=why)


def _makes_names(node: Mapping[str, Any]) -> bool:
    is_relation = "sample" in node and "alias" in node
    return node.get("class") == "LAMBDA" or (is_relation and node.get("type") not in _RELATIONS)


def _list_fields(schemas: Mapping[str, pa.Schema]) -> Iterator[str]:
    waiting: list[pa.Field] = [field for schema in schemas.values() for field in schema]
    while waiting:
        field = waiting.pop()
        yield field.name
        waiting += [field.type.field(at) for at in range(field.type.num_fields)]


def _list_aliases(nodes: list[dict[str, Any]]) -> Iterator[str]:
    for node in nodes:
        for value in (node.get("alias"), node.get("key"), node.get("cte_name"), node.get("table_name")):
            if isinstance(value, str):
                yield value
        for values in (node.get("column_name_alias"), node.get("aliases")):
            yield from (value for value in values or () if isinstance(value, str))
