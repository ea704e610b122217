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
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from evertide.errors import InvalidInput, LimitExceeded
from evertide.json_values import is_variant
from evertide.rows.utf8 import is_valid_utf8
from evertide.server.query.bounds import make_memory_error
from evertide.server.query.duck_functions import ALLOWED, ALLOWED_IN_FROM, REFUSED
from evertide.settings import Settings
from evertide.source_text import locate_in_query

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
_UNSUPPORTED = {"UHUGEINT", "BIGNUM", "VARINT", "BIT"}
"""Types that no table can have, and that no type of a table can represent."""
_NO_MEMORY = "Out of Memory Error"
_BATCH = 8192
_CALL_MAX = 200
"""Bytes of a function's name, of space, and of a parenthesis."""
_SIGNED_TYPES = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_LONGS = (-(1 << 63), (1 << 63) - 1)


class DuckDeclined(InvalidInput):
    """DuckDB cannot answer the query; another engine may."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A query as DuckDB parses it."""

    sql: str
    names: Mapping[str, int]
    """The names that the query reads, except those of its own WITH clauses, and where each stands, in bytes."""
    tree: Mapping[str, Any]
    """DuckDB's tree of the statement."""

    @classmethod
    def read(cls, sql: str, tree: Mapping[str, Any]) -> Parsed:
        names: dict[str, int] = {}
        for name, offset in sorted(_list_relations(tree), key=itemgetter(1)):
            names.setdefault(name, offset)
        return cls(sql, names, tree)

    def locate(self, offset: int) -> str:
        """The position of a byte of the query; an offset beyond the text is DuckDB's word for an unknown one."""
        text = self.sql.encode()
        found = None if offset >= len(text) else len(text[:offset].decode(errors="ignore"))
        return locate_in_query(self.sql, found)

    def is_call(self, offset: int, name: str) -> bool:
        """Whether a call of the function stands at a byte of the query."""
        text = self.sql.encode()[offset : offset + _CALL_MAX].decode(errors="ignore")
        return re.match(rf"{re.escape(name)}\s*\(", text, re.IGNORECASE) is not None


class Duck:
    """Answers one query at a time; another thread may interrupt it."""

    def __init__(self, settings: Settings, zone: str = "UTC") -> None:
        """`zone` is the time zone of the session."""
        self.settings = settings
        self.zone = zone
        self._connection: Any = None
        """The connection of the current query."""

    @cached_property
    def _database(self) -> Any:
        settings = self.settings
        bounds = {"memory_limit": f"{settings.query_memory_bytes}B", "threads": str(settings.query_threads)}
        database = duckdb.connect(":memory:", config={**_CONFIG, **bounds})
        try:
            database.execute("SET GLOBAL TimeZone = ?", [self.zone])
        except duckdb.Error as error:  # Spark may know the zone
            raise _decline(error) from error
        database.execute(_LOCK)
        return database

    def interrupt(self) -> None:
        """Cancel the current query, at the next point where DuckDB checks for it."""
        connection = self._connection
        if connection is not None:
            with suppress(duckdb.Error):  # the query has just ended
                connection.interrupt()

    def parse(self, sql: str, check: Callable[[Parsed], None] = lambda _: None) -> Parsed:
        """Raise `InvalidInput` if `sql` is not one SELECT, or reads anything but collections.

        `check` checks names before DuckDB declines the query because of a function.
        """
        with self._database.cursor() as connection:
            try:
                [(text,)] = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
                found = json.loads(text)
                if found.get("error_type") == _NO_SELECT:
                    _check_kind(map(_find_kind, connection.extract_statements(sql)))
                return _read_tree(sql, found, check)
            except duckdb.Error as error:
                raise _decline(error) from error
            except RecursionError as error:
                raise DuckDeclined(where="query", why="the expressions are nested too deeply") from error

    def answer(
        self, sql: str, tables: Mapping[str, pa.Table], parameters: list[Any], rows_max: int
    ) -> tuple[pa.Table, bool]:
        """At most `rows_max` rows, and whether there are more. `sql` must have passed `parse`."""
        with self._database.cursor() as connection:
            self._connection = connection
            try:
                for name, rows in tables.items():
                    _check_texts(name, rows)
                    connection.register(name, rows)
                relation = connection.sql(sql, params=parameters)
                return _collect(relation, rows_max, self.settings.query_bytes_max)
            except (duckdb.OutOfMemoryException, pa.ArrowMemoryError, MemoryError) as error:
                raise make_memory_error(self.settings.query_memory_bytes) from error
            except OSError as error:  # once rows stream through Arrow, only the text of an error is kept
                if str(error).startswith(_NO_MEMORY):
                    raise make_memory_error(self.settings.query_memory_bytes) from error
                raise _decline(error) from error
            except (duckdb.Error, pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                raise _decline(error) from error
            finally:
                self._connection = None


def _check_texts(name: str, rows: pa.Table) -> None:
    """A function that meets invalid UTF-8 makes DuckDB refuse all later queries."""
    if not is_valid_utf8(rows):
        why = f"{name!r} has a text that is not valid UTF-8, which DuckDB cannot read; use the engine 'spark'"
        raise DuckDeclined(where="query", why=why)


def _find_kind(statement: Any) -> str:
    try:
        return str(statement.type.name)
    except ValueError:  # UPDATE EXTENSIONS: the Python module does not know all kinds
        return "a statement of another kind"


def _check_kind(kinds: Iterable[str]) -> None:
    """Refuse a DELETE for every engine. DuckDB may parse a SELECT of Spark's as several statements: that passes."""
    if other := {*kinds} - {"SELECT", "MULTI"}:
        why = f"expected a SELECT over tables and views, not {other.pop()}"
        raise InvalidInput(where="query", why=why)


def _read_tree(sql: str, found: Mapping[str, Any], check: Callable[[Parsed], None]) -> Parsed:
    if found["error"]:
        raise DuckDeclined(where="query", why=str(found["error_message"]))
    if len(found["statements"]) != 1:
        raise InvalidInput(where="query", why=f"expected one SELECT, not {len(found['statements'])} statements")
    declined = ""
    parsed = Parsed.read(sql, found["statements"][0])
    in_from = _find_calls_in_from(parsed.tree)
    for node in walk_tree(parsed.tree):
        if (refused := _find_refusal(node)) is not None:
            raise InvalidInput(where=parsed.locate(node.get("query_location", len(sql.encode()))), why=refused)
        if id(node) not in in_from and (called := _find_function(node)) and called not in _KNOWN:
            declined = called
    check(parsed)
    if declined:
        raise DuckDeclined(where="query", why=f"queries may not call DuckDB's function {declined}()")
    return parsed


def _list_relations(tree: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The relations that no enclosing WITH defines, and where they stand. Outside of its WITH, a name could refer to
    DuckDB's catalog or to a file. A qualified name never refers to a WITH."""
    waiting: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while waiting:
        node, own = waiting.pop()
        if isinstance(node, list):
            waiting += [(each, own) for each in node]
        elif isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                path = node["qualified_name"]["path"]
                if len(path) > 1 or path[0].lower() not in own:
                    yield ".".join(path), node["query_location"]
            if node.get("type") == "RECURSIVE_CTE_NODE":
                own |= {node["cte_name"].lower()}
            for one in _ctes(node):  # a CTE sees those before it
                waiting.append((one["value"], own))
                own |= {one["key"].lower()}
            waiting += [(value, own) for name, value in node.items() if name != "cte_map"]


def walk_tree(tree: Any) -> Iterator[dict[str, Any]]:
    """The nodes of a parsed query, in no particular order."""
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


def _find_refusal(node: Mapping[str, Any]) -> str | None:
    kind = str(node.get("type"))
    if kind.endswith("_NODE") and kind not in _QUERY_NODES:
        name = kind.removesuffix("_NODE").removesuffix("_QUERY")
        return f"expected a SELECT over tables and views, not {name}"
    if node.get("at_clause") is not None:
        return "AT (VERSION or TIMESTAMP) is not supported; send `as_of` to read an earlier time"
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()
        if name not in ALLOWED_IN_FROM:
            return f"{name}() may not be in FROM: a query reads only tables and views"
    if kind == "SHOW_REF":
        return "expected a SELECT; GET /v1/collections lists the tables and views"
    called = _find_function(node)
    return f"{called}() may not be called: {REFUSED[called]}" if called in REFUSED else None


def _find_function(node: Mapping[str, Any]) -> str:
    """The name of the function that the node calls; empty if the node is not a call."""
    return str(node.get("function_name", "")).lower()


def _find_calls_in_from(tree: Mapping[str, Any]) -> set[int]:
    """The calls in FROM, which `ALLOWED_IN_FROM` lists separately."""
    return {id(node["function"]) for node in walk_tree(tree) if node.get("type") == "TABLE_FUNCTION"}


def can_hold(schema: pa.Schema) -> bool:
    """Whether DuckDB has the types of all columns."""
    return not any(is_variant(kind) or kinds.is_union(kind) for kind in _walk_types(schema.types))


def _walk_types(types: Any) -> Iterator[Any]:
    for kind in types:
        yield kind
        yield from _walk_types(kind.field(at).type for at in range(kind.num_fields))


def make_size_error(bytes_max: int) -> LimitExceeded:
    why = f"the answer is larger than {bytes_max} bytes (query_bytes_max); use LIMIT"
    return LimitExceeded(where="query", why=why)


def _decline(error: Exception) -> DuckDeclined:
    return DuckDeclined(where="query", why=next(iter(str(error).strip().splitlines()), type(error).__name__))


def _collect(relation: Any, rows_max: int, bytes_max: int) -> tuple[pa.Table, bool]:
    types = [str(kind) for kind in relation.types]
    if unsupported := sorted(_UNSUPPORTED & {*types}):
        raise DuckDeclined(where="query", why=f"tables cannot have the type {unsupported[0]}; cast the column")
    reader = relation.to_arrow_reader(_BATCH)
    batches, rows, size = [], 0, 0
    for batch in reader:
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size > bytes_max:
            raise make_size_error(bytes_max)
        if rows > rows_max:
            break
    found = pa.Table.from_batches(batches, reader.schema).slice(0, rows_max)
    columns = [_cast_to_table_type(column, kind) for column, kind in zip(found.columns, types, strict=True)]
    return pa.Table.from_arrays(columns, names=found.schema.names), rows > rows_max


def _cast_to_table_type(column: Any, kind: str) -> Any:
    """The column, cast to a type that a table can have."""
    if kind in ("HUGEINT", "UBIGINT"):
        ends = pc.min_max(column)
        is_long = not column.length() or column.null_count == column.length()
        is_long = is_long or (ends["min"].as_py() >= _LONGS[0] and ends["max"].as_py() <= _LONGS[1])
        return column.cast(pa.int64() if is_long else pa.decimal128(38, 0))
    if kinds.is_dictionary(column.type):  # an ENUM
        return column.cast(column.type.value_type)
    if column.type in _SIGNED_TYPES:
        return column.cast(_SIGNED_TYPES[column.type])
    if kinds.is_interval(column.type):
        return _convert_intervals(column)
    if kinds.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz and "UTC"), safe=False)
    return column.cast(pa.time64("ns")) if kinds.is_time(column.type) else column


def _convert_intervals(column: Any) -> Any:
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
