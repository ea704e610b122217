"""`Expressions`: turns a node of DuckDB's tree into a `Term` that DuckDB computes as Spark does.

The SQL is written from scratch: only names and literals come from the user's text, each quoted. A node with a field
that is not handled here is refused, including a field that a later version of DuckDB adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from evertide.server.query.agreeing.functions import (
    AGGREGATES,
    ARITHMETIC,
    CALENDAR,
    FUNCTIONS,
    ZONED,
    Call,
    case,
    casts_alike,
    coalesce,
    concat,
    like,
    negative,
)
from evertide.server.query.agreeing.terms import (
    LOCAL,
    MOMENT,
    Shape,
    Term,
    cast,
    common,
    dated,
    differs,
    in_utc,
    is_real,
    literal,
    number,
    paired,
)

__all__ = ["Expressions", "Scope", "only"]

_NEUTRAL = frozenset(("alias", "class", "query_location", "query_location_length", "qualified_name", "type"))
_EMPTY: tuple[Any, ...] = (None, "", [], False, {}, {"map": []}, {"type": "ORDER_MODIFIER", "orders": []})
_SIGNS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}
_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": MOMENT,
}
_TEXT_MAX = 100_000
"""Limit for the text of a term, since some functions repeat their arguments."""


class Scope(Protocol):
    """Resolves names and subqueries at the place of the expression."""

    def column(self, path: Sequence[str]) -> Term: ...

    def subquery(self, node: Mapping[str, Any], *, is_predicate: bool) -> tuple[str, Sequence[Term]]:
        """The subquery's text and columns. A predicate is IN or EXISTS."""
        ...


def only(node: Mapping[str, Any], *understood: str) -> None:
    """Raise `NotUnderstood` if the node has a field that is neither in `understood` nor neutral, and not empty."""
    for key, value in node.items():
        if key not in understood and key not in _NEUTRAL and value not in _EMPTY:
            raise differs(f"{key} of {node.get('type')}")


@dataclass(frozen=True, slots=True)
class Expressions:
    parameters: Sequence[Any]
    is_utc: bool = False
    """Whether the session's time zone is UTC; other zones are left to Spark."""

    def term(self, node: Mapping[str, Any], scope: Scope) -> Term:
        read = _BY_CLASS.get(str(node.get("class")))
        if read is None:
            raise differs(f"{node.get('class')} in an expression")
        found = read(self, node, scope)
        if len(found.text) > _TEXT_MAX:
            raise differs("an expression so long")
        return found

    def condition(self, node: Mapping[str, Any], scope: Scope) -> Term:
        found = self.term(node, scope)
        if found.kind != pa.bool_():
            raise differs(f"a condition of type {found.kind}")
        return found

    def operand(self, node: Mapping[str, Any], scope: Scope, most: Shape = Shape.joined) -> Term:
        """An operand of an operator; refused if the parsers could group it differently."""
        found = self.term(node, scope)
        if found.shape > most:
            raise differs("an operator beside another, whose order may be read in two ways")
        return found

    def column(self, node: Mapping[str, Any], scope: Scope) -> Term:
        only(node, "column_names")
        return scope.column(node["column_names"])

    def constant(self, node: Mapping[str, Any], _: Scope) -> Term:
        only(node, "literal")
        told = node["literal"]
        only(told, "kind", "text")
        match told["kind"]:
            case "INTEGER" | "NUMERIC":
                return number(told["text"])
            case "STRING":
                return literal(told.get("text", ""))
            case "BOOLEAN":
                return literal(told["text"].lower() == "true")
            case "NULL_LITERAL":
                return literal(None)
        raise differs(f"a literal of kind {told['kind']}")

    def parameter(self, node: Mapping[str, Any], _: Scope) -> Term:
        only(node, "identifier")
        at = node["identifier"]
        if not at.isdecimal() or not 0 < int(at) <= len(self.parameters):
            raise differs(f"the parameter {at}")
        return literal(self.parameters[int(at) - 1])

    def comparison(self, node: Mapping[str, Any], scope: Scope) -> Term:
        only(node, "left", "right")
        if node["type"] not in _SIGNS:
            raise differs(node["type"])
        return self._compared(self.operand(node["left"], scope), node["type"], self.operand(node["right"], scope))

    def _compared(self, left: Term, kind: str, right: Term) -> Term:
        a, b = paired(dated(left, right.kind, is_utc=self.is_utc), dated(right, left.kind, is_utc=self.is_utc))
        return Term(f"({a.text} {_SIGNS[kind]} {b.text})", pa.bool_(), Shape.predicate)

    def between(self, node: Mapping[str, Any], scope: Scope) -> Term:
        only(node, "input", "lower", "upper")
        value, lower, upper = (self.operand(node[key], scope) for key in ("input", "lower", "upper"))
        least = self._compared(value, "COMPARE_GREATERTHANOREQUALTO", lower)
        most = self._compared(value, "COMPARE_LESSTHANOREQUALTO", upper)
        return Term(f"({least.text} AND {most.text})", pa.bool_(), Shape.predicate)

    def conjunction(self, node: Mapping[str, Any], scope: Scope) -> Term:
        only(node, "children")
        sign = {"CONJUNCTION_AND": " AND ", "CONJUNCTION_OR": " OR "}[node["type"]]
        texts = [self.condition(child, scope).text for child in node["children"]]
        return Term(f"({sign.join(texts)})", pa.bool_(), Shape.logic)

    def operator(self, node: Mapping[str, Any], scope: Scope) -> Term:
        only(node, "children")
        children = node["children"]
        match node["type"]:
            case "OPERATOR_NOT":
                return Term(f"(NOT {self.condition(children[0], scope).text})", pa.bool_(), Shape.logic)
            case "OPERATOR_IS_NULL":
                return Term(f"({self.operand(children[0], scope).text} IS NULL)", pa.bool_(), Shape.predicate)
            case "OPERATOR_IS_NOT_NULL":
                return Term(f"({self.operand(children[0], scope).text} IS NOT NULL)", pa.bool_(), Shape.predicate)
            case "OPERATOR_COALESCE":
                return coalesce([self.term(child, scope) for child in children])
            case "COMPARE_IN":
                first, *others = common([self.operand(child, scope) for child in children])
                listed = ", ".join(other.text for other in others)
                return Term(f"({first.text} IN ({listed}))", pa.bool_(), Shape.predicate)
        raise differs(node["type"])

    def case(self, node: Mapping[str, Any], scope: Scope) -> Term:
        only(node, "case_checks", "else_expr")
        whens = [self.condition(check["when_expr"], scope) for check in node["case_checks"]]
        thens = [self.term(check["then_expr"], scope) for check in node["case_checks"]]
        return case(whens, thens, self.term(node["else_expr"], scope))

    def subquery(self, node: Mapping[str, Any], scope: Scope) -> Term:
        only(node, "subquery_type", "subquery", "child", "comparison_type")
        text, columns = scope.subquery(node["subquery"], is_predicate=node["subquery_type"] != "SCALAR")
        match node["subquery_type"], node["comparison_type"]:
            case "EXISTS", "INVALID":
                return Term(f"EXISTS ({text})", pa.bool_())
            case "SCALAR", "INVALID" if len(columns) == 1:
                return Term(f"({text})", columns[0].kind)
            case "ANY", "COMPARE_EQUAL" if len(columns) == 1:
                child = self.operand(node["child"], scope)
                if child.kind != columns[0].kind or is_real(child.kind):
                    raise differs(f"{child.kind} IN a subquery of {columns[0].kind}")
                return Term(f"({child.text} IN ({text}))", pa.bool_(), Shape.predicate)
        raise differs(f"a subquery of kind {node['subquery_type']}")

    def cast(self, node: Mapping[str, Any], scope: Scope) -> Term:
        only(node, "child", "type_expr")
        child, kind = self.term(node["child"], scope), _type(node["type_expr"])
        if isinstance(child.value, str) and kind in (pa.date32(), MOMENT):
            return self._read(child, kind)
        child = self._local(child) if kind == pa.date32() else child
        if kind == MOMENT or not casts_alike(child.kind, kind):
            raise differs(f"{child.kind} as {kind}")
        return replace(cast(child, kind), value=None, name=None, shape=Shape.atom)

    def _read(self, child: Term, kind: Any) -> Term:
        found = dated(child, kind, is_utc=self.is_utc)
        if found is child:
            raise differs(f"{child.text} as {kind}")
        return found

    def _local(self, term: Term) -> Term:
        """A timestamp in the session's time zone, if that is UTC."""
        return Term(in_utc(term.text), LOCAL) if term.kind == MOMENT and self.is_utc else term

    def function(self, node: Mapping[str, Any], scope: Scope) -> Term:
        only(node, "function_name", "arguments", "is_operator", "filter", "distinct")
        name, arguments = node["function_name"].lower(), [argument["expression"] for argument in node["arguments"]]
        for argument in node["arguments"]:
            only(argument, "expression")
        if name in AGGREGATES:
            return self._aggregate(node, name, arguments, scope)
        if node["filter"] is not None or node["distinct"]:
            raise differs(f"{name} with FILTER or DISTINCT")
        if node["is_operator"]:
            return self._sign(name, arguments, scope)
        if name not in FUNCTIONS:
            raise differs(f"{name}()")
        terms = [self.term(argument, scope) for argument in arguments]
        if name in ZONED and not self.is_utc:
            raise differs(f"{name}() in a zone that is not UTC")
        return FUNCTIONS[name]([self._local(term) for term in terms] if name in CALENDAR else terms)

    def _sign(self, name: str, arguments: list[Mapping[str, Any]], scope: Scope) -> Term:
        if name == "||":
            parts = [self.operand(argument, scope) for argument in arguments]
            if any(part.shape is Shape.sum for part in parts):
                raise differs("|| beside arithmetic")
            return replace(concat(parts), shape=Shape.joined)
        if name in ("~~", "!~~"):
            value, pattern = (self.operand(argument, scope) for argument in arguments)
            return like(value, pattern, "LIKE" if name == "~~" else "NOT LIKE")
        parts = [self.operand(argument, scope, Shape.sum) for argument in arguments]
        if name == "-" and len(parts) == 1:
            return negative(parts[0])
        if name not in ARITHMETIC or len(parts) != 2:
            raise differs(f"the operator {name}")
        return replace(ARITHMETIC[name](name, *parts), shape=Shape.sum)

    def _aggregate(self, node: Mapping[str, Any], name: str, arguments: list[Any], scope: Scope) -> Term:
        terms = [self.term(argument, scope) for argument in arguments]
        under = "" if node["filter"] is None else f" FILTER (WHERE {self.condition(node['filter'], scope).text})"
        found = AGGREGATES[name](Call(name, is_distinct=node["distinct"], under=under), terms)
        return found if node["filter"] is None else replace(found, name=None)


_BY_CLASS: dict[str, Callable[[Expressions, Mapping[str, Any], Scope], Term]] = {
    "BETWEEN": Expressions.between,
    "CASE": Expressions.case,
    "CAST": Expressions.cast,
    "COLUMN_REF": Expressions.column,
    "COMPARISON": Expressions.comparison,
    "CONJUNCTION": Expressions.conjunction,
    "CONSTANT": Expressions.constant,
    "FUNCTION": Expressions.function,
    "OPERATOR": Expressions.operator,
    "PARAMETER": Expressions.parameter,
    "SUBQUERY": Expressions.subquery,
}


def _type(node: Mapping[str, Any]) -> Any:
    only(node, "type_name", "children")
    name = node["type_name"].upper()
    if name == "DECIMAL" and (digits := [int(child["literal"]["text"]) for child in node["children"]]):
        return pa.decimal128(*digits, *([0] if len(digits) == 1 else []))
    if name not in _TYPES or node["children"]:
        raise differs(f"the type {name}")
    return _TYPES[name]
