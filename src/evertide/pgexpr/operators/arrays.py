"""Array operations: containment, overlap, concatenation and construction.

1. Containment and overlap compare elements only, regardless of dimensions; NULL equals nothing.
2. Concatenation takes two arrays of the same shape, or an array and one of its elements. An empty array, or NULL in
   place of an array, adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evertide.pgexpr.expressions import FAILURES, Operation, Vector
from evertide.pgexpr.literals import find_shape
from evertide.pgexpr.operators.comparison import elements, order_key
from evertide.pgexpr.types.sqltypes import BOOL, INT4, SqlType


def containment_operation(name: str, kind: SqlType) -> Operation:
    """`@>`, `<@` and `&&` of arrays of this type."""
    key = order_key(kind.element) or (lambda value: value)

    def keys(value: list[Any]) -> set[Any]:
        return {key(each) for each in elements(value) if each is not None}

    def contains(left: list[Any], right: list[Any]) -> bool:
        return keys(right) <= keys(left) and all(each is not None for each in elements(right))

    tests: dict[str, Callable[[list[Any], list[Any]], bool]] = {
        "@>": contains,
        "<@": lambda left, right: contains(right, left),
        "&&": lambda left, right: not keys(left).isdisjoint(keys(right)),
    }
    return Operation(name, BOOL, f"({{0}} {name} {{1}})", tests[name])


DIMENSIONS = Operation("array_ndims", INT4, "array_ndims({0})", lambda value: len(find_shape(value)) or None)
"""NULL for an empty array."""


def concat_operation(kind: SqlType) -> Operation:
    return _null_aware_operation("array_cat", kind, _concat)


def append_operation(kind: SqlType) -> Operation:
    return _null_aware_operation("array_append", kind, lambda array, element: _extend(array, [element]))


def prepend_operation(kind: SqlType) -> Operation:
    return _null_aware_operation("array_prepend", kind, lambda element, array: _extend(array, [element], at_end=False))


def construct_operation(kind: SqlType) -> Operation:
    """ARRAY[...] of elements, or of arrays of one shape."""

    def construct(*items: Any) -> Any:
        if any(isinstance(item, list) for item in items):
            shapes = {find_shape(item) for item in items}
            if len(shapes) > 1:
                raise ArithmeticError("inner arrays must have the same shape")
            if shapes == {()}:
                return []
        return list(items)

    return _null_aware_operation("array", kind, construct, "ARRAY[{all}]")


def _null_aware_operation(name: str, kind: SqlType, compute: Callable[..., Any], template: str = "") -> Operation:
    """An operation that is not strict: `compute` receives NULLs as None."""

    def try_row(row: Sequence[Any]) -> Any:
        try:
            return compute(*row)
        except FAILURES:
            return None

    def apply(args: Sequence[Vector], _: int) -> Vector:
        rows = zip(*(arg.as_values() for arg in args), strict=True)
        return Vector.values([try_row(row) for row in rows], kind)

    return Operation(name, kind, template or f"{name}({{all}})", apply=apply, joins=True)


def _concat(left: list[Any] | None, right: list[Any] | None) -> list[Any] | None:
    if not left or not right:
        return right if left is None or (right is not None and not left) else left
    dims, more = find_shape(left), find_shape(right)
    if len(dims) == len(more):
        if dims[1:] != more[1:]:
            raise ArithmeticError("cannot concatenate incompatible arrays")
        return left + right
    if dims[1:] == more:
        return [*left, right]
    if more[1:] == dims:
        return [left, *right]
    raise ArithmeticError("cannot concatenate incompatible arrays")


def _extend(array: list[Any] | None, more: list[Any], *, at_end: bool = True) -> list[Any]:
    array = array or []
    if len(find_shape(array)) > 1:
        raise ArithmeticError("argument must be empty or one-dimensional array")
    return array + more if at_end else more + array
