"""Typed expressions over rows, and their evaluation over a batch of rows at a time.

1. A `Vector` has one value per row: an Arrow array where Arrow computes as PostgreSQL does, otherwise a list of values.
   A constant is a vector of any length.
2. An `Operation` computes a vector from vectors. A strict operation is NULL where an argument is NULL and is defined by
   a function of values (`scalar`); it may have a faster version over arrays (`vectorized`), which returns None if it
   does not apply.
3. An operation that fails for a row (division by zero, overflow, a text that is not a number) is NULL for that row.
   PostgreSQL would fail the whole query; where PostgreSQL has a result, the result is the same.
4. `call` computes an operation on constants immediately. There, a failure is an error.
5. A subexpression used in several places (`x BETWEEN ...`) is one object and is computed once.
6. The `width` of concatenations (`||`, ARRAY) and of products of numerics is bounded, so that a short clause cannot
   produce gigabytes from a row.
7. `canonical` is the expression in PostgreSQL syntax with explicit types: parsing it results in the same expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.pgexpr.literals import InvalidLiteral
from evertide.pgexpr.types.columns import ARROW_TYPES, combine_column, normalize_array, to_values
from evertide.pgexpr.types.sqltypes import BOOL, NUMERIC, TEXT, SqlType
from evertide.pgexpr.types.value_text import write_value

FAILURES = (ArithmeticError, InvalidLiteral)
"""The exceptions that an operation on values may raise."""

_CANONICAL_MAX = 2_000_000
_COLUMN_WIDTH = 100
"""The assumed length of a column's value, in characters."""
_WIDTH_MAX = 100 * _COLUMN_WIDTH


class Vector:
    """Created from an Arrow column, an array or values; converted to the other forms on demand."""

    __slots__ = ("_array", "_raw", "_values", "count", "is_constant", "type")

    def __init__(self, kind: SqlType, count: int, *, is_constant: bool = False) -> None:
        self.type = kind
        self.count = count
        self.is_constant = is_constant
        self._raw: Any = None
        self._array: Any = None
        self._values: list[Any] | None = None

    @classmethod
    def column(cls, raw: Any, kind: SqlType) -> Vector:
        vector = cls(kind, len(raw))
        vector._raw = raw
        return vector

    @classmethod
    def array(cls, array: Any, kind: SqlType) -> Vector:
        """From an array as `normalize_array` returns it."""
        vector = cls(kind, len(array))
        vector._array = array
        return vector

    @classmethod
    def values(cls, values: list[Any], kind: SqlType) -> Vector:
        vector = cls(kind, len(values))
        vector._values = values
        return vector

    @classmethod
    def constant(cls, value: Any, kind: SqlType, count: int) -> Vector:
        vector = cls(kind, count, is_constant=True)
        vector._values = [value]
        return vector

    def as_array(self) -> Any:
        """An Arrow array, or a scalar for a constant; only for types in `ARROW_TYPES`."""
        if self._array is None:
            wanted = ARROW_TYPES[self.type]
            if self._raw is not None:
                self._array = normalize_array(self._raw, self.type)
            elif self.is_constant:
                self._array = pa.scalar(self._values[0] if self._values else None, wanted)
            else:
                self._array = pa.array(self.as_values(), wanted)
        return self._array

    def as_decimals(self) -> Any:
        """Like `as_array`, for numeric; None for computed vectors, which are lists of values."""
        if self._raw is not None:
            return combine_column(self._raw)
        value = self._values[0] if self.is_constant and self._values else None
        if value is None or not value.is_finite():
            return None
        try:
            return pa.scalar(value)
        except pa.ArrowInvalid:  # more digits than Arrow supports
            return None

    def as_values(self) -> list[Any]:
        if self._values is None:
            self._values = to_values(self._raw, self.type) if self._raw is not None else self._array.to_pylist()
        return self._values * self.count if self.is_constant else self._values

    def is_null(self) -> Any:
        """An array of booleans, also for a constant."""
        source = self._raw if self._raw is not None else None if self.is_constant else self._array
        if source is not None:
            nulls = source.is_null()
            return nulls.combine_chunks() if isinstance(nulls, pa.ChunkedArray) else nulls
        return pa.array([value is None for value in self.as_values()], pa.bool_())


Scalar = Callable[..., Any]
Vectorized = Callable[..., Any]
Apply = Callable[[Sequence[Vector], int], Vector]


def _refuse_unset(args: Sequence[Vector], count: int) -> Vector:
    raise TypeError(f"an operation without a way to compute {len(args)} arguments and {count} rows")


@dataclass(frozen=True, eq=False, slots=True)
class Operation:
    """Computed by `scalar`, with or without `vectorized` (a strict operation), or by `apply`.

    `template` renders it with its arguments: `{0}`, `{1}`, or `{all}`, `{conjunction}`, `{disjunction}` of them.
    """

    name: str
    result: SqlType
    template: str
    scalar: Scalar | None = None
    vectorized: Vectorized | None = None
    apply: Apply = _refuse_unset
    facts: Any = None
    joins: bool = False
    """Whether the result is as long as all arguments together."""

    def __call__(self, args: Sequence[Vector], count: int) -> Vector:
        if self.scalar is None:
            return self.apply(args, count)
        if self.vectorized is not None and not all(arg.is_constant for arg in args):
            result = self.vectorized(*(arg.as_decimals() if arg.type == NUMERIC else arg.as_array() for arg in args))
            if result is not None:
                return Vector.array(result, self.result)
        return Vector.values(_apply_one_by_one(self.scalar, args), self.result)


def _apply_one_by_one(scalar: Scalar, args: Sequence[Vector]) -> list[Any]:
    results: list[Any] = []
    for row in zip(*(arg.as_values() for arg in args), strict=True):
        if any(value is None for value in row):
            results.append(None)
            continue
        try:
            results.append(scalar(*row))
        except FAILURES:
            results.append(None)
    return results


@dataclass(frozen=True, eq=False, slots=True)
class ColumnRef:
    name: str
    type: SqlType


@dataclass(frozen=True, eq=False, slots=True)
class SqlConstant:
    value: Any
    type: SqlType


@dataclass(frozen=True, eq=False, slots=True)
class OperationCall:
    operation: Operation
    args: tuple[Expression, ...]
    canonical: str
    width: int = _COLUMN_WIDTH
    """The approximate length of its values."""

    @property
    def type(self) -> SqlType:
        return self.operation.result


Expression = ColumnRef | SqlConstant | OperationCall


def call(operation: Operation, *args: Expression) -> Expression:
    """Raises one of `FAILURES` if all arguments are constants and the operation fails."""
    constants = [arg for arg in args if isinstance(arg, SqlConstant)]
    if len(constants) < len(args):
        return OperationCall(operation, args, _render(operation, args), _width(operation, args))
    if operation.scalar is None:
        vectors = [Vector.constant(arg.value, arg.type, 1) for arg in constants]
        return SqlConstant(operation(vectors, 1).as_values()[0], operation.result)
    values = [arg.value for arg in constants]
    return SqlConstant(None if None in values else operation.scalar(*values), operation.result)


def _render(operation: Operation, args: Sequence[Expression]) -> str:
    texts = [canonical(arg) for arg in args]
    if sum(map(len, texts)) > _CANONICAL_MAX:
        why = f"the clause with its parameters has more than {_CANONICAL_MAX} characters"
        raise InvalidInput(where="where clause", why=why)
    lists = {"all": ", ".join(texts), "conjunction": " AND ".join(texts), "disjunction": " OR ".join(texts)}
    return operation.template.format(*texts, **lists)


def _width(operation: Operation, args: Sequence[Expression]) -> int:
    if operation.result not in (TEXT, NUMERIC) and not operation.result.is_array:
        return _COLUMN_WIDTH
    widths = [len(canonical(arg)) if isinstance(arg, SqlConstant) else _width_of(arg) for arg in args]
    if not operation.joins:
        return max(widths)
    if sum(widths) > _WIDTH_MAX:
        why = f"an expression computes a value of more than {_WIDTH_MAX} characters; a column counts as {_COLUMN_WIDTH}"
        raise InvalidInput(where="where clause", why=why)
    return sum(widths)


def _width_of(expression: ColumnRef | OperationCall) -> int:
    return expression.width if isinstance(expression, OperationCall) else _COLUMN_WIDTH


def measure_weight(expression: Expression) -> int:
    """Roughly the memory for evaluating a row, as a multiple of the row's own size."""
    return sum(-(-each.width // _COLUMN_WIDTH) for each in _nodes(expression) if isinstance(each, OperationCall)) + 1


def evaluate(expression: Expression, rows: Any) -> Vector:
    """`rows` is a table or batch with the columns. Shared subexpressions are computed once."""
    return _evaluate(expression, rows, {})


def _evaluate(expression: Expression, rows: Any, done: dict[int, Vector]) -> Vector:
    if isinstance(expression, SqlConstant):
        return Vector.constant(expression.value, expression.type, rows.num_rows)
    vector = done.get(id(expression))
    if vector is None:
        if isinstance(expression, ColumnRef):
            vector = Vector.column(rows.column(expression.name), expression.type)
        else:
            args = [_evaluate(arg, rows, done) for arg in expression.args]
            vector = expression.operation(args, rows.num_rows)
        done[id(expression)] = vector
    return vector


def canonical(expression: Expression) -> str:
    if isinstance(expression, OperationCall):
        return expression.canonical
    if isinstance(expression, ColumnRef):
        return '"' + expression.name.replace('"', '""') + '"'
    return _constant(expression.value, expression.type)


def _constant(value: Any, kind: SqlType) -> str:
    if value is None:
        return f"NULL::{kind}"
    if kind == BOOL:
        return "true" if value else "false"
    return "'" + write_value(value, kind).replace("'", "''") + f"'::{kind}"


def columns(expression: Expression) -> Iterator[ColumnRef]:
    """The columns of an expression; a column that is several objects is repeated."""
    return (each for each in _nodes(expression) if isinstance(each, ColumnRef))


def _nodes(expression: Expression) -> Iterator[Expression]:
    known: set[int] = set()
    waiting = [expression]
    while waiting:
        each = waiting.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        yield each
        if isinstance(each, OperationCall):
            waiting += each.args
