"""Which types meet as which, and what becomes of them: PostgreSQL's rules, for the types that columns can have.

1. A quoted literal, a parameter or NULL takes the type of what it meets; two that meet are texts.
2. Numbers meet as the wider one; if one is float4 and the other not, as float8. Dates meet as the later of `MOMENTS`.
   Nothing else turns into something else by itself.
3. What can be written in two ways is one expression: constants stand on the right, and a list of constants is a set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from evertide.pgexpr.expressions import FAILURES, Constant, Expression, Operation, call, canonical
from evertide.pgexpr.literals import Misread, read_value
from evertide.pgexpr.operators import comparison
from evertide.pgexpr.operators.casts import cast_to
from evertide.pgexpr.operators.comparison import MIRRORED
from evertide.pgexpr.syntax import Node
from evertide.pgexpr.tokens import refuse, shortened
from evertide.pgexpr.types.sqltypes import (
    BOOL,
    FLOAT4,
    FLOAT8,
    INTERVAL,
    JSONB,
    MOMENTS,
    NUMBERS,
    NUMERIC,
    TEXT,
    UNKNOWN,
    SqlType,
    common_type,
)

__all__ = [
    "applied",
    "as_type",
    "comparing",
    "met",
    "neighbours",
    "no_operation",
    "number_type",
    "ordered",
    "shared_type",
]


def comparing(node: Node, name: str, left: Expression, right: Expression) -> Expression:
    left, right, kind = met(node, left, right)
    if isinstance(left, Constant) or (name in ("=", "<>") and ordered(left, right)[0] is right):
        left, right, name = right, left, MIRRORED[name]
    if any(isinstance(side, Constant) and side.value is None for side in (left, right)):
        return Constant(None, BOOL)
    return applied(node, comparison.compared(name, kind), left, right)


def met(node: Node, left: Expression, right: Expression) -> tuple[Expression, Expression, SqlType]:
    """Both sides of a comparison, as the type in which they are compared."""
    left, right = neighbours(left, right, node)
    kind = left.type
    if left.type in NUMBERS and right.type in NUMBERS:
        kind = number_type(left.type, right.type)
    elif left.type in MOMENTS and right.type in MOMENTS:
        kind = max(left.type, right.type, key=MOMENTS.index)
    elif left.type != right.type or kind == JSONB:
        no_operation(node, left.type, right.type)
    left, right = as_type(left, kind, node), as_type(right, kind, node)
    return _normal(left), _normal(right), kind


def neighbours(left: Expression, right: Expression, node: Node, name: str = "=") -> tuple[Expression, Expression]:
    """Rule 1."""
    if left.type == UNKNOWN and right.type == UNKNOWN:
        return as_type(left, TEXT, node), as_type(right, TEXT, node)
    if left.type == UNKNOWN:
        return as_type(left, _partner(name, right.type), node), right
    if right.type == UNKNOWN:
        return left, as_type(right, _partner(name, left.type), node)
    return left, right


def shared_type(node: Node, items: Sequence[Expression]) -> SqlType:
    types = [item.type for item in items]
    found = common_type(types)
    if found is None:
        refuse(node.at, f"{shortened(node.token)}: {', '.join(map(str, types))} have no type in common")
    return found


def as_type(found: Expression, wanted: SqlType, node: Node) -> Expression:
    """Read, or cast along a chain; a refusal if it does not turn into that by itself."""
    if found.type == wanted:
        return found
    if found.type == UNKNOWN and isinstance(found, Constant):
        try:
            return Constant(None if found.value is None else read_value(found.value, wanted), wanted)
        except Misread as error:
            refuse(node.at, f"{shortened(node.token)}: {error}")
    operation = cast_to(found.type, wanted) if common_type([found.type, wanted]) == wanted else None
    if operation is None:
        refuse(node.at, f"{shortened(node.token)}: {wanted} was expected, and this is of type {found.type}")
    return applied(node, operation, found)


def applied(node: Node, operation: Operation, *args: Expression) -> Expression:
    try:
        return call(operation, *args)
    except FAILURES as error:
        refuse(node.at, f"{shortened(node.token)}: {error}")


def no_operation(node: Node, left: SqlType, right: SqlType) -> NoReturn:
    refuse(node.at, f"{shortened(node.token)}: it does not go with {left} and {right}; a cast may help")


def number_type(left: SqlType, right: SqlType) -> SqlType:
    if left != right and FLOAT4 in (left, right):
        return FLOAT8
    return max(left, right, key=NUMBERS.index)


def _partner(name: str, kind: SqlType) -> SqlType:
    """What a literal is that meets this type: the same, but what is added to a moment is an interval."""
    return INTERVAL if name == "+" and kind in (*MOMENTS[1:], INTERVAL) else kind


def ordered(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Sides that may change places: the constant last, else by name."""
    rank = [(isinstance(each, Constant), canonical(each)) for each in (left, right)]
    return (left, right) if rank[0] <= rank[1] else (right, left)


def _normal(found: Expression) -> Expression:
    if isinstance(found, Constant) and found.type == NUMERIC:
        return Constant(comparison.normal(found.value), NUMERIC)
    return found
