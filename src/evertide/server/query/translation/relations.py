"""`FromTranslator` and `Names`: FROM, and names resolved by Spark's rules, so that DuckDB resolves nothing itself.

Each table, subquery and name of WITH gets an alias of its own (`_w0`, `_w1`, ...), which qualifies each of its columns.
A query with an ambiguous name is left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from evertide.server.query.translation.expressions import ExpressionTranslator, check_fields
from evertide.server.query.translation.terms import Term, duckdb_type, make_refusal, quote_name

_JOINS = {"INNER": "JOIN", "LEFT": "LEFT JOIN", "RIGHT": "RIGHT JOIN", "OUTER": "FULL JOIN", "FULL": "FULL JOIN"}
_JOIN_FACTS = ("nearest_count", "nearest_order_type", "is_implicit")


@dataclass(frozen=True, slots=True)
class Relation:
    """SQL text; the columns by the name that qualifies them; and the columns that need no qualifier."""

    text: str
    named: Mapping[str, Sequence[Term]]
    columns: Sequence[Term]


@dataclass(frozen=True, slots=True)
class NestedQuery:
    """A query nested in another; its columns are `c0`, `c1`, ..."""

    text: str
    columns: Sequence[Term]

    def list_columns(self, alias: str) -> list[Term]:
        return [Term(f"{alias}.c{at}", each.kind, name=each.name) for at, each in enumerate(self.columns)]


class ReadQuery(Protocol):
    """Reads a nested query; its conditions may also use the names in `outer`."""

    def __call__(self, node: Mapping[str, Any], outer: Names | None = None) -> NestedQuery: ...


@dataclass(frozen=True, slots=True)
class Names:
    """The scope of names at one place in a SELECT."""

    read: ReadQuery
    relation: Relation
    outputs: Sequence[Term] = ()
    """Columns of the answer that GROUP BY, HAVING and ORDER BY may name."""
    outer: Names | None = None
    """Names of the enclosing query."""
    has_predicates: bool = False
    """Whether IN and EXISTS with a subquery are allowed; Spark does not accept them everywhere."""

    def find_column(self, path: Sequence[str]) -> Term:
        named = [each for each in self.outputs if len(path) == 1 and is_named(each, path[0])]
        found = [*self._find_own(path), *named]
        if not found and self.outer is not None:
            return self.outer.find_column(path)
        if len({each.text for each in found}) != 1:
            raise make_refusal(f"the name {'.'.join(path)}, which is {'more than one thing' if found else 'nothing'}")
        duckdb_type(found[0].kind)
        return replace(found[0], name=path[-1])

    def _find_own(self, path: Sequence[str]) -> list[Term]:
        if len(path) > 2:
            return []
        columns = self.relation.columns if len(path) == 1 else self.relation.named.get(path[0].lower(), ())
        return [each for each in columns if is_named(each, path[-1])]

    def translate_subquery(self, node: Mapping[str, Any], *, is_predicate: bool) -> tuple[str, Sequence[Term]]:
        if is_predicate and not self.has_predicates:
            raise make_refusal("IN or EXISTS with a subquery outside of WHERE")
        check_fields(node, "node")
        found = self.read(node["node"], self if is_predicate else None)
        return found.text, found.columns


def is_named(term: Term, name: str) -> bool:
    return term.name is not None and term.name.lower() == name.lower()


def rename_columns(columns: Sequence[Term], names: Sequence[str]) -> list[Term]:
    if not names:
        return [*columns]
    return [replace(column, name=name) for column, name in zip(columns, names, strict=True)]


@dataclass(frozen=True, slots=True)
class FromTranslator:
    schemas: Mapping[str, pa.Schema]
    shared: Mapping[str, NestedQuery]
    """The queries of WITH by name; the text of each is its alias."""
    expressions: ExpressionTranslator
    read: ReadQuery
    make_alias: Callable[[], str]
    """Returns an unused alias."""

    def translate(self, node: Mapping[str, Any]) -> Relation:
        match node["type"]:
            case "BASE_TABLE":
                check_fields(node, "table_name", "column_name_alias")
                return self._translate_table(node)
            case "SUBQUERY":
                check_fields(node, "subquery", "column_name_alias")
                check_fields(node["subquery"], "node")
                found, alias = self.read(node["subquery"]["node"]), self.make_alias()
                columns = rename_columns(found.list_columns(alias), node["column_name_alias"])
                return Relation(f"({found.text}) AS {alias}", {node["alias"].lower(): columns}, columns)
            case "JOIN":
                check_fields(node, "left", "right", "condition", "join_type", "ref_type", "using_columns", *_JOIN_FACTS)
                return self._translate_join(node, self.translate(node["left"]), self.translate(node["right"]))
        raise make_refusal(f"{node['type']} in FROM")

    def _translate_table(self, node: Mapping[str, Any]) -> Relation:
        name, alias = node["table_name"], self.make_alias()
        if (shared := self.shared.get(name.lower())) is not None:
            text, columns = shared.text, shared.list_columns(alias)
        else:
            declared = next(each for each in (*self.schemas, None) if each is None or each.lower() == name.lower())
            if declared is None:
                raise make_refusal(f"the table {name}")
            text, schema = quote_name(declared), self.schemas[declared]
            columns = [Term(f"{alias}.{quote_name(each.name)}", each.type, name=each.name) for each in schema]
        columns = rename_columns(columns, node["column_name_alias"])
        return Relation(f"{text} AS {alias}", {(node["alias"] or name).lower(): columns}, columns)

    def _translate_join(self, node: Mapping[str, Any], left: Relation, right: Relation) -> Relation:
        named = {**left.named, **right.named}
        if len(named) != len(left.named) + len(right.named):
            raise make_refusal("two tables of one name")
        columns, inner = [*left.columns, *right.columns], f"({right.text})" if len(right.named) > 1 else right.text
        if node["ref_type"] == "CROSS" and node["join_type"] == "INNER":
            return Relation(f"{left.text} CROSS JOIN {inner}", named, columns)
        if node["ref_type"] != "REGULAR" or node["join_type"] not in _JOINS:
            raise make_refusal(f"{node['ref_type']} {node['join_type']} JOIN")
        text = f"{left.text} {_JOINS[node['join_type']]} {inner} ON "
        if node["using_columns"]:
            return self._translate_using(node, left, right, Relation(text, named, columns))
        condition = self.expressions.translate_condition(
            node["condition"], Names(self.read, Relation("", named, columns))
        )
        return Relation(text + condition.text, named, columns)

    def _translate_using(self, node: Mapping[str, Any], left: Relation, right: Relation, both: Relation) -> Relation:
        """The shared columns come first, once each."""
        if node["join_type"] not in ("INNER", "LEFT"):
            raise make_refusal("USING in a RIGHT or FULL JOIN")
        using = node["using_columns"]
        pairs = [
            (Names(self.read, left).find_column([each]), Names(self.read, right).find_column([each])) for each in using
        ]
        if any(a.kind != b.kind for a, b in pairs):
            raise make_refusal("USING with columns of two types")
        shared = {each.text for pair in pairs for each in pair}
        firsts = [each for a, _ in pairs for each in left.columns if each.text == a.text]
        columns = [*firsts, *(each for each in both.columns if each.text not in shared)]
        condition = " AND ".join(f"({a.text} = {b.text})" for a, b in pairs)
        return Relation(both.text + condition, both.named, columns)
