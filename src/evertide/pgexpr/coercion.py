"""Implicit type conversion by PostgreSQL's rules, for the types that columns can have.

1. A quoted literal, a parameter or NULL takes the type of the other operand; two of them are texts.
2. Two numbers convert to the wider type, or to float8 if exactly one is float4. Two dates convert to the later type of
   `MOMENTS`. There are no other implicit conversions.
3. Equivalent notations become one expression: constants stand on the right, and a list of constants is a set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from evertide.pgexpr.expressions import FAILURES, Expression, Operation, SqlConstant, call, canonical
from evertide.pgexpr.literals import InvalidLiteral, read_value
from evertide.pgexpr.operators import comparison
from evertide.pgexpr.operators.casts import cast_operation
from evertide.pgexpr.operators.comparison import MIRRORED
from evertide.pgexpr.syntax import SyntaxNode
from evertide.pgexpr.tokens import refuse, shorten
from evertide.pgexpr.types import sqltypes as sql
from evertide.pgexpr.types.sqltypes import SqlType, common_type


def resolve_comparison(node: SyntaxNode, name: str, left: Expression, right: Expression) -> Expression:
    left, right, kind = unify(node, left, right)
    if isinstance(left, SqlConstant) or (name in ("=", "<>") and order_sides(left, right)[0] is right):
        left, right, name = right, left, MIRRORED[name]
    if any(isinstance(side, SqlConstant) and side.value is None for side in (left, right)):
        return SqlConstant(None, sql.BOOL)
    return apply_operation(node, comparison.compare_operation(name, kind), left, right)


def unify(node: SyntaxNode, left: Expression, right: Expression) -> tuple[Expression, Expression, SqlType]:
    """Both sides of a comparison, converted to a common type, and that type."""
    left, right = type_literals(left, right, node)
    kind = left.type
    if left.type in sql.NUMBERS and right.type in sql.NUMBERS:
        kind = find_number_type(left.type, right.type)
    elif left.type in sql.MOMENTS and right.type in sql.MOMENTS:
        kind = max(left.type, right.type, key=sql.MOMENTS.index)
    elif left.type != right.type or kind == sql.JSONB:
        refuse_operation(node, left.type, right.type)
    left, right = as_type(left, kind, node), as_type(right, kind, node)
    return _normalize(left), _normalize(right), kind


def type_literals(
    left: Expression, right: Expression, node: SyntaxNode, name: str = "="
) -> tuple[Expression, Expression]:
    """Apply rule 1."""
    if left.type == sql.UNKNOWN and right.type == sql.UNKNOWN:
        return as_type(left, sql.TEXT, node), as_type(right, sql.TEXT, node)
    if left.type == sql.UNKNOWN:
        return as_type(left, _find_literal_type(name, right.type), node), right
    if right.type == sql.UNKNOWN:
        return left, as_type(right, _find_literal_type(name, left.type), node)
    return left, right


def find_shared_type(node: SyntaxNode, items: Sequence[Expression]) -> SqlType:
    types = [item.type for item in items]
    kind = common_type(types)
    if kind is None:
        refuse(node.at, f"{shorten(node.token)}: {', '.join(map(str, types))} have no common type")
    return kind


def as_type(expression: Expression, wanted: SqlType, node: SyntaxNode) -> Expression:
    """Read a literal as the type, or convert implicitly; refuse if there is no implicit conversion."""
    if expression.type == wanted:
        return expression
    if expression.type == sql.UNKNOWN and isinstance(expression, SqlConstant):
        try:
            return SqlConstant(None if expression.value is None else read_value(expression.value, wanted), wanted)
        except InvalidLiteral as error:
            refuse(node.at, f"{shorten(node.token)}: {error}")
    operation = cast_operation(expression.type, wanted) if common_type([expression.type, wanted]) == wanted else None
    if operation is None:
        refuse(node.at, f"{shorten(node.token)}: expected {wanted}, not {expression.type}")
    return apply_operation(node, operation, expression)


def apply_operation(node: SyntaxNode, operation: Operation, *args: Expression) -> Expression:
    try:
        return call(operation, *args)
    except FAILURES as error:
        refuse(node.at, f"{shorten(node.token)}: {error}")


def refuse_operation(node: SyntaxNode, left: SqlType, right: SqlType) -> NoReturn:
    refuse(node.at, f"{shorten(node.token)}: not supported for {left} and {right}; a cast may help")


def find_number_type(left: SqlType, right: SqlType) -> SqlType:
    if left != right and sql.FLOAT4 in (left, right):
        return sql.FLOAT8
    return max(left, right, key=sql.NUMBERS.index)


def _find_literal_type(name: str, kind: SqlType) -> SqlType:
    """The type of a literal whose other operand has this type: the same, or an interval if it is added to a moment."""
    return sql.INTERVAL if name == "+" and kind in (*sql.MOMENTS[1:], sql.INTERVAL) else kind


def order_sides(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Order the sides of a commutative operation: constants last, otherwise by canonical text."""
    rank = [(isinstance(each, SqlConstant), canonical(each)) for each in (left, right)]
    return (left, right) if rank[0] <= rank[1] else (right, left)


def _normalize(expression: Expression) -> Expression:
    if isinstance(expression, SqlConstant) and expression.type == sql.NUMERIC:
        return SqlConstant(comparison.normalize_numeric(expression.value), sql.NUMERIC)
    return expression
