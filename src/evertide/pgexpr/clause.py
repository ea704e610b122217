"""`Where`: a parsed where clause, which decides which rows a shape contains.

1. A clause is a PostgreSQL expression from the subset in `docs/shapes-where.md`; anything else is refused with its
   position.
2. A row matches if the clause is true for it: false and NULL do not match.
3. Whether a row matches depends on that row alone. No row makes a clause fail: see rule 3 of `expressions`.
4. Two clauses are equal if their `canonical` texts are equal, over columns of the same types. Spacing, case, the order
   of AND and OR operands, and the choice between literal and parameter make no difference.
5. `index_key` is a column and a set of values: the clause can be true only if the column has one of them. `rest` is the
   remaining condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput
from evertide.pgexpr.expressions import (
    ColumnRef,
    Expression,
    OperationCall,
    SqlConstant,
    canonical,
    columns,
    evaluate,
    measure_weight,
)
from evertide.pgexpr.operators.logic import conjunction
from evertide.pgexpr.resolution import resolve
from evertide.pgexpr.syntax import SyntaxNode, parse_clause
from evertide.pgexpr.tokens import shorten
from evertide.pgexpr.types.sqltypes import FLOAT4, FLOAT8, INTEGER_BOUNDS, INTERVAL, type_of

PARAMS_MAX: Final = 500_000
"""Characters of all parameters together: a long list is passed as one parameter, as in `id = ANY ($1)`."""

_MEMORY_BYTES = 32 * 1024 * 1024
"""About how much memory one evaluation uses. A row counts as at least `_ROW_BYTES`."""
_ROW_BYTES = 32
_FEW = 256
"""Below this count of rows times weight, skip measuring the rows: with many shapes, measuring itself is expensive."""


class _Key(NamedTuple):
    """`is_all`: the membership test is the whole condition."""

    values: frozenset[Any]
    is_all: bool


@dataclass(frozen=True)
class Where:
    canonical: str
    types: tuple[tuple[str, str], ...]
    """(name, type) of the columns that the clause uses."""
    _expression: Expression = field(compare=False, repr=False)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.canonical, self.types))

    @cached_property
    def columns(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.types)

    def matches(self, rows: pa.Table) -> pa.BooleanArray:
        """Whether each row matches; never NULL. Evaluates large inputs in slices, to bound memory."""
        step = self._rows_at_once(rows)
        if rows.num_rows <= step:
            return self._truths(rows)
        return pa.concat_arrays([self._truths(rows.slice(at, step)) for at in range(0, rows.num_rows, step)])

    @cached_property
    def _weight(self) -> int:
        return measure_weight(self._expression)

    def _rows_at_once(self, rows: pa.Table) -> int:
        count = int(rows.num_rows)
        if count * self._weight <= _FEW:
            return count
        least = _ROW_BYTES * count
        if max(least, rows.nbytes) * self._weight <= _MEMORY_BYTES:
            return count
        used = max(least, int(rows.select(sorted(self.columns)).nbytes))
        return max(1, _MEMORY_BYTES * count // (used * self._weight))

    def _truths(self, rows: pa.Table) -> pa.BooleanArray:
        truths = evaluate(self._expression, rows)
        if truths.is_constant:
            return pa.repeat(pa.scalar(truths.as_values()[:1] == [True]), rows.num_rows)
        return pc.fill_null(truths.as_array(), fill_value=False)

    def filter_rows(self, changes: pa.Table) -> pa.Table:
        """The matching changes. The table may have columns that the clause does not use."""
        return changes.filter(self.matches(changes.select(sorted(self.columns))))

    def conjoin(self, other: Where) -> Where:
        return _build(conjunction([self._expression, other._expression]))

    def index_key(self) -> tuple[str, frozenset[Any]] | None:
        """Rule 5. Values are as `sqltypes` describes them."""
        return self._split[0]

    @property
    def rest(self) -> Where | None:
        """The condition left for rows whose column has a value of `index_key`; None if there is none."""
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[tuple[str, frozenset[Any]] | None, Where | None]:
        """Take the conjunct with the fewest values as the key."""
        whole = self._expression
        parts = whole.args if isinstance(whole, OperationCall) and whole.operation.name == "and" else (whole,)
        keys = [(len(key.values), at, name, key) for at, part in enumerate(parts) for name, key in _keys(part).items()]
        if not keys:
            return None, self
        _, at, name, key = min(keys, key=lambda each: each[:3])
        left = [part for other, part in enumerate(parts) if other != at or not key.is_all]
        return (name, key.values), _build(conjunction(left)) if left else None


def parse_where(text: str, params: Mapping[str, str], schema: pa.Schema) -> Where:
    """Raises `InvalidInput` if the clause is malformed or unsupported. `params` are keyed by number, from "1"."""
    numbered = _number_params(params)
    node = parse_clause(text)
    _check_used(node, numbered)
    return _build(resolve(node, {each.name: type_of(each.type) for each in schema}, numbered))


def conjoin_both(one: Where | None, other: Where | None) -> Where | None:
    if one is None or other is None:
        return one if other is None else other
    return one.conjoin(other)


def _build(expression: Expression) -> Where:
    types = {each.name: str(each.type) for each in columns(expression)}
    return Where(canonical(expression), tuple(sorted(types.items())), expression)


def _number_params(params: Mapping[str, str]) -> dict[int, str]:
    numbered = {}
    for number in range(1, len(params) + 1):
        if str(number) not in params:
            given = ", ".join(shorten(str(name)) for name in list(params)[:10])
            _refuse_params(f"parameters must be numbered from 1 without gaps, not {given}")
        numbered[number] = params[str(number)]
    if any("\0" in text or not _is_text(text) for text in numbered.values()):
        _refuse_params("a parameter contains a character that a text cannot have")
    return numbered


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_used(node: SyntaxNode, params: Mapping[int, str]) -> None:
    """Check that all parameters are used, and their total length; one used twice counts twice."""
    used: list[int] = []
    waiting = [node]
    while waiting:
        each = waiting.pop()
        waiting += each.args
        if each.form == "param":
            used.append(each.facts)
    unused = sorted(set(params) - set(used))
    if unused:
        _refuse_params(f"the where clause does not use params[{unused[0]}]")
    if sum(len(params.get(number, "")) for number in used) > PARAMS_MAX:
        _refuse_params(f"all parameters together may have at most {PARAMS_MAX} characters, counted once per use")


def _refuse_params(why: str) -> NoReturn:
    raise InvalidInput(where="params", why=why)


def _keys(expression: Expression) -> dict[str, _Key]:
    """The possible index keys of an expression, by column."""
    if not isinstance(expression, OperationCall):
        return {}
    name, args = expression.operation.name, expression.args
    if name in ("=", "member"):
        return _equality_keys(expression)
    if name == "and":
        keys = [_keys(arg) for arg in args]
        smallest = sorted(((column, key) for each in keys for column, key in each.items()), key=_count_values)
        return {column: _Key(key.values, is_all=False) for column, key in smallest}
    if name == "or":
        keys = [_keys(arg) for arg in args]
        shared = set(keys[0]).intersection(*keys[1:])
        return {column: _unite([each[column] for each in keys]) for column in sorted(shared)}
    return {}


def _count_values(entry: tuple[str, _Key]) -> int:
    return -len(entry[1].values)


def _unite(keys: list[_Key]) -> _Key:
    return _Key(frozenset().union(*(key.values for key in keys)), all(key.is_all for key in keys))


def _equality_keys(expression: OperationCall) -> dict[str, _Key]:
    column = _column(expression.args[0])
    if column is None or column.type in (FLOAT4, FLOAT8, INTERVAL) or column.type.is_array:
        return {}
    if expression.operation.name == "member":
        return {column.name: _Key(frozenset(expression.operation.facts) - {None}, is_all=True)}
    other = expression.args[1]
    if not isinstance(other, SqlConstant) or other.value != other.value:
        return {}
    return {column.name: _Key(frozenset((other.value,)), is_all=True)}


def _column(expression: Expression) -> ColumnRef | None:
    """The column itself, also inside a cast to a wider integer, which preserves values."""
    if isinstance(expression, OperationCall) and expression.operation.name == "cast":
        inner, most = expression.args[0], INTEGER_BOUNDS.get(expression.type, (0, 0))[1]
        is_widened = isinstance(inner, ColumnRef) and INTEGER_BOUNDS.get(inner.type, (0, most + 1))[1] <= most
        return inner if isinstance(inner, ColumnRef) and is_widened else None
    return expression if isinstance(expression, ColumnRef) else None
