"""`ExpressionTranslator`: turns a node of DuckDB's tree into a `Term` that DuckDB computes as Spark does.

The SQL is written from scratch: only names and literals come from the user's text, each quoted. A node with a field
that is not handled here is refused, including a field that a later version of DuckDB adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from evertide.server.query.translation.functions import (
    AGGREGATES,
    ARITHMETIC,
    CALENDAR,
    FUNCTIONS,
    ZONED,
    AggregateCall,
    case,
    coalesce,
    concat,
    has_same_cast,
    like,
    negate,
)
from evertide.server.query.translation.terms import (
    LOCAL,
    MOMENT,
    Precedence,
    Term,
    cast,
    cast_pair,
    cast_to_common_type,
    convert_utc,
    is_real,
    make_literal,
    make_refusal,
    parse_number,
    read_time,
)

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

    def find_column(self, path: Sequence[str]) -> Term: ...

    def translate_subquery(self, node: Mapping[str, Any], *, is_predicate: bool) -> tuple[str, Sequence[Term]]:
        """The subquery's text and columns. A predicate is IN or EXISTS."""
        ...


def check_fields(node: Mapping[str, Any], *understood: str) -> None:
    """Raise `DuckDeclined` if the node has a field that is neither in `understood` nor neutral, and not empty."""
    for key, value in node.items():
        if key not in understood and key not in _NEUTRAL and value not in _EMPTY:
            raise make_refusal(f"{key} of {node.get('type')}")


@dataclass(frozen=True, slots=True)
class ExpressionTranslator:
    parameters: Sequence[Any]
    is_utc: bool = False
    """Whether the session's time zone is UTC; other zones are left to Spark."""

    def translate(self, node: Mapping[str, Any], scope: Scope) -> Term:
        read = _BY_CLASS.get(str(node.get("class")))
        if read is None:
            raise make_refusal(f"{node.get('class')} in an expression")
        found = read(self, node, scope)
        if len(found.text) > _TEXT_MAX:
            raise make_refusal(f"an expression of more than {_TEXT_MAX} characters")
        return found

    def translate_condition(self, node: Mapping[str, Any], scope: Scope) -> Term:
        found = self.translate(node, scope)
        if found.kind != pa.bool_():
            raise make_refusal(f"a condition of type {found.kind}")
        return found

    def translate_operand(self, node: Mapping[str, Any], scope: Scope, most: Precedence = Precedence.joined) -> Term:
        """An operand of an operator; refused if the parsers could group it differently."""
        found = self.translate(node, scope)
        if found.precedence > most:
            raise make_refusal("two operators without parentheses between them")
        return found

    def find_column(self, node: Mapping[str, Any], scope: Scope) -> Term:
        check_fields(node, "column_names")
        return scope.find_column(node["column_names"])

    def constant(self, node: Mapping[str, Any], _: Scope) -> Term:
        check_fields(node, "literal")
        constant = node["literal"]
        check_fields(constant, "kind", "text")
        match constant["kind"]:
            case "INTEGER" | "NUMERIC":
                return parse_number(constant["text"])
            case "STRING":
                return make_literal(constant.get("text", ""))
            case "BOOLEAN":
                return make_literal(constant["text"].lower() == "true")
            case "NULL_LITERAL":
                return make_literal(None)
        raise make_refusal(f"a literal of kind {constant['kind']}")

    def parameter(self, node: Mapping[str, Any], _: Scope) -> Term:
        check_fields(node, "identifier")
        at = node["identifier"]
        if not at.isdecimal() or not 0 < int(at) <= len(self.parameters):
            raise make_refusal(f"the parameter {at}")
        return make_literal(self.parameters[int(at) - 1])

    def comparison(self, node: Mapping[str, Any], scope: Scope) -> Term:
        check_fields(node, "left", "right")
        if node["type"] not in _SIGNS:
            raise make_refusal(node["type"])
        return self._compare(
            self.translate_operand(node["left"], scope), node["type"], self.translate_operand(node["right"], scope)
        )

    def _compare(self, left: Term, kind: str, right: Term) -> Term:
        a, b = cast_pair(
            read_time(left, right.kind, is_utc=self.is_utc), read_time(right, left.kind, is_utc=self.is_utc)
        )
        return Term(f"({a.text} {_SIGNS[kind]} {b.text})", pa.bool_(), Precedence.predicate)

    def between(self, node: Mapping[str, Any], scope: Scope) -> Term:
        check_fields(node, "input", "lower", "upper")
        value, lower, upper = (self.translate_operand(node[key], scope) for key in ("input", "lower", "upper"))
        least = self._compare(value, "COMPARE_GREATERTHANOREQUALTO", lower)
        most = self._compare(value, "COMPARE_LESSTHANOREQUALTO", upper)
        return Term(f"({least.text} AND {most.text})", pa.bool_(), Precedence.predicate)

    def conjunction(self, node: Mapping[str, Any], scope: Scope) -> Term:
        check_fields(node, "children")
        sign = {"CONJUNCTION_AND": " AND ", "CONJUNCTION_OR": " OR "}[node["type"]]
        texts = [self.translate_condition(child, scope).text for child in node["children"]]
        return Term(f"({sign.join(texts)})", pa.bool_(), Precedence.logic)

    def operator(self, node: Mapping[str, Any], scope: Scope) -> Term:
        check_fields(node, "children")
        children = node["children"]
        match node["type"]:
            case "OPERATOR_NOT":
                return Term(f"(NOT {self.translate_condition(children[0], scope).text})", pa.bool_(), Precedence.logic)
            case "OPERATOR_IS_NULL":
                return Term(
                    f"({self.translate_operand(children[0], scope).text} IS NULL)", pa.bool_(), Precedence.predicate
                )
            case "OPERATOR_IS_NOT_NULL":
                return Term(
                    f"({self.translate_operand(children[0], scope).text} IS NOT NULL)", pa.bool_(), Precedence.predicate
                )
            case "OPERATOR_COALESCE":
                return coalesce([self.translate(child, scope) for child in children])
            case "COMPARE_IN":
                first, *others = cast_to_common_type([self.translate_operand(child, scope) for child in children])
                listed = ", ".join(other.text for other in others)
                return Term(f"({first.text} IN ({listed}))", pa.bool_(), Precedence.predicate)
        raise make_refusal(node["type"])

    def case(self, node: Mapping[str, Any], scope: Scope) -> Term:
        check_fields(node, "case_checks", "else_expr")
        whens = [self.translate_condition(check["when_expr"], scope) for check in node["case_checks"]]
        thens = [self.translate(check["then_expr"], scope) for check in node["case_checks"]]
        return case(whens, thens, self.translate(node["else_expr"], scope))

    def translate_subquery(self, node: Mapping[str, Any], scope: Scope) -> Term:
        check_fields(node, "subquery_type", "subquery", "child", "comparison_type")
        text, columns = scope.translate_subquery(node["subquery"], is_predicate=node["subquery_type"] != "SCALAR")
        match node["subquery_type"], node["comparison_type"]:
            case "EXISTS", "INVALID":
                return Term(f"EXISTS ({text})", pa.bool_())
            case "SCALAR", "INVALID" if len(columns) == 1:
                return Term(f"({text})", columns[0].kind)
            case "ANY", "COMPARE_EQUAL" if len(columns) == 1:
                child = self.translate_operand(node["child"], scope)
                if child.kind != columns[0].kind or is_real(child.kind):
                    raise make_refusal(f"{child.kind} IN a subquery of {columns[0].kind}")
                return Term(f"({child.text} IN ({text}))", pa.bool_(), Precedence.predicate)
        raise make_refusal(f"a subquery of kind {node['subquery_type']}")

    def cast(self, node: Mapping[str, Any], scope: Scope) -> Term:
        check_fields(node, "child", "type_expr")
        child, kind = self.translate(node["child"], scope), _read_type(node["type_expr"])
        if isinstance(child.value, str) and kind in (pa.date32(), MOMENT):
            return self._read_time(child, kind)
        child = self._to_local(child) if kind == pa.date32() else child
        if kind == MOMENT or not has_same_cast(child.kind, kind):
            raise make_refusal(f"{child.kind} as {kind}")
        return replace(cast(child, kind), value=None, name=None, precedence=Precedence.atom)

    def _read_time(self, child: Term, kind: Any) -> Term:
        found = read_time(child, kind, is_utc=self.is_utc)
        if found is child:
            raise make_refusal(f"{child.text} as {kind}")
        return found

    def _to_local(self, term: Term) -> Term:
        """A timestamp in the session's time zone, if that is UTC."""
        return Term(convert_utc(term.text), LOCAL) if term.kind == MOMENT and self.is_utc else term

    def function(self, node: Mapping[str, Any], scope: Scope) -> Term:
        check_fields(node, "function_name", "arguments", "is_operator", "filter", "distinct")
        name, arguments = node["function_name"].lower(), [argument["expression"] for argument in node["arguments"]]
        for argument in node["arguments"]:
            check_fields(argument, "expression")
        if name in AGGREGATES:
            return self._translate_aggregate(node, name, arguments, scope)
        if node["filter"] is not None or node["distinct"]:
            raise make_refusal(f"{name} with FILTER or DISTINCT")
        if node["is_operator"]:
            return self._translate_operator(name, arguments, scope)
        if name not in FUNCTIONS:
            raise make_refusal(f"{name}()")
        terms = [self.translate(argument, scope) for argument in arguments]
        if name in ZONED and not self.is_utc:
            raise make_refusal(f"{name}() in a zone that is not UTC")
        return FUNCTIONS[name]([self._to_local(term) for term in terms] if name in CALENDAR else terms)

    def _translate_operator(self, name: str, arguments: list[Mapping[str, Any]], scope: Scope) -> Term:
        if name == "||":
            parts = [self.translate_operand(argument, scope) for argument in arguments]
            if any(part.precedence is Precedence.sum for part in parts):
                raise make_refusal("|| beside arithmetic")
            return replace(concat(parts), precedence=Precedence.joined)
        if name in ("~~", "!~~"):
            value, pattern = (self.translate_operand(argument, scope) for argument in arguments)
            return like(value, pattern, "LIKE" if name == "~~" else "NOT LIKE")
        parts = [self.translate_operand(argument, scope, Precedence.sum) for argument in arguments]
        if name == "-" and len(parts) == 1:
            return negate(parts[0])
        if name not in ARITHMETIC or len(parts) != 2:
            raise make_refusal(f"the operator {name}")
        return replace(ARITHMETIC[name](name, *parts), precedence=Precedence.sum)

    def _translate_aggregate(self, node: Mapping[str, Any], name: str, arguments: list[Any], scope: Scope) -> Term:
        terms = [self.translate(argument, scope) for argument in arguments]
        under = (
            "" if node["filter"] is None else f" FILTER (WHERE {self.translate_condition(node['filter'], scope).text})"
        )
        found = AGGREGATES[name](AggregateCall(name, is_distinct=node["distinct"], under=under), terms)
        return found if node["filter"] is None else replace(found, name=None)


_BY_CLASS: dict[str, Callable[[ExpressionTranslator, Mapping[str, Any], Scope], Term]] = {
    "BETWEEN": ExpressionTranslator.between,
    "CASE": ExpressionTranslator.case,
    "CAST": ExpressionTranslator.cast,
    "COLUMN_REF": ExpressionTranslator.find_column,
    "COMPARISON": ExpressionTranslator.comparison,
    "CONJUNCTION": ExpressionTranslator.conjunction,
    "CONSTANT": ExpressionTranslator.constant,
    "FUNCTION": ExpressionTranslator.function,
    "OPERATOR": ExpressionTranslator.operator,
    "PARAMETER": ExpressionTranslator.parameter,
    "SUBQUERY": ExpressionTranslator.translate_subquery,
}


def _read_type(node: Mapping[str, Any]) -> Any:
    check_fields(node, "type_name", "children")
    name = node["type_name"].upper()
    if name == "DECIMAL" and (digits := [int(child["literal"]["text"]) for child in node["children"]]):
        return pa.decimal128(*digits, *([0] if len(digits) == 1 else []))
    if name not in _TYPES or node["children"]:
        raise make_refusal(f"the type {name}")
    return _TYPES[name]
