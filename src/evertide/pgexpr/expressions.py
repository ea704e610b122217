"""Typed expressions over rows, and how they are computed: a whole batch of rows at a time.

1. A `Vector` is one value for each row: an Arrow array where Arrow computes as PostgreSQL does, else a list of values.
   A constant is a vector of whatever length.
2. An `Operation` makes a vector of vectors. One that is strict is NULL where an argument is, and is given as a
   function of values; it may have a faster way over whole arrays, which gives None where it cannot tell.
3. An operation that fails on a row (division by zero, overflow, a text that is no number) is NULL there. PostgreSQL
   would fail the whole query; wherever it has an answer, it is the same.
4. An operation on constants alone is computed at once, by `call`. There, failing is an error.
5. A part that stands in several places (`x BETWEEN ...`) is one object, and computed once.
6. Of what is put together (`||`, ARRAY), and of products of numerics, the `width` is bounded: a short clause must not
   make gigabytes of a row.
7. `canonical` is the expression in PostgreSQL's own words, with every type written out: parsing it gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.pgexpr.literals import Misread
from evertide.pgexpr.types.columns import ARROW_TYPES, plain_array, values_of, whole
from evertide.pgexpr.types.output import text_of
from evertide.pgexpr.types.sqltypes import BOOL, NUMERIC, TEXT, SqlType

__all__ = [
    "FAILURES",
    "Call",
    "Column",
    "Constant",
    "Expression",
    "Operation",
    "Scalar",
    "Vector",
    "call",
    "canonical",
    "columns",
    "evaluate",
    "weight",
]

FAILURES = (ArithmeticError, Misread)
"""What an operation on values may raise."""

_CANONICAL_MAX = 2_000_000
_COLUMN_WIDTH = 100
"""What a value of a column counts as, in characters."""
_WIDTH_MAX = 100 * _COLUMN_WIDTH


class Vector:
    """Made from whichever form is at hand; the other is made when it is asked for."""

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
        made = cls(kind, len(raw))
        made._raw = raw
        return made

    @classmethod
    def array(cls, array: Any, kind: SqlType) -> Vector:
        """Of an array as `plain_array` gives it."""
        made = cls(kind, len(array))
        made._array = array
        return made

    @classmethod
    def values(cls, values: list[Any], kind: SqlType) -> Vector:
        made = cls(kind, len(values))
        made._values = values
        return made

    @classmethod
    def constant(cls, value: Any, kind: SqlType, count: int) -> Vector:
        made = cls(kind, count, is_constant=True)
        made._values = [value]
        return made

    def as_array(self) -> Any:
        """An Arrow array, or a scalar for a constant; of types that have one."""
        if self._array is None:
            wanted = ARROW_TYPES[self.type]
            if self._raw is not None:
                self._array = plain_array(self._raw, self.type)
            elif self.is_constant:
                self._array = pa.scalar(self._values[0] if self._values else None, wanted)
            else:
                self._array = pa.array(self.as_values(), wanted)
        return self._array

    def as_decimals(self) -> Any:
        """As `as_array`, of a numeric; None if there is no such array: computed ones are lists of values."""
        if self._raw is not None:
            return whole(self._raw)
        value = self._values[0] if self.is_constant and self._values else None
        if value is None or not value.is_finite():
            return None
        try:
            return pa.scalar(value)
        except pa.ArrowInvalid:  # more digits than Arrow has
            return None

    def as_values(self) -> list[Any]:
        if self._values is None:
            self._values = values_of(self._raw, self.type) if self._raw is not None else self._array.to_pylist()
        return self._values * self.count if self.is_constant else self._values

    def is_null(self) -> Any:
        """A whole array, also of a constant."""
        known = self._raw if self._raw is not None else None if self.is_constant else self._array
        if known is not None:
            found = known.is_null()
            return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        return pa.array([value is None for value in self.as_values()], pa.bool_())


Scalar = Callable[..., Any]
Whole = Callable[..., Any]
Apply = Callable[[Sequence[Vector], int], Vector]


def _unset(args: Sequence[Vector], count: int) -> Vector:
    raise TypeError(f"an operation without a way to compute {len(args)} arguments and {count} rows")


@dataclass(frozen=True, eq=False, slots=True)
class Operation:
    """Either `scalar`, with or without `whole` (strict), or `apply`.

    `template` shows it with its arguments: `{0}`, `{1}`, or `{all}`, `{conjunction}`, `{disjunction}` of them.
    """

    name: str
    result: SqlType
    template: str
    scalar: Scalar | None = None
    whole: Whole | None = None
    apply: Apply = _unset
    facts: Any = None
    joins: bool = False
    """Whether its result is as long as all of its arguments together."""

    def __call__(self, args: Sequence[Vector], count: int) -> Vector:
        if self.scalar is None:
            return self.apply(args, count)
        if self.whole is not None and not all(arg.is_constant for arg in args):
            made = self.whole(*(arg.as_decimals() if arg.type == NUMERIC else arg.as_array() for arg in args))
            if made is not None:
                return Vector.array(made, self.result)
        return Vector.values(_one_by_one(self.scalar, args), self.result)


def _one_by_one(scalar: Scalar, args: Sequence[Vector]) -> list[Any]:
    made: list[Any] = []
    for row in zip(*(arg.as_values() for arg in args), strict=True):
        if any(value is None for value in row):
            made.append(None)
            continue
        try:
            made.append(scalar(*row))
        except FAILURES:
            made.append(None)
    return made


@dataclass(frozen=True, eq=False, slots=True)
class Column:
    name: str
    type: SqlType


@dataclass(frozen=True, eq=False, slots=True)
class Constant:
    value: Any
    type: SqlType


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    operation: Operation
    args: tuple[Expression, ...]
    canonical: str
    width: int = _COLUMN_WIDTH
    """About how long its values are."""

    @property
    def type(self) -> SqlType:
        return self.operation.result


Expression = Column | Constant | Call


def call(operation: Operation, *args: Expression) -> Expression:
    """`FAILURES` are raised if all arguments are constants and there is no result."""
    constants = [arg for arg in args if isinstance(arg, Constant)]
    if len(constants) < len(args):
        return Call(operation, args, _shown(operation, args), _width(operation, args))
    if operation.scalar is None:
        vectors = [Vector.constant(arg.value, arg.type, 1) for arg in constants]
        return Constant(operation(vectors, 1).as_values()[0], operation.result)
    values = [arg.value for arg in constants]
    return Constant(None if None in values else operation.scalar(*values), operation.result)


def _shown(operation: Operation, args: Sequence[Expression]) -> str:
    shown = [canonical(arg) for arg in args]
    if sum(map(len, shown)) > _CANONICAL_MAX:
        why = f"the clause comes to more than {_CANONICAL_MAX} characters when all that it repeats is written out"
        raise InvalidInput(where="where clause", why=why)
    lists = {"all": ", ".join(shown), "conjunction": " AND ".join(shown), "disjunction": " OR ".join(shown)}
    return operation.template.format(*shown, **lists)


def _width(operation: Operation, args: Sequence[Expression]) -> int:
    if operation.result not in (TEXT, NUMERIC) and not operation.result.is_array:
        return _COLUMN_WIDTH
    widths = [len(canonical(arg)) if isinstance(arg, Constant) else _width_of(arg) for arg in args]
    if not operation.joins:
        return max(widths)
    if sum(widths) > _WIDTH_MAX:
        why = f"a value is made of at most {_WIDTH_MAX} characters or digits; a column counts as {_COLUMN_WIDTH}"
        raise InvalidInput(where="where clause", why=why)
    return sum(widths)


def _width_of(expression: Column | Call) -> int:
    return expression.width if isinstance(expression, Call) else _COLUMN_WIDTH


def weight(expression: Expression) -> int:
    """About how many times what a row takes in memory all that is computed of it takes."""
    return sum(-(-each.width // _COLUMN_WIDTH) for each in _nodes(expression) if isinstance(each, Call)) + 1


def evaluate(expression: Expression, rows: Any) -> Vector:
    """`rows` is a table or a batch that has the columns. What stands in several places is computed once."""
    return _evaluated(expression, rows, {})


def _evaluated(expression: Expression, rows: Any, known: dict[int, Vector]) -> Vector:
    if isinstance(expression, Constant):
        return Vector.constant(expression.value, expression.type, rows.num_rows)
    found = known.get(id(expression))
    if found is None:
        if isinstance(expression, Column):
            found = Vector.column(rows.column(expression.name), expression.type)
        else:
            args = [_evaluated(arg, rows, known) for arg in expression.args]
            found = expression.operation(args, rows.num_rows)
        known[id(expression)] = found
    return found


def canonical(expression: Expression) -> str:
    if isinstance(expression, Call):
        return expression.canonical
    if isinstance(expression, Column):
        return '"' + expression.name.replace('"', '""') + '"'
    return _constant(expression.value, expression.type)


def _constant(value: Any, kind: SqlType) -> str:
    if value is None:
        return f"NULL::{kind}"
    if kind == BOOL:
        return "true" if value else "false"
    return "'" + text_of(value, kind).replace("'", "''") + f"'::{kind}"


def columns(expression: Expression) -> Iterator[Column]:
    """Each that it names, once for each place that is not shared."""
    return (each for each in _nodes(expression) if isinstance(each, Column))


def _nodes(expression: Expression) -> Iterator[Expression]:
    known: set[int] = set()
    waiting = [expression]
    while waiting:
        each = waiting.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        yield each
        if isinstance(each, Call):
            waiting += each.args
