"""Choose the operation for a function call, LIKE or `||`, by the types of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evertide.pgexpr.coercion import apply_operation, as_type, find_shared_type, refuse_operation
from evertide.pgexpr.expressions import Expression, Operation, SqlConstant
from evertide.pgexpr.operators import arrays, comparison, patterns, temporal
from evertide.pgexpr.operators.casts import cast_operation
from evertide.pgexpr.operators.logic import coalesce_operation
from evertide.pgexpr.syntax import SyntaxNode
from evertide.pgexpr.tokens import refuse, shorten
from evertide.pgexpr.types.sqltypes import INTERVAL, JSONB, TEXT, TIMESTAMP, TIMESTAMPTZ, UNKNOWN

Args = Sequence[Expression]


def resolve_function(node: SyntaxNode, args: Args) -> Expression:
    name = str(node.facts)
    if name not in _FUNCTIONS:
        known = ", ".join(_FUNCTIONS)
        refuse(node.at, f"{shorten(node.token)}: this function is not supported; supported are {known}")
    least, most, resolve = _FUNCTIONS[name]
    if not least <= len(args) <= most:
        count = least if least == most else f"{least} to {most}"
        refuse(node.at, f"{shorten(node.token)}: the function takes {count} arguments, not {len(args)}")
    return resolve(node, args)


def _resolve_case(node: SyntaxNode, args: Args) -> Expression:
    return apply_operation(
        node, patterns.LOWER if node.facts == "lower" else patterns.UPPER, as_type(args[0], TEXT, node)
    )


def _resolve_choice(node: SyntaxNode, args: Args) -> Expression:
    kind = find_shared_type(node, args)
    if kind == JSONB:
        refuse(node.at, f"{shorten(node.token)}: columns of type {kind} can only be tested for NULL")
    operation = coalesce_operation(kind) if node.facts == "coalesce" else comparison.extreme_operation(node.facts, kind)
    return apply_operation(node, operation, *(as_type(arg, kind, node) for arg in args))


def _resolve_justify(node: SyntaxNode, args: Args) -> Expression:
    return apply_operation(node, temporal.JUSTIFY[node.facts], as_type(args[0], INTERVAL, node))


def _resolve_dimensions(node: SyntaxNode, args: Args) -> Expression:
    if not args[0].type.is_array:
        refuse(node.at, f"{shorten(node.token)}: the function takes an array, not {args[0].type}")
    return apply_operation(node, arrays.DIMENSIONS, args[0])


def _resolve_zone(node: SyntaxNode, args: Args) -> Expression:
    zone = as_type(args[0], TEXT, node)
    if isinstance(zone, SqlConstant) and zone.value is not None:
        apply_operation(
            node, temporal.zone_operation(TIMESTAMP), zone, SqlConstant(0, TIMESTAMP)
        )  # refuses an unknown zone
    kind = TIMESTAMP if args[1].type == TIMESTAMP else TIMESTAMPTZ
    return apply_operation(node, temporal.zone_operation(kind), zone, as_type(args[1], kind, node))


def _resolve_cat(node: SyntaxNode, args: Args) -> Expression:
    if not any(arg.type.is_array for arg in args):
        refuse_operation(node, args[0].type, args[1].type)
    kind = find_shared_type(node, args)
    return apply_operation(node, arrays.concat_operation(kind), *(as_type(arg, kind, node) for arg in args))


def _resolve_extend(node: SyntaxNode, args: Args) -> Expression:
    """`array_append`, `array_prepend`, and `||` of an array and an element."""
    left, right = args
    if left.type.is_array == right.type.is_array:
        refuse_operation(node, left.type, right.type)
    kind = find_shared_type(
        node, [SqlConstant(None, arg.type if arg.type == UNKNOWN else arg.type.element) for arg in args]
    )
    operation = arrays.append_operation(kind.array) if left.type.is_array else arrays.prepend_operation(kind.array)
    return apply_operation(
        node, operation, *(as_type(arg, kind.array if arg.type.is_array else kind, node) for arg in args)
    )


def _resolve_append(node: SyntaxNode, args: Args) -> Expression:
    return _resolve_extend(node, args) if args[0].type.is_array else refuse_operation(node, args[0].type, args[1].type)


def _resolve_prepend(node: SyntaxNode, args: Args) -> Expression:
    return _resolve_extend(node, args) if args[1].type.is_array else refuse_operation(node, args[0].type, args[1].type)


def resolve_concat(node: SyntaxNode, left: Expression, right: Expression) -> Expression:
    if left.type.is_array or right.type.is_array:
        both = UNKNOWN in (left.type, right.type) or left.type.is_array == right.type.is_array
        return _resolve_cat(node, (left, right)) if both else _resolve_extend(node, (left, right))
    if {TEXT, UNKNOWN}.isdisjoint((left.type, right.type)):
        refuse_operation(node, left.type, right.type)
    texts = []
    for each in (left, right):
        operation = None if each.type in (TEXT, UNKNOWN) else cast_operation(each.type, TEXT)
        if each.type == JSONB:
            refuse_operation(node, left.type, right.type)
        texts.append(as_type(each, TEXT, node) if operation is None else apply_operation(node, operation, each))
    return apply_operation(node, patterns.CONCAT, *texts)


def resolve_like(node: SyntaxNode, args: Args, *, folded: bool) -> Expression:
    text, pattern, *escape = (as_type(arg, TEXT, node) for arg in args)
    if escape:
        escaping = Operation("escape", TEXT, "", patterns.convert_escape)
        if not isinstance(pattern, SqlConstant) or not isinstance(escape[0], SqlConstant):
            refuse(node.at, f"{shorten(node.token)}: ESCAPE needs a constant pattern")
        pattern = apply_operation(node, escaping, pattern, escape[0])
    if isinstance(pattern, SqlConstant) and pattern.value is not None:
        apply_operation(
            node, patterns.like_operation(folded=folded), SqlConstant("", TEXT), pattern
        )  # refuses a pattern that ends in its escape
    return apply_operation(node, patterns.like_operation(folded=folded), text, pattern)


def _resolve_like_call(node: SyntaxNode, args: Args) -> Expression:
    return resolve_like(node, args, folded=node.facts == "ilike")


_MANY = 1000
_FUNCTIONS: dict[str, tuple[int, int, Callable[[SyntaxNode, Args], Expression]]] = {
    "array_append": (2, 2, _resolve_append),
    "array_cat": (2, 2, _resolve_cat),
    "array_ndims": (1, 1, _resolve_dimensions),
    "array_prepend": (2, 2, _resolve_prepend),
    "coalesce": (1, _MANY, _resolve_choice),
    "greatest": (1, _MANY, _resolve_choice),
    "ilike": (2, 2, _resolve_like_call),
    "justify_days": (1, 1, _resolve_justify),
    "justify_hours": (1, 1, _resolve_justify),
    "justify_interval": (1, 1, _resolve_justify),
    "least": (1, _MANY, _resolve_choice),
    "like": (2, 2, _resolve_like_call),
    "lower": (1, 1, _resolve_case),
    "timezone": (2, 2, _resolve_zone),
    "upper": (1, 1, _resolve_case),
}
