"""AND, OR, NOT and COALESCE, in three-valued logic: NULL is "unknown"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow.compute as pc

from evertide.pgexpr.expressions import Expression, Operation, OperationCall, SqlConstant, Vector, call, canonical
from evertide.pgexpr.operators.comparison import one_of
from evertide.pgexpr.types.columns import ARROW_TYPES
from evertide.pgexpr.types.sqltypes import BOOL, SqlType


def _logic_operation(name: str, combine: Callable[[Any, Any], Any]) -> Operation:
    def apply(args: Sequence[Vector], count: int) -> Vector:
        result = args[0].as_array()
        for arg in args[1:]:
            result = combine(result, arg.as_array())
        return (
            Vector.array(result, BOOL) if hasattr(result, "__len__") else Vector.constant(result.as_py(), BOOL, count)
        )

    return Operation(name, BOOL, "({conjunction})" if name == "and" else "({disjunction})", apply=apply)


_AND = _logic_operation("and", pc.and_kleene)
_OR = _logic_operation("or", pc.or_kleene)
_NOT = Operation("not", BOOL, "(NOT {0})", lambda value: not value, pc.invert)


def conjunction(args: Sequence[Expression]) -> Expression:
    return _flatten(_AND, args)


def disjunction(args: Sequence[Expression]) -> Expression:
    """Turns `x = 1 OR x = 2` into `x IN (1, 2)`, which is one lookup."""
    others: list[Expression] = []
    members: dict[str, tuple[Expression, list[Any]]] = {}
    for part in (part for arg in args for part in _parts(_OR, arg)):
        values = _values(part)
        if isinstance(part, OperationCall) and values:
            members.setdefault(canonical(part.args[0]), (part.args[0], []))[1].extend(values)
        else:
            others.append(part)
    return _flatten(_OR, [*others, *(one_of(value, values) for value, values in members.values())])


def _values(part: Expression) -> Sequence[Any]:
    """The constants of an equality or membership test; empty for any other expression."""
    if not isinstance(part, OperationCall) or part.operation.name not in ("=", "member"):
        return ()
    if part.operation.name == "member":
        values: Sequence[Any] = part.operation.facts
        return values
    return (part.args[1].value,) if isinstance(part.args[1], SqlConstant) else ()


def negation(arg: Expression) -> Expression:
    if isinstance(arg, OperationCall) and arg.operation is _NOT:
        return arg.args[0]
    return call(_NOT, arg)


def _flatten(operation: Operation, args: Sequence[Expression]) -> Expression:
    """Flatten nested calls of the operation into one, with sorted, distinct arguments."""
    parts: dict[str, Expression] = {}
    for arg in args:
        parts |= {canonical(part): part for part in _parts(operation, arg)}
    if len(parts) == 1:
        return next(iter(parts.values()))
    return call(operation, *(parts[text] for text in sorted(parts)))


def _parts(operation: Operation, arg: Expression) -> tuple[Expression, ...]:
    return arg.args if isinstance(arg, OperationCall) and arg.operation is operation else (arg,)


def coalesce_operation(kind: SqlType) -> Operation:
    def apply(args: Sequence[Vector], _: int) -> Vector:
        if kind in ARROW_TYPES and not all(arg.is_constant for arg in args):
            return Vector.array(pc.coalesce(*(arg.as_array() for arg in args)), kind)
        rows = zip(*(arg.as_values() for arg in args), strict=True)
        return Vector.values([next((value for value in row if value is not None), None) for row in rows], kind)

    return Operation("coalesce", kind, "coalesce({all})", apply=apply)
