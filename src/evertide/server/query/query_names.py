"""`check_columns`: refuses a misspelled column before a query starts an engine.

A name is refused only if nothing in the query can have it: no column or field of its tables, no alias anywhere, and no
word of the language. Queries whose tables make up names (functions in FROM, VALUES, PIVOT, lambdas) are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.server.query.duck import walk_tree
from evertide.suggestions import list_names

__all__ = ["check_columns"]

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


def check_columns(sql: str, tree: Mapping[str, Any], schemas: Mapping[str, pa.Schema]) -> None:
    """`tree` is DuckDB's tree of the query, `schemas` has the collections that it reads."""
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
