"""The parts of random queries: tables, constants, FROM clauses, and subqueries as operands of expressions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.types as kinds

from tests.kit.expressions import Column, Expressions
from tests.kit.runtime import RandomStream

T = TypeVar("T")

_CASTS = {
    "whole": "CAST({0} AS BIGINT)",
    "decimal": "CAST({0} AS DECIMAL(20, 4))",
    "pair": "CAST({0} AS STRUCT<a: BIGINT, b: STRING>)",
    "list": "CAST({0} AS ARRAY<BIGINT>)",
    "dict": "CAST({0} AS MAP<STRING, BIGINT>)",
}
_NOT_COMPARED = frozenset(("rough", "truth", "dict", "variant"))
_NO_KEYS = frozenset(("rough", "folded", "dict", "variant"))


@dataclass(frozen=True, slots=True)
class Relation:
    sql: str
    columns: tuple[Column, ...]
    """With their names in `sql`."""


_VALUES = "SELECT CAST(k AS BIGINT) AS k, w FROM VALUES (0, 'a'), (1, ''), (2, NULL), (NULL, 'b') AS v(k, w)"
_CONSTANTS = tuple(
    Relation(sql, (Column("k", "whole"), Column("w", "text")))
    for sql in (
        _VALUES,
        f"{_VALUES} ORDER BY k DESC LIMIT 2 OFFSET 1",
        f"{_VALUES} ORDER BY w, k OFFSET 1",
        f"{_VALUES} WHERE false",
        "SELECT id AS k, CAST(id AS STRING) AS w FROM range(3)",
    )
)
"""Rows that are in no table: they exist before the first transaction, and never change."""


class Relations(ABC):
    def __init__(
        self, schemas: Mapping[str, pa.Schema], rng: RandomStream, *, is_open: bool, folded: Container[str]
    ) -> None:
        self.rng = rng
        self._schemas = dict(schemas)
        self._is_open = is_open
        self._folded = folded
        self._expressions = Expressions(rng, is_open=is_open)
        self._aliases = 0
        self._shared: list[Relation] = []
        """The relations named by the enclosing WITH clauses."""

    @abstractmethod
    def relation(self, depth: int) -> Relation:
        """A relation of at most `depth` nested operators."""

    def _one(self, choices: Sequence[T]) -> T:
        return choices[self.rng.below(len(choices))]

    def _some(self, columns: Sequence[Column], most: int) -> list[Column]:
        """A random choice of 1 to `most` columns, or fewer if there are fewer."""
        left = list(columns)
        count = min(1 + self.rng.below(most), len(left))
        return [left.pop(self.rng.below(len(left))) for _ in range(count)]

    def _alias(self, letter: str = "q") -> str:
        self._aliases += 1
        return f"{letter}{self._aliases}"

    def _table(self) -> Relation:
        if self._shared and self.rng.below(4):
            return self._one(self._shared)
        if not self.rng.below(8):
            return _CONSTANTS[0] if self._is_open else self._one(_CONSTANTS)
        name = self._one(list(self._schemas))
        found = [(field.name, kind) for field in self._schemas[name] if (kind := self._kind_of(name, field))]
        columns = [f"{_CASTS.get(kind, '{0}').format(column)} AS {column}" for column, kind in found]
        empty = " WHERE false" if not self._is_open and not self.rng.below(24) else ""
        return Relation(f"SELECT {', '.join(columns)} FROM {name}{empty}", tuple(Column(*each) for each in found))

    def _kind_of(self, table: str, field: pa.Field) -> str | None:
        return "folded" if f"{table}.{field.name}" in self._folded else _kind_of(field.type)

    def _source(self, depth: int) -> tuple[str, tuple[Column, ...]]:
        """A smaller relation for a FROM clause, and its columns with their names there."""
        made = self.relation(depth)
        alias = self._alias()
        columns = tuple(Column(f"{alias}.{column.name}", column.kind) for column in made.columns)
        return f"({made.sql}) AS {alias}", columns

    def _made(self, shown: Sequence[Column], rest: str, select: str = "SELECT") -> Relation:
        """A SELECT of these expressions, with new names."""
        named = [f"{column.name} AS c{at}" for at, column in enumerate(shown)]
        columns = tuple(Column(f"c{at}", column.kind) for at, column in enumerate(shown))
        return Relation(f"{select} {', '.join(named)} {rest}", columns)

    def _operands(self, columns: Sequence[Column], outer: Sequence[Column] = ()) -> tuple[Column, ...]:
        """The columns, and sometimes subqueries, as operands of expressions.

        `outer` are the columns that a subquery may refer to, where Spark supports it.
        """
        if self._is_open or not self.rng.below(2):
            return tuple(columns)
        makers = (self._scalar_subquery, self._scalar_subquery, self._first_value, self._truth_subquery)
        return (*columns, *(self._one(makers)(outer) for _ in range(1 + self.rng.below(2))))

    def _truth_subquery(self, outer: Sequence[Column]) -> Column:
        return Column(f"({self._subquery_condition(outer)})", "truth")

    def _subquery_condition(self, outer: Sequence[Column]) -> str:
        source, inner = self._source(self.rng.below(2))
        pairs = pairs_of(outer, inner)
        if not pairs or not self.rng.below(6):
            return f"{self._one(('', 'NOT '))}EXISTS (SELECT 1 FROM {source} WHERE {self._expressions.truth(inner)})"
        left, right = self._one(pairs)
        conditions = [self._expressions.truth(inner)] if self.rng.below(2) else []
        if self.rng.below(2):
            way = self._one(("IN", "NOT IN"))
            found = f"{left.name} {way} (SELECT {right.name} FROM {source}{where_of(conditions)})"
        else:
            conditions.append(f"{left.name} {self._one(('=', '=', '<=>', '<'))} {right.name}")
            found = f"{self._one(('', 'NOT '))}EXISTS (SELECT 1 FROM {source}{where_of(conditions)})"
        return found if self.rng.below(2) else f"({found} OR {self._expressions.truth(outer)})"

    def _scalar_subquery(self, outer: Sequence[Column]) -> Column:
        source, inner = self._source(self.rng.below(2))
        value = self._expressions.aggregate(inner, is_rough=False)
        return Column(f"(SELECT {value.name} FROM {source}{where_of(self._correlation(outer, inner))})", value.kind)

    def _first_value(self, outer: Sequence[Column]) -> Column:
        """A scalar subquery with at most one row."""
        source, inner = self._source(self.rng.below(2))
        value = self._one(exact(inner))
        where = where_of(self._correlation(outer, inner))
        cut = self._one(("LIMIT 1", "LIMIT 1", "DESC LIMIT 1", "LIMIT 1 OFFSET 1"))
        return Column(f"(SELECT {value.name} AS f FROM {source}{where} ORDER BY f {cut})", value.kind)

    def _correlation(self, outer: Sequence[Column], inner: Sequence[Column]) -> list[str]:
        pairs = pairs_of(outer, inner)
        if not pairs or not self.rng.below(2):
            return []
        left, right = self._one(pairs)
        return [f"{left.name} {self._one(('=', '=', '=', '<=>', '<', '>='))} {right.name}"]


def _kind_of(kind: pa.DataType) -> str | None:
    for applies, name in (
        (kinds.is_integer, "whole"),
        (kinds.is_floating, "real"),
        (kinds.is_decimal, "decimal"),
        (kinds.is_string, "text"),
        (kinds.is_boolean, "truth"),
        (kinds.is_timestamp, "time"),
        (kinds.is_date, "date"),
        (kinds.is_duration, "span"),
        (lambda of: of == pa.struct([("f", pa.int32()), ("g", pa.string())]), "pair"),
        (lambda of: kinds.is_list(of) and kinds.is_integer(of.value_type), "list"),
        (lambda of: kinds.is_map(of) and kinds.is_integer(of.item_type), "dict"),
    ):
        if applies(kind):
            return name
    return None


def exact(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns that can be keys, or a constant if there are none."""
    return tuple(column for column in columns if column.kind not in _NO_KEYS) or (Column("1", "whole"),)


def pairs_of(left: Sequence[Column], right: Sequence[Column]) -> list[tuple[Column, Column]]:
    """The pairs of columns that can be compared."""
    return [(a, b) for a in left for b in right if a.kind == b.kind and a.kind not in _NOT_COMPARED]


def where_of(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""
