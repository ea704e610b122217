"""Functions, LIKE and `||`: which operation each is, for the types of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evertide.pgexpr.coercion import applied, as_type, no_operation, shared_type
from evertide.pgexpr.expressions import Constant, Expression, Operation
from evertide.pgexpr.operators import arrays, comparison, patterns, temporal
from evertide.pgexpr.operators.casts import cast_to
from evertide.pgexpr.operators.logic import coalesced
from evertide.pgexpr.syntax import Node
from evertide.pgexpr.tokens import refuse, shortened
from evertide.pgexpr.types.sqltypes import INTERVAL, JSONB, TEXT, TIMESTAMP, TIMESTAMPTZ, UNKNOWN

__all__ = ["concatenated", "function", "liked"]

Args = Sequence[Expression]


def function(node: Node, args: Args) -> Expression:
    name = str(node.facts)
    if name not in _FUNCTIONS:
        known = ", ".join(_FUNCTIONS)
        refuse(node.at, f"{shortened(node.token)}: this function is not supported; those that are: {known}")
    least, most, made = _FUNCTIONS[name]
    if not least <= len(args) <= most:
        count = least if least == most else f"{least} to {most}"
        refuse(node.at, f"{shortened(node.token)}: it takes {count} arguments, and {len(args)} are given")
    return made(node, args)


def _cased(node: Node, args: Args) -> Expression:
    return applied(node, patterns.LOWER if node.facts == "lower" else patterns.UPPER, as_type(args[0], TEXT, node))


def _chosen(node: Node, args: Args) -> Expression:
    kind = shared_type(node, args)
    if kind == JSONB:
        refuse(node.at, f"{shortened(node.token)}: columns of type {kind} can only be NULL or not here")
    operation = coalesced(kind) if node.facts == "coalesce" else comparison.extreme(node.facts, kind)
    return applied(node, operation, *(as_type(arg, kind, node) for arg in args))


def _justified(node: Node, args: Args) -> Expression:
    return applied(node, temporal.JUSTIFIED[node.facts], as_type(args[0], INTERVAL, node))


def _dimensions(node: Node, args: Args) -> Expression:
    if not args[0].type.is_array:
        refuse(node.at, f"{shortened(node.token)}: it takes an array, and this is of type {args[0].type}")
    return applied(node, arrays.DIMENSIONS, args[0])


def _zoned(node: Node, args: Args) -> Expression:
    zone = as_type(args[0], TEXT, node)
    if isinstance(zone, Constant) and zone.value is not None:
        applied(node, temporal.zoned(TIMESTAMP), zone, Constant(0, TIMESTAMP))  # a zone that is not there
    kind = TIMESTAMP if args[1].type == TIMESTAMP else TIMESTAMPTZ
    return applied(node, temporal.zoned(kind), zone, as_type(args[1], kind, node))


def _cat(node: Node, args: Args) -> Expression:
    if not any(arg.type.is_array for arg in args):
        no_operation(node, args[0].type, args[1].type)
    kind = shared_type(node, args)
    return applied(node, arrays.concatenated(kind), *(as_type(arg, kind, node) for arg in args))


def _extended(node: Node, args: Args) -> Expression:
    """`array_append`, `array_prepend`, and `||` of an array and an element."""
    left, right = args
    if left.type.is_array == right.type.is_array:
        no_operation(node, left.type, right.type)
    kind = shared_type(node, [Constant(None, arg.type if arg.type == UNKNOWN else arg.type.element) for arg in args])
    operation = arrays.appended(kind.array) if left.type.is_array else arrays.prepended(kind.array)
    return applied(node, operation, *(as_type(arg, kind.array if arg.type.is_array else kind, node) for arg in args))


def _appended(node: Node, args: Args) -> Expression:
    return _extended(node, args) if args[0].type.is_array else no_operation(node, args[0].type, args[1].type)


def _prepended(node: Node, args: Args) -> Expression:
    return _extended(node, args) if args[1].type.is_array else no_operation(node, args[0].type, args[1].type)


def concatenated(node: Node, left: Expression, right: Expression) -> Expression:
    if left.type.is_array or right.type.is_array:
        both = UNKNOWN in (left.type, right.type) or left.type.is_array == right.type.is_array
        return _cat(node, (left, right)) if both else _extended(node, (left, right))
    if {TEXT, UNKNOWN}.isdisjoint((left.type, right.type)):
        no_operation(node, left.type, right.type)
    texts = []
    for each in (left, right):
        operation = None if each.type in (TEXT, UNKNOWN) else cast_to(each.type, TEXT)
        if each.type == JSONB:
            no_operation(node, left.type, right.type)
        texts.append(as_type(each, TEXT, node) if operation is None else applied(node, operation, each))
    return applied(node, patterns.CONCAT, *texts)


def liked(node: Node, args: Args, *, folded: bool) -> Expression:
    text, pattern, *escape = (as_type(arg, TEXT, node) for arg in args)
    if escape:
        escaping = Operation("escape", TEXT, "", patterns.escaped_pattern)
        if not isinstance(pattern, Constant) or not isinstance(escape[0], Constant):
            refuse(node.at, f"{shortened(node.token)}: ESCAPE goes with a constant pattern here")
        pattern = applied(node, escaping, pattern, escape[0])
    if isinstance(pattern, Constant) and pattern.value is not None:
        applied(node, patterns.like(folded=folded), Constant("", TEXT), pattern)  # a pattern that ends in its escape
    return applied(node, patterns.like(folded=folded), text, pattern)


def _liked(node: Node, args: Args) -> Expression:
    return liked(node, args, folded=node.facts == "ilike")


_MANY = 1000
_FUNCTIONS: dict[str, tuple[int, int, Callable[[Node, Args], Expression]]] = {
    "array_append": (2, 2, _appended),
    "array_cat": (2, 2, _cat),
    "array_ndims": (1, 1, _dimensions),
    "array_prepend": (2, 2, _prepended),
    "coalesce": (1, _MANY, _chosen),
    "greatest": (1, _MANY, _chosen),
    "ilike": (2, 2, _liked),
    "justify_days": (1, 1, _justified),
    "justify_hours": (1, 1, _justified),
    "justify_interval": (1, 1, _justified),
    "least": (1, _MANY, _chosen),
    "like": (2, 2, _liked),
    "lower": (1, 1, _cased),
    "timezone": (2, 2, _zoned),
    "upper": (1, 1, _cased),
}
