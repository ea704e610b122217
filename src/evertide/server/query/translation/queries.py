"""`QueryTranslator`: reads SELECT, WITH, set operations, ORDER BY and LIMIT from DuckDB's tree, and writes new SQL.

1. GROUP BY and HAVING may name a column of the answer if no column of FROM has that name. In ORDER BY, a bare name is a
   column of the answer first; within an expression, both readings must be the same column.
2. Only the condition of a subquery with IN or EXISTS may name columns of the enclosing query.
3. The null order is Spark's, and always written explicitly.
4. FLOAT and DOUBLE cannot be keys of groups or sets: -0.0 and 0.0 are one key, and the engines show different ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pyarrow as pa

from evertide.server.query.translation.expressions import ExpressionTranslator, check_fields
from evertide.server.query.translation.relations import (
    FromTranslator,
    Names,
    NestedQuery,
    Relation,
    is_named,
    rename_columns,
)
from evertide.server.query.translation.terms import Term, duckdb_type, is_real, make_refusal, quote_name

_NOTHING = Relation("", {}, [])
_SELECT = (
    *("modifiers", "cte_map", "select_list", "from_table", "where_clause", "group_expressions", "group_sets"),
    *("aggregate_handling", "having"),
)
_DIRECTIONS = {"ORDER_DEFAULT": "ASC", "ASCENDING": "ASC", "DESCENDING": "DESC"}
_NULLS = {"ASC": "NULLS FIRST", "DESC": "NULLS LAST"}


@dataclass(frozen=True, slots=True)
class QueryTranslator:
    schemas: Mapping[str, pa.Schema]
    expressions: ExpressionTranslator
    shared: Mapping[str, NestedQuery] = field(default_factory=dict)
    numbers: Any = field(default_factory=count)

    def translate_query(self, node: Mapping[str, Any]) -> str:
        """The whole query, with Spark's names for its columns."""
        found = self.read(node, is_last=True)
        if any(each.name is None for each in found.columns):
            raise make_refusal("a column whose name Spark chooses")
        return found.text

    def read(self, node: Mapping[str, Any], outer: Names | None = None, *, is_last: bool = False) -> NestedQuery:
        queries, begin = self._translate_with(node.get("cte_map", {"map": []})["map"])
        match node["type"]:
            case "SELECT_NODE":
                found = queries.translate_select(node, outer, is_last=is_last)
            case "SET_OPERATION_NODE":
                found = queries.translate_set_operation(node, is_last=is_last)
            case _:
                raise make_refusal(node["type"])
        return replace(found, text=begin + found.text)

    def _make_alias(self) -> str:
        while (found := f"_w{next(self.numbers)}") in {name.lower() for name in self.schemas}:
            pass
        return found

    def _translate_with(self, entries: Sequence[Mapping[str, Any]]) -> tuple[QueryTranslator, str]:
        queries, texts = self, []
        for one in entries:
            check_fields(one, "key", "value")
            check_fields(one["value"], "aliases", "materialized", "query_node")
            if one["value"]["materialized"] != "CTE_MATERIALIZE_DEFAULT":
                raise make_refusal("MATERIALIZED")
            found, name = queries.read(one["value"]["query_node"]), self._make_alias()
            texts.append(f"{name} AS ({found.text})")
            columns = rename_columns(found.columns, one["value"]["aliases"])
            queries = replace(queries, shared={**queries.shared, one["key"].lower(): NestedQuery(name, columns)})
        return queries, f"WITH {', '.join(texts)} " if texts else ""

    def translate_select(self, node: Mapping[str, Any], outer: Names | None, *, is_last: bool) -> NestedQuery:
        check_fields(node, *_SELECT)
        if node["aggregate_handling"] != "STANDARD_HANDLING":
            raise make_refusal(node["aggregate_handling"])
        relation = self._translate_from(node["from_table"])
        names = Names(self.read, relation)
        columns = [column for each in node["select_list"] for column in self._translate_columns(each, names)]
        order = _Order(node["modifiers"], sorts_columns_only=node["having"] is not None)
        text = f"SELECT {'DISTINCT ' if order.is_distinct else ''}{_write_columns(columns, is_last=is_last)}"
        text += f" FROM {relation.text}" if relation.text else ""
        if order.is_distinct:
            _check_keys(columns, "DISTINCT")
        if node["where_clause"] is not None:
            where = replace(names, has_predicates=True, outer=None if node["modifiers"] else outer)
            text += f" WHERE {self.expressions.translate_condition(node['where_clause'], where).text}"
        text += self._translate_group_by(node, columns, replace(names, outputs=columns))
        return NestedQuery(text + self._translate_order(order, columns, names), columns)

    def _translate_from(self, node: Mapping[str, Any]) -> Relation:
        if node["type"] == "EMPTY":
            return _NOTHING
        return FromTranslator(self.schemas, self.shared, self.expressions, self.read, self._make_alias).translate(node)

    def _translate_columns(self, node: Mapping[str, Any], names: Names) -> list[Term]:
        if node["class"] != "STAR":
            found = self.expressions.translate(node, names)
            if found.kind == pa.null():
                raise make_refusal("a column of NULL")
            return [replace(found, name=node["alias"] or found.name)]
        check_fields(node, "relation_name")
        relation = node["relation_name"].lower()
        columns = names.relation.named.get(relation, ()) if relation else names.relation.columns
        if not columns:
            raise make_refusal("*")
        for column in columns:
            duckdb_type(column.kind)
        return [*columns]

    def _translate_group_by(self, node: Mapping[str, Any], columns: Sequence[Term], names: Names) -> str:
        expressions = node["group_expressions"]
        if node["group_sets"] not in ([], [[*range(len(expressions))]]):
            raise make_refusal("GROUPING SETS")
        keys = [self._translate_key(each, columns, names) for each in expressions]
        _check_keys(keys, "GROUP BY")
        text = f" GROUP BY {', '.join(key.text for key in keys)}" if keys else ""
        if node["having"] is None:
            return text
        if not keys:
            raise make_refusal("HAVING without GROUP BY")
        return f"{text} HAVING {self.expressions.translate_condition(node['having'], names).text}"

    def _translate_key(self, node: Mapping[str, Any], columns: Sequence[Term], names: Names) -> Term:
        """A key of GROUP BY: a position in the answer, a name of a column, or an expression."""
        if node["class"] == "CONSTANT":
            return columns[_read_position(self.expressions.constant(node, names), len(columns))]
        return self.expressions.translate(node, names)

    def _translate_order(self, order: _Order, columns: Sequence[Term], names: Names) -> str:
        """ORDER BY, LIMIT and OFFSET."""
        texts = []
        for each in order.by:
            check_fields(each, "null_order", "expression")
            direction = _DIRECTIONS[each["type"]]
            nulls = _NULLS[direction] if each["null_order"] == "ORDER_DEFAULT" else each["null_order"]
            if nulls not in _NULLS.values():
                raise make_refusal(nulls)
            texts.append(
                f"{self._translate_sort_key(each['expression'], columns, names, order).text} {direction} {nulls}"
            )
        text = f" ORDER BY {', '.join(texts)}" if texts else ""
        for word, node in (("LIMIT", order.limit), ("OFFSET", order.offset)):
            if node is not None:
                found = self.expressions.translate(node, names).value
                if isinstance(found, bool) or not isinstance(found, int) or found < 0:
                    raise make_refusal(f"{word} {found}")
                text += f" {word} {found}"
        return text

    def _translate_sort_key(
        self, node: Mapping[str, Any], columns: Sequence[Term], names: Names, order: _Order
    ) -> Term:
        if node["class"] == "CONSTANT":
            return columns[_read_position(self.expressions.constant(node, names), len(columns))]
        if node["class"] == "COLUMN_REF" and len(node["column_names"]) == 1:
            named = [each for each in columns if is_named(each, node["column_names"][0])]
            if len({each.text for each in named}) == 1:
                return named[0]
        if order.is_distinct or (order.sorts_columns_only and node["class"] != "COLUMN_REF"):
            raise make_refusal("ORDER BY an expression that is not a column of the answer")
        return self.expressions.translate(node, replace(names, outputs=columns))

    def translate_set_operation(self, node: Mapping[str, Any], *, is_last: bool) -> NestedQuery:
        check_fields(node, "modifiers", "cte_map", "setop_type", "setop_all", "children")
        kind, children = node["setop_type"], [self.read(child) for child in node["children"]]
        if kind not in ("UNION", "EXCEPT", "INTERSECT") or (kind != "UNION" and node["setop_all"]):
            raise make_refusal(kind)
        if any([a.kind for a in each.columns] != [b.kind for b in children[0].columns] for each in children):
            raise make_refusal(f"{kind} of columns of several types")
        if not node["setop_all"]:
            _check_keys(children[0].columns, kind)
        sign, text = f" {kind}{' ALL' if node['setop_all'] else ''} ", children[0].text
        for other in children[1:]:
            text = f"({text}){sign}({other.text})"
        alias, order = self._make_alias(), _Order(node["modifiers"])
        columns = NestedQuery("", children[0].columns).list_columns(alias)
        if order.is_distinct:
            raise make_refusal("DISTINCT")
        tail = self._translate_order(order, columns, Names(self.read, _NOTHING))
        return NestedQuery(f"SELECT {_write_columns(columns, is_last=is_last)} FROM ({text}) AS {alias}{tail}", columns)


class _Order:
    """The modifiers of a SELECT or a set operation."""

    def __init__(self, modifiers: Sequence[Mapping[str, Any]], *, sorts_columns_only: bool = False) -> None:
        self.is_distinct = False
        self.sorts_columns_only = sorts_columns_only
        """Whether Spark sorts only by columns here."""
        self.by: Sequence[Mapping[str, Any]] = ()
        self.limit: Mapping[str, Any] | None = None
        self.offset: Mapping[str, Any] | None = None
        for one in modifiers:
            match one["type"]:
                case "DISTINCT_MODIFIER":
                    check_fields(one)
                    self.is_distinct = True
                case "ORDER_MODIFIER":
                    check_fields(one, "orders")
                    self.by = one["orders"]
                case "LIMIT_MODIFIER" if one["limit_type"] == "ROW_COUNT":
                    check_fields(one, "limit", "offset", "limit_type")
                    self.limit, self.offset = one["limit"], one["offset"]
                case _:
                    raise make_refusal(one["type"])


def _write_columns(columns: Sequence[Term], *, is_last: bool) -> str:
    names = [quote_name(each.name or "") if is_last else f"c{at}" for at, each in enumerate(columns)]
    return ", ".join(f"{each.text} AS {name}" for each, name in zip(columns, names, strict=True))


def _check_keys(columns: Sequence[Term], what: str) -> None:
    if any(is_real(each.kind) for each in columns):
        raise make_refusal(f"{what} of FLOAT or DOUBLE")


def _read_position(term: Term, most: int) -> int:
    if isinstance(term.value, bool) or not isinstance(term.value, int) or not 0 < term.value <= most:
        raise make_refusal(f"the column position {term.value}")
    return term.value - 1
