"""Resolve a syntax tree against a table's columns into a typed expression: choose the operation of each node.

1. Operands are converted as `coercion` says.
2. As in PostgreSQL, IN with several constants first finds one type for all of them; columns are compared one by one.
3. Every node is resolved exactly once; later checks use the resulting expression.
"""

from __future__ import annotations

from collections.abc import Mapping

from evertide.pgexpr.coercion import (
    apply_operation,
    as_type,
    find_number_type,
    find_shared_type,
    order_sides,
    refuse_operation,
    resolve_comparison,
    type_literals,
    unify,
)
from evertide.pgexpr.expressions import ColumnRef, Expression, SqlConstant
from evertide.pgexpr.literals import InvalidLiteral, read_number
from evertide.pgexpr.operators import arithmetic, arrays, comparison, patterns, temporal
from evertide.pgexpr.operators.casts import UUID, cast_operation, resize_operation
from evertide.pgexpr.operators.comparison import MIRRORED
from evertide.pgexpr.operators.functions import resolve_concat, resolve_function, resolve_like
from evertide.pgexpr.operators.logic import conjunction, disjunction, negation
from evertide.pgexpr.syntax import SyntaxNode, TypeName
from evertide.pgexpr.tokens import refuse, shorten
from evertide.pgexpr.types import sqltypes as sql
from evertide.pgexpr.types.sqltypes import SqlType, common_type


def resolve(node: SyntaxNode, columns: Mapping[str, SqlType], params: Mapping[int, str]) -> Expression:
    """The clause as a boolean expression."""
    return _Resolver(columns, params).resolve_condition(node)


class _Resolver:
    def __init__(self, columns: Mapping[str, SqlType], params: Mapping[int, str]) -> None:
        self._columns = columns
        self._params = params

    def resolve_condition(self, node: SyntaxNode) -> Expression:
        expression = self._resolve(node)
        if expression.type not in (sql.BOOL, sql.UNKNOWN):
            refuse(node.at, f"{shorten(node.token)}: expected a condition, not a value of type {expression.type}")
        return as_type(expression, sql.BOOL, node)

    def _resolve(self, node: SyntaxNode) -> Expression:
        expression: Expression = getattr(self, f"_resolve_{node.form}")(node)
        return expression

    def _resolve_args(self, node: SyntaxNode) -> list[Expression]:
        return [self._resolve(arg) for arg in node.args]

    def _resolve_call(self, node: SyntaxNode) -> Expression:
        return resolve_function(node, self._resolve_args(node))

    # Values

    def _resolve_column(self, node: SyntaxNode) -> Expression:
        """An unquoted name matches a column regardless of case, if only one column matches."""
        name, is_quoted = node.facts
        if name not in self._columns and not is_quoted:
            alike = [each for each in self._columns if each.lower() == name]
            name = alike[0] if len(alike) == 1 else name
        if name not in self._columns:
            refuse(
                node.at, f"{shorten(node.token)}: the column does not exist; the columns are {', '.join(self._columns)}"
            )
        return ColumnRef(name, self._columns[name])

    def _resolve_string(self, node: SyntaxNode) -> Expression:
        return SqlConstant(node.facts, sql.UNKNOWN)

    def _resolve_param(self, node: SyntaxNode) -> Expression:
        if node.facts not in self._params:
            refuse(node.at, f"{shorten(node.token)}: the parameter has no value")
        return SqlConstant(self._params[node.facts], sql.UNKNOWN)

    def _resolve_number(self, node: SyntaxNode) -> Expression:
        if node.facts.isdigit():
            number = int(node.facts)
            fitting = next((kind for kind in (sql.INT4, sql.INT8) if number <= sql.INTEGER_BOUNDS[kind][1]), None)
            if fitting is not None:
                return SqlConstant(number, fitting)
        try:
            return SqlConstant(read_number(node.facts), sql.NUMERIC)
        except InvalidLiteral as error:
            refuse(node.at, f"{shorten(node.token)}: {error}")

    def _resolve_constant(self, node: SyntaxNode) -> Expression:
        return SqlConstant(node.facts, sql.UNKNOWN if node.facts is None else sql.BOOL)

    def _resolve_array(self, node: SyntaxNode) -> Expression:
        items = self._resolve_args(node)
        if not items:
            return SqlConstant("{}", sql.UNKNOWN)
        kind = find_shared_type(node, items)
        operation = arrays.construct_operation(kind if kind.is_array else kind.array)
        return apply_operation(node, operation, *(as_type(item, kind, node) for item in items))

    def _resolve_cast(self, node: SyntaxNode) -> Expression:
        wanted: TypeName = node.facts
        expression = self._resolve(node.args[0])
        if wanted.type.name == "uuid":
            return self._cast_to_uuid(node, expression, wanted.type)
        if expression.type == sql.UNKNOWN:
            expression = as_type(expression, wanted.type, node)
        elif expression.type != wanted.type:
            operation = cast_operation(expression.type, wanted.type)
            if operation is None:
                refuse(node.at, f"{shorten(node.token)}: cannot cast {expression.type} to {wanted.type}")
            expression = apply_operation(node, operation, expression)
        if not wanted.modifiers:
            return expression
        precision, scale = (*wanted.modifiers, 0)[:2]
        if wanted.type.is_array:
            refuse(node.at, f"{shorten(node.token)}: sizes of array elements are not supported")
        return apply_operation(node, resize_operation(precision, scale), expression)

    def _cast_to_uuid(self, node: SyntaxNode, expression: Expression, wanted: SqlType) -> Expression:
        """A text in the form of a uuid: no column has the type uuid."""
        target = sql.TEXT.array if wanted.is_array else sql.TEXT
        text = as_type(expression, target, node) if expression.type == sql.UNKNOWN else expression
        if text.type != target:
            refuse(node.at, f"{shorten(node.token)}: cannot cast {text.type} to {wanted}")
        if not wanted.is_array:
            return apply_operation(node, UUID, text)
        if not isinstance(text, SqlConstant):
            refuse(node.at, f"{shorten(node.token)}: only constants can be cast to {wanted}")
        values = [
            each if each is None else apply_operation(node, UUID, SqlConstant(each, sql.TEXT))
            for each in text.value or []
        ]
        texts = [each.value if isinstance(each, SqlConstant) else None for each in values]
        return SqlConstant(text.value and texts, target)

    # Truth

    def _resolve_and(self, node: SyntaxNode) -> Expression:
        return conjunction([self.resolve_condition(arg) for arg in node.args])

    def _resolve_or(self, node: SyntaxNode) -> Expression:
        return disjunction([self.resolve_condition(arg) for arg in node.args])

    def _resolve_not(self, node: SyntaxNode) -> Expression:
        return negation(self.resolve_condition(node.args[0]))

    def _resolve_is(self, node: SyntaxNode) -> Expression:
        expression = self._resolve(node.args[0]) if node.facts == "null" else self.resolve_condition(node.args[0])
        expression = as_type(expression, sql.TEXT, node) if expression.type == sql.UNKNOWN else expression
        return apply_operation(node, comparison.test_operation(node.facts), expression)

    def _resolve_distinct(self, node: SyntaxNode) -> Expression:
        left, right = self._resolve_args(node)
        left, right, kind = unify(node, left, right)
        return apply_operation(node, comparison.distinct_operation(kind), *order_sides(left, right))

    def _resolve_between(self, node: SyntaxNode) -> Expression:
        value, low, high = self._resolve_args(node)

        def within(least: Expression, most: Expression) -> Expression:
            return conjunction(
                [resolve_comparison(node, ">=", value, least), resolve_comparison(node, "<=", value, most)]
            )

        return disjunction([within(low, high), within(high, low)]) if node.facts else within(low, high)

    def _resolve_in(self, node: SyntaxNode) -> Expression:
        value, *items = self._resolve_args(node)
        constants = [item for item in items if isinstance(item, SqlConstant)]
        kind = common_type([value.type, *(item.type for item in constants)]) if len(constants) > 1 else None
        tests = [resolve_comparison(node, "=", value, item) for item in items if not isinstance(item, SqlConstant)]
        if kind is None or kind.is_array:
            tests += [resolve_comparison(node, "=", value, item) for item in constants]
        else:
            coerced = [as_type(item, kind, node) for item in constants]
            left, _, kind = unify(node, value, coerced[0])
            values = [as_type(item, kind, node) for item in coerced]
            tests.append(comparison.one_of(left, [item.value for item in values if isinstance(item, SqlConstant)]))
        return disjunction(tests)

    def _resolve_quantified(self, node: SyntaxNode) -> Expression:
        name, is_all = node.facts
        name = {"!=": "<>", "!like": "!~~", "!ilike": "!~~*", "like": "~~", "ilike": "~~*"}.get(name, name)
        value, array = self._resolve_args(node)
        if array.type == sql.UNKNOWN:
            element = sql.TEXT if value.type == sql.UNKNOWN or name.endswith(("~~", "~~*")) else value.type
            array = as_type(array, element.array, node)
        if not array.type.is_array:
            refuse(node.at, f"{shorten(node.token)}: ANY and ALL need an array, not {array.type}")
        if name in _LIKES:
            compare = patterns.make_matcher(folded=name.endswith("*"), negated=name.startswith("!"))
            value, array = as_type(value, sql.TEXT, node), as_type(array, sql.TEXT.array, node)
        elif name in MIRRORED:
            value, _, kind = unify(node, value, SqlConstant(None, array.type.element))
            array = as_type(array, kind.array, node)
            if (
                isinstance(array, SqlConstant)
                and array.value is not None
                and (name, is_all) in (("=", False), ("<>", True))
            ):
                membership = comparison.one_of(value, comparison.elements(array.value))
                return negation(membership) if is_all else membership
            compare = comparison.make_ordering(name, kind)
        else:
            refuse(node.at, f"{shorten(node.token)}: this operator is not supported with ANY and ALL")
        symbol = _LIKES.get(name, name)
        return apply_operation(node, comparison.quantified_operation(compare, symbol, is_all=is_all), value, array)

    # Operators

    def _resolve_like(self, node: SyntaxNode) -> Expression:
        return resolve_like(node, self._resolve_args(node), folded=False)

    def _resolve_ilike(self, node: SyntaxNode) -> Expression:
        return resolve_like(node, self._resolve_args(node), folded=True)

    def _resolve_sign(self, node: SyntaxNode) -> Expression:
        expression = self._resolve(node.args[0])
        if expression.type == sql.UNKNOWN:
            expression = as_type(expression, sql.FLOAT8, node)
        if expression.type == sql.INTERVAL and node.facts == "-":
            return apply_operation(node, temporal.NEGATE, expression)
        if expression.type not in sql.NUMBERS:
            refuse(node.at, f"{shorten(node.token)}: the operator {node.facts} does not exist for {expression.type}")
        operation = arithmetic.unary_operation("-", expression.type)
        return expression if node.facts == "+" or operation is None else apply_operation(node, operation, expression)

    def _resolve_unary(self, node: SyntaxNode) -> Expression:
        expression = self._resolve(node.args[0])
        wanted = sql.FLOAT8 if node.facts == "|/" or expression.type == sql.UNKNOWN else expression.type
        expression = as_type(expression, wanted, node) if expression.type in (*sql.NUMBERS, sql.UNKNOWN) else expression
        operation = arithmetic.unary_operation(node.facts, expression.type) if expression.type in sql.NUMBERS else None
        if operation is None:
            refuse(node.at, f"{shorten(node.token)}: the operator {node.facts} does not exist for {expression.type}")
        return apply_operation(node, operation, expression)

    def _resolve_binary(self, node: SyntaxNode) -> Expression:
        left, right = self._resolve_args(node)
        name = str(node.facts)
        if name in MIRRORED:
            return resolve_comparison(node, name, left, right)
        if name in ("@>", "<@", "&&"):
            left, right = type_literals(left, right, node)
            kind = left.type
            if kind != right.type or not kind.is_array:
                refuse_operation(node, left.type, right.type)
            return apply_operation(node, arrays.containment_operation(name, kind), left, right)
        if name == "||":
            return resolve_concat(node, left, right)
        return self._resolve_arithmetic(node, name, left, right)

    def _resolve_arithmetic(self, node: SyntaxNode, name: str, left: Expression, right: Expression) -> Expression:
        left, right = type_literals(left, right, node, name)
        if left.type in sql.NUMBERS and right.type in sql.NUMBERS:
            kind = find_number_type(left.type, right.type)
            if name == "^" and (kind in sql.INTEGER_BOUNDS or kind == sql.FLOAT4):
                kind = sql.FLOAT8
            operation = arithmetic.binary_operation(name, kind)
            if operation is not None:
                return apply_operation(node, operation, as_type(left, kind, node), as_type(right, kind, node))
            if name == "^":
                refuse(node.at, "'^': powers of numeric are not supported; cast to float8")
        for kinds in _list_temporal_pairs(left.type, right.type):
            operation = temporal.sum_operation(name, *kinds)
            if operation is not None:
                return apply_operation(node, operation, as_type(left, kinds[0], node), as_type(right, kinds[1], node))
        return refuse_operation(node, left.type, right.type)


_LIKES = {"~~": "LIKE", "~~*": "ILIKE", "!~~": "NOT LIKE", "!~~*": "NOT ILIKE"}


def _list_temporal_pairs(left: SqlType, right: SqlType) -> list[tuple[SqlType, SqlType]]:
    """The type pairs to try: unchanged, int2 as int4, two moments as the later type."""
    pairs = [(left, right)]
    if sql.INT2 in (left, right):
        pairs.append((sql.INT4 if left == sql.INT2 else left, sql.INT4 if right == sql.INT2 else right))
    if left in sql.MOMENTS and right in sql.MOMENTS:
        later = max(left, right, key=sql.MOMENTS.index)
        pairs.append((later, later))
    return pairs
