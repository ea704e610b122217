"""`Duck`: runs a query with DuckDB, in memory.

The engine enforces what a query may do; the query's text does not decide it:

1. The database is in memory and empty. Each query has a connection of its own that holds only the collections that the
   query names, at one time. There is nothing that a query could change, or that another query could see.
2. A query has no access to files, network, extensions or Python objects of this process, and DuckDB writes no temporary
   files. The configuration is locked before the first query. DuckDB checks its limits of memory and threads only
   between function calls; the worker process bounds a single call, and time (`evertide.server.query.worker`).
3. DuckDB's own parser determines what the query is: one SELECT over collections, with functions that `duck_functions`
   allows. Anything else is refused before it is bound.

Rows have types that a table can have: integers are BIGINT if they fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from evertide.errors import InvalidInput, LimitExceeded
from evertide.json_values import is_variant
from evertide.server.query.duck_functions import ALLOWED, ALLOWED_IN_FROM, REFUSED
from evertide.settings import Settings

__all__ = ["Duck", "NotUnderstood", "Parsed", "can_hold"]

_CONFIG = {
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "default_null_order": "nulls_first_on_asc_last_on_desc",
    "max_temp_directory_size": "0KiB",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
"""The null order is Spark's."""
_LOCK = "SET enable_external_access = false; SET lock_configuration = true"
_NO_SELECT = "not implemented"
"""DuckDB's error type for a statement that it can parse, but not serialize as a tree."""
_KNOWN = frozenset(name.lower() for name in ALLOWED)
_ODD = {"UHUGEINT", "BIGNUM", "VARINT", "BIT"}
"""Types that no table can have, and that no type of a table can represent."""
_NO_MEMORY = "Out of Memory Error"
_BATCH = 8192
_WHOLE = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_LONGS = (-(1 << 63), (1 << 63) - 1)


class NotUnderstood(InvalidInput):
    """DuckDB cannot answer the query; another engine may."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The names that a query reads, except those of its own WITH clauses; and DuckDB's tree of the statement."""

    names: tuple[str, ...]
    tree: Mapping[str, Any]


class Duck:
    """Answers one query at a time; another thread may interrupt it."""

    def __init__(self, settings: Settings, zone: str = "UTC") -> None:
        """`zone` is the time zone of the session."""
        self.settings = settings
        self.zone = zone
        self._asked: Any = None
        """The connection of the current query."""

    @cached_property
    def _database(self) -> Any:
        settings = self.settings
        bounds = {"memory_limit": f"{settings.query_memory_bytes}B", "threads": str(settings.query_threads)}
        made = duckdb.connect(":memory:", config={**_CONFIG, **bounds})
        try:
            made.execute("SET GLOBAL TimeZone = ?", [self.zone])
        except duckdb.Error as error:  # Spark may know the zone
            raise _refusal(error) from error
        made.execute(_LOCK)
        return made

    def interrupt(self) -> None:
        """Cancel the current query, at the next point where DuckDB checks for it."""
        connection = self._asked
        if connection is not None:
            with suppress(duckdb.Error):  # the query has just ended
                connection.interrupt()

    def parse(self, sql: str) -> Parsed:
        """Raise `InvalidInput` if `sql` is not one SELECT, or reads anything but collections."""
        with self._database.cursor() as connection:
            try:
                [(text,)] = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
                found = json.loads(text)
                if found.get("error_type") == _NO_SELECT:
                    _check_kind(statement.type for statement in connection.extract_statements(sql))
                return _parsed(found)
            except duckdb.Error as error:
                raise _refusal(error) from error
            except RecursionError as error:
                raise NotUnderstood(where="query", why="its expressions are nested too deeply") from error

    def answered(
        self, sql: str, tables: Mapping[str, pa.Table], parameters: list[Any], rows_max: int
    ) -> tuple[pa.Table, bool]:
        """At most `rows_max` rows, and whether there are more. `sql` must have passed `parse`."""
        settings = self.settings
        with self._database.cursor() as connection:
            self._asked = connection
            try:
                for name, rows in tables.items():
                    connection.register(name, rows)
                relation = connection.sql(sql, params=parameters)
                return _collected(relation, rows_max, settings.query_bytes_max)
            except (duckdb.OutOfMemoryException, pa.ArrowMemoryError, MemoryError) as error:
                raise _over(f"it takes more than {settings.query_memory_bytes} bytes of memory") from error
            except OSError as error:  # once rows stream through Arrow, only the text of an error is kept
                if str(error).startswith(_NO_MEMORY):
                    raise _over(f"it takes more than {settings.query_memory_bytes} bytes of memory") from error
                raise _refusal(error) from error
            except (duckdb.Error, pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                raise _refusal(error) from error
            finally:
                self._asked = None


def _check_kind(kinds: Iterable[Any]) -> None:
    """Refuse a DELETE for every engine. DuckDB may parse a SELECT of Spark's as several statements: that passes."""
    if other := {*kinds} - {duckdb.StatementType.SELECT, duckdb.StatementType.MULTI}:
        why = f"a query is a SELECT over tables and views, and this is, or holds, {other.pop().name}"
        raise InvalidInput(where="query", why=why)


def _parsed(found: Mapping[str, Any]) -> Parsed:
    if found["error"]:
        raise NotUnderstood(where="query", why=str(found["error_message"]))
    if len(found["statements"]) != 1:
        raise InvalidInput(where="query", why=f"{len(found['statements'])} statements; one SELECT is asked at a time")
    in_from = _makes_rows(found["statements"][0])
    for node in _nodes(found["statements"][0]):
        if (refused := _refused(node)) is not None:
            raise InvalidInput(where="query", why=refused)
        if id(node) not in in_from and (called := _called(node)) and called not in _KNOWN:
            raise NotUnderstood(where="query", why=f"{called}() is none of the functions that DuckDB may call here")
    return Parsed(tuple(dict.fromkeys(_read(found["statements"][0]))), found["statements"][0])


def _read(tree: Mapping[str, Any]) -> Iterator[str]:
    """The relations that no enclosing WITH defines: outside of its WITH, a name could refer to DuckDB's catalog or to a
    file. A qualified name never refers to a WITH."""
    waiting: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while waiting:
        node, own = waiting.pop()
        if isinstance(node, list):
            waiting += [(each, own) for each in node]
        elif isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                path = node["qualified_name"]["path"]
                if len(path) > 1 or path[0].lower() not in own:
                    yield ".".join(path)
            if node.get("type") == "RECURSIVE_CTE_NODE":
                own |= {node["cte_name"].lower()}
            for one in _ctes(node):  # a CTE sees those before it
                waiting.append((one["value"], own))
                own |= {one["key"].lower()}
            waiting += [(value, own) for name, value in node.items() if name != "cte_map"]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _ctes(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = node.get("cte_map")
    return found["map"] if isinstance(found, dict) else []


_QUERY_NODES = frozenset(("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"))
"""The kinds of query nodes that only read. DuckDB also accepts COPY, INSERT, UPDATE and DELETE in a WITH clause; a kind
that a later version adds is refused."""


def _refused(node: Mapping[str, Any]) -> str | None:
    kind = str(node.get("type"))
    if kind.endswith("_NODE") and kind not in _QUERY_NODES:
        name = kind.removesuffix("_NODE").removesuffix("_QUERY")
        return f"a query is a SELECT over tables and views, and this holds {name}"
    if node.get("at_clause") is not None:
        return "AT (VERSION or TIMESTAMP): a query reads tables and views as they are now"
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()
        if name not in ALLOWED_IN_FROM:
            return f"{name}() in FROM: a query reads tables and views, and nothing else"
    if kind == "SHOW_REF":
        return "this is no SELECT; GET /v1/collections says which tables and views there are"
    called = _called(node)
    return f"{called}() is refused: {REFUSED[called]}" if called in REFUSED else None


def _called(node: Mapping[str, Any]) -> str:
    """The name of the function that the node calls; empty if the node is not a call."""
    return str(node.get("function_name", "")).lower()


def _makes_rows(tree: Mapping[str, Any]) -> set[int]:
    """The calls in FROM, which `ALLOWED_IN_FROM` lists separately."""
    return {id(node["function"]) for node in _nodes(tree) if node.get("type") == "TABLE_FUNCTION"}


def can_hold(schema: pa.Schema) -> bool:
    """Whether DuckDB has the types of all columns."""
    return not any(is_variant(kind) or kinds.is_union(kind) for kind in _kinds(schema.types))


def _kinds(types: Any) -> Iterator[Any]:
    for kind in types:
        yield kind
        yield from _kinds(kind.field(at).type for at in range(kind.num_fields))


def _over(why: str) -> LimitExceeded:
    return LimitExceeded(where="query", why=why)


def _refusal(error: Exception) -> NotUnderstood:
    return NotUnderstood(where="query", why=next(iter(str(error).strip().splitlines()), type(error).__name__))


def _collected(relation: Any, rows_max: int, bytes_max: int) -> tuple[pa.Table, bool]:
    types = [str(kind) for kind in relation.types]
    if odd := sorted(_ODD & {*types}):
        raise NotUnderstood(where="query", why=f"a column is {odd[0]}, which no table can have: cast it")
    reader = relation.to_arrow_reader(_BATCH)
    batches, rows, size = [], 0, 0
    for batch in reader:
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size > bytes_max:
            raise _over(f"its answer is larger than {bytes_max} bytes: ask for less, or with a limit")
        if rows > rows_max:
            break
    found = pa.Table.from_batches(batches, reader.schema).slice(0, rows_max)
    columns = [_as_declared(column, kind) for column, kind in zip(found.columns, types, strict=True)]
    return pa.Table.from_arrays(columns, names=found.schema.names), rows > rows_max


def _as_declared(column: Any, kind: str) -> Any:
    """The column, cast to a type that a table can have."""
    if kind in ("HUGEINT", "UBIGINT"):
        ends = pc.min_max(column)
        is_long = not column.length() or column.null_count == column.length()
        is_long = is_long or (ends["min"].as_py() >= _LONGS[0] and ends["max"].as_py() <= _LONGS[1])
        return column.cast(pa.int64() if is_long else pa.decimal128(38, 0))
    if column.type in _WHOLE:
        return column.cast(_WHOLE[column.type])
    if kinds.is_interval(column.type):
        return _spans(column)
    if kinds.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz and "UTC"), safe=False)
    return column.cast(pa.time64("ns")) if kinds.is_time(column.type) else column


def _spans(column: Any) -> Any:
    """Intervals as durations; as texts, if one of them has months."""
    values = column.to_pylist()
    if any(value is not None and value.months for value in values):
        texts = [None if each is None else _span_text(each) for each in values]
        return pa.chunked_array([pa.array(texts, pa.string())])
    day_ns = 86_400_000_000_000
    micros = [None if each is None else (each.days * day_ns + each.nanoseconds) // 1000 for each in values]
    return pa.chunked_array([pa.array(micros, pa.int64()).cast(pa.duration("us"))])


def _span_text(span: Any) -> str:
    return f"{span.months} months {span.days} days {span.nanoseconds / 1_000_000_000:g} seconds"
