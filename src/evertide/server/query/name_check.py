"""Refuses misspelled functions and columns of a query in the language of Spark, before Spark starts.

Both checks read DuckDB's tree of the query. They refuse only what Spark refuses too: where DuckDB and Spark may read a
name differently, the query passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.plan.query.functions import ALLOWED, ALLOWED_IN_FROM, CONSTRUCTS, REFUSED
from evertide.server.query.duck import Parsed, walk_tree
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
_FUNCTIONS = ALLOWED | REFUSED.keys() | ALLOWED_IN_FROM | CONSTRUCTS

Nodes = Sequence[Mapping[str, Any]]


def check_functions(parsed: Parsed) -> None:
    """Refuse a function that Spark's queries do not have.

    DuckDB also has functions for operators and for constructs of its syntax. So a call counts only if the text has the
    function's name, and then a parenthesis.
    """
    calls = [node for node in walk_tree(parsed.tree) if node.get("function_name")]
    for node in sorted(calls, key=itemgetter("query_location")):
        name, offset = str(node["function_name"]), node["query_location"]
        if name.lower() not in _FUNCTIONS and parsed.is_call(offset, name):
            raise InvalidInput(where=parsed.locate(offset), why=f"no function {name!r}{suggest(name, ALLOWED)}")


def check_columns(parsed: Parsed, schemas: Mapping[str, pa.Schema]) -> None:
    """Refuse a misspelled column; `schemas` has the collections that the query reads.

    A name is refused only if nothing in the query can have it: no column or field of its tables, no alias anywhere, and
    no word of the language. After the alias of a table, only its columns can stand, if nothing else has this alias.
    Queries whose tables make up names (functions in FROM, VALUES, PIVOT, lambdas) are not checked.
    """
    nodes = list(walk_tree(parsed.tree))
    if any(map(_makes_names, nodes)) or '"' in parsed.sql:  # Spark reads "..." as a text
        return
    known = {name.lower() for name in (*schemas, *_list_fields(schemas), *_list_aliases(nodes))}
    owners = _find_owners(nodes, schemas)
    references = [node for node in nodes if node.get("class") == "COLUMN_REF"]
    for node in sorted(references, key=itemgetter("query_location")):
        path = list(map(str, node["column_names"]))
        owner = owners.get(path[0].lower()) if len(path) > 1 else None
        if owner is not None:
            misspelled = _find_misspelled(path[1], {name.lower() for name in schemas[owner].names})
        else:
            misspelled = _find_misspelled(path[0], known | _WORDS)
            owner = next(iter(schemas)) if len(schemas) == 1 else None
        if misspelled:
            columns = {name for one in ([owner] if owner is not None else schemas) for name in schemas[one].names}
            place = f" in {owner!r}" if owner is not None else ""
            why = f"no column {misspelled!r}{place}{list_names(misspelled, sorted(columns), 'the columns are')}"
            raise InvalidInput(where=parsed.locate(node["query_location"]), why=why)


def _find_misspelled(name: str, known: Iterable[str]) -> str:
    """The name if it is not known; else, or if Spark may know it, empty."""
    is_known = name.lower() in known or name.lower().startswith("current_")
    return name if _CHECKED.fullmatch(name) and not is_known else ""


def _makes_names(node: Mapping[str, Any]) -> bool:
    is_relation = "sample" in node and "alias" in node
    return node.get("class") == "LAMBDA" or (is_relation and node.get("type") not in _RELATIONS)


def _find_owners(nodes: Nodes, schemas: Mapping[str, pa.Schema]) -> dict[str, str]:
    """The collections by alias, without aliases that something else may have as well."""
    declared = {name.lower(): name for name in schemas}
    tables = [node for node in nodes if node.get("type") == "BASE_TABLE"]
    others = [node for node in nodes if node.get("type") != "BASE_TABLE"]
    taken = {name.lower() for name in (*_list_fields(schemas), *_list_aliases(others))}
    found: dict[str, set[str]] = {}
    for node in tables:
        name = str(node["table_name"]).lower()
        alias = str(node.get("alias") or name).lower()
        found.setdefault(alias, set()).add("" if node.get("column_name_alias") else name)
    return {
        alias: declared[name]
        for alias, names in found.items()
        for name in names
        if len(names) == 1 and alias not in taken and name in declared
    }


def _list_fields(schemas: Mapping[str, pa.Schema]) -> Iterator[str]:
    waiting: list[pa.Field] = [field for schema in schemas.values() for field in schema]
    while waiting:
        field = waiting.pop()
        yield field.name
        waiting += [field.type.field(at) for at in range(field.type.num_fields)]


def _list_aliases(nodes: Nodes) -> Iterator[str]:
    for node in nodes:
        for value in (node.get("alias"), node.get("key"), node.get("cte_name"), node.get("table_name")):
            if isinstance(value, str):
                yield value
        for values in (node.get("column_name_alias"), node.get("aliases")):
            yield from (value for value in values or () if isinstance(value, str))
