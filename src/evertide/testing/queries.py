"""Random queries whose result is determined: from a seed, nested, typed, over any tables.

A query is grown from relations, each a SELECT with named columns of a known kind, over one or two smaller relations:

    (none)      a table, or a few constant rows
    select      columns computed of each row, rows that meet a condition, subqueries in either
    join        of every kind, by keys, by other conditions, by both, or by none
    group       functions of groups: plain, DISTINCT, FILTER; HAVING; ROLLUP, CUBE and GROUPING SETS
    window      ranks, offsets, sums over frames
    combine     UNION, EXCEPT and INTERSECT, with and without ALL
    distinct    each row once
    top         ORDER BY and LIMIT
    explode     each row once per element of an array

    session     groups by session windows

What keeps the result determined: rows are ordered by all their columns, so that those which tie are alike; no
function depends on order; nothing overflows or fails, as operands are small and divisors are constants; and a sum of
floats, whose last digits Spark does not promise, is *rough*: it is handed up, and nothing is ever computed of it.

With `is_open` none of that is kept to: rows tie, floats are added, texts are equal under a collation. Then only this
engine says what the result is, and `evertide.testing.oracle.drive_again` that it always says the same."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.types as kinds

from evertide.testing.expressions import Column, Expressions
from evertide.testing.runtime import Chance

__all__ = ["random_queries"]

T = TypeVar("T")

_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "CROSS JOIN")
_SETS = ("UNION ALL", "UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL")
_DISTINCT_COLUMNS_MAX = 4


def random_queries(
    schemas: Mapping[str, pa.Schema],
    seed: int,
    count: int,
    depth: int = 3,
    *,
    is_open: bool = False,
    folded: Container[str] = (),
) -> list[str]:
    """As many queries as asked for; `depth` is how many operators at most lie above each other.

    `folded` are columns, as "table.column", whose texts have a collation.
    """
    queries = _Queries(schemas, Chance(seed), is_open=is_open, folded=folded)
    return [queries.relation(1 + queries.chance.below(depth)).sql for _ in range(count)]


@dataclass(frozen=True, slots=True)
class _Relation:
    sql: str
    columns: tuple[Column, ...]
    """By their names in `sql`."""


_CONSTANTS = _Relation(
    "SELECT CAST(k AS BIGINT) AS k, w FROM VALUES (0, 'a'), (1, ''), (2, NULL), (NULL, 'b') AS v(k, w)",
    (Column("k", "whole"), Column("w", "text")),
)
"""Rows that no table has: they are there before the first transaction, and stay."""


class _Queries:
    def __init__(
        self, schemas: Mapping[str, pa.Schema], chance: Chance, *, is_open: bool, folded: Container[str]
    ) -> None:
        self.chance = chance
        self._schemas = dict(schemas)
        self._is_open = is_open
        self._folded = folded
        self._expressions = Expressions(chance, is_open=is_open)
        self._aliases = 0

    def relation(self, depth: int) -> _Relation:
        if depth == 0:
            return self._table()
        makers: Sequence[Callable[[int], _Relation]] = (
            self._select,
            self._join,
            self._join,
            self._group,
            self._group,
            self._window,
            self._combine,
            self._distinct,
            self._top,
            self._explode,
        )
        if self._is_open:
            makers = (*makers, self._window, self._top, self._session)
        return self._one(makers)(depth - 1)

    def _one(self, choices: Sequence[T]) -> T:
        return choices[self.chance.below(len(choices))]

    def _some(self, columns: Sequence[Column], most: int) -> list[Column]:
        """At least one, if there is any."""
        left = list(columns)
        count = min(1 + self.chance.below(most), len(left))
        return [left.pop(self.chance.below(len(left))) for _ in range(count)]

    def _table(self) -> _Relation:
        if not self.chance.below(8):
            return _CONSTANTS
        name = self._one(list(self._schemas))
        found = [(field.name, kind) for field in self._schemas[name] if (kind := self._kind_of(name, field))]
        casts = {"whole": "CAST({0} AS BIGINT)", "decimal": "CAST({0} AS DECIMAL(20, 4))"}
        columns = [f"{casts.get(kind, '{0}').format(column)} AS {column}" for column, kind in found]
        return _Relation(f"SELECT {', '.join(columns)} FROM {name}", tuple(Column(*each) for each in found))

    def _kind_of(self, table: str, field: pa.Field) -> str | None:
        return "folded" if f"{table}.{field.name}" in self._folded else _kind_of(field.type)

    def _source(self, depth: int) -> tuple[str, tuple[Column, ...]]:
        """A smaller relation as FROM names it, and its columns as they are named there."""
        made = self.relation(depth)
        self._aliases += 1
        alias = f"q{self._aliases}"
        columns = tuple(Column(f"{alias}.{column.name}", column.kind) for column in made.columns)
        return f"({made.sql}) AS {alias}", columns

    def _made(self, shown: Sequence[Column], rest: str, select: str = "SELECT") -> _Relation:
        """A SELECT of these expressions, which get names of their own."""
        named = [f"{column.name} AS c{at}" for at, column in enumerate(shown)]
        columns = tuple(Column(f"c{at}", column.kind) for at, column in enumerate(shown))
        return _Relation(f"{select} {', '.join(named)} {rest}", columns)

    def _select(self, depth: int) -> _Relation:
        source, columns = self._source(depth)
        shown = [*self._expressions.several(columns, 3), *self._some(columns, 2)]
        conditions = []
        if self.chance.below(3):
            conditions.append(self._expressions.truth(columns))
        if not self.chance.below(3):
            conditions.append(self._subquery_condition(columns))
        if not self.chance.below(4):
            shown += [self._scalar_subquery(columns) for _ in range(1 + self.chance.below(2))]
        return self._made(shown, f"FROM {source}{_where(conditions)}")

    def _subquery_condition(self, outer: Sequence[Column]) -> str:
        source, inner = self._source(self.chance.below(2))
        pairs = _pairs(outer, inner)
        if not pairs or not self.chance.below(6):
            return f"{self._one(('', 'NOT '))}EXISTS (SELECT 1 FROM {source} WHERE {self._expressions.truth(inner)})"
        left, right = self._one(pairs)
        conditions = [self._expressions.truth(inner)] if self.chance.below(2) else []
        if self.chance.below(2):
            found = f"{left.name} {self._one(('IN', 'NOT IN'))} (SELECT {right.name} FROM {source}{_where(conditions)})"
        else:
            conditions.append(f"{left.name} = {right.name}")
            found = f"{self._one(('', 'NOT '))}EXISTS (SELECT 1 FROM {source}{_where(conditions)})"
        return found if self.chance.below(2) else f"({found} OR {self._expressions.truth(outer)})"

    def _scalar_subquery(self, outer: Sequence[Column]) -> Column:
        source, inner = self._source(self.chance.below(2))
        value = self._expressions.aggregate(inner, is_rough=False)
        pairs = _pairs(outer, inner)
        conditions = []
        if pairs and self.chance.below(2):
            left, right = self._one(pairs)
            conditions.append(f"{left.name} = {right.name}")
        return Column(f"(SELECT {value.name} FROM {source}{_where(conditions)})", value.kind)

    def _join(self, depth: int) -> _Relation:
        left_source, left = self._source(depth)
        right_source, right = self._source(self.chance.below(depth + 1))
        join = self._one(_JOINS)
        conditions = []
        pairs = _pairs(left, right)
        if pairs and self.chance.below(8):
            for _ in range(1 + self.chance.below(2)):
                a, b = self._one(pairs)
                conditions.append(f"{a.name} {self._one(('=', '=', '=', '<=>'))} {b.name}")
        if not self.chance.below(3):
            conditions.append(self._expressions.truth([*left, *right]))
        on = "" if join == "CROSS JOIN" else f" ON {' AND '.join(conditions) or 'true'}"
        both = left if join in ("LEFT SEMI JOIN", "LEFT ANTI JOIN") else (*left, *right)
        where = f" WHERE {self._expressions.truth(both)}" if not self.chance.below(4) else ""
        shown = [*self._some(both, 4), *self._expressions.several(both, 1)]
        return self._made(shown, f"FROM {left_source} {join} {right_source}{on}{where}")

    def _group(self, depth: int) -> _Relation:
        source, columns = self._source(depth)
        keys = [column for column in self._some(_exact(columns), 3) if self.chance.below(4)]
        values = [self._expressions.aggregate(columns) for _ in range(1 + self.chance.below(3))]
        having = ""
        if not self.chance.below(3):
            having = f" HAVING {self._expressions.truth([self._expressions.aggregate(columns, is_rough=False)])}"
        return self._made([*keys, *values], f"FROM {source}{self._grouping(keys)}{having}")

    def _grouping(self, keys: Sequence[Column]) -> str:
        if not keys:
            return ""
        names = list(dict.fromkeys(key.name for key in keys))
        listed = ", ".join(names)
        match self.chance.below(8):
            case 0:
                return f" GROUP BY ROLLUP ({listed})"
            case 1:
                return f" GROUP BY CUBE ({listed})"
            case 2:
                return f" GROUP BY GROUPING SETS (({listed}), ({names[0]}), ())"
        return f" GROUP BY {listed}"

    def _window(self, depth: int) -> _Relation:
        source, all_columns = self._source(depth)
        columns = _exact(all_columns)
        partition = [column.name for column in self._some(columns, 2)] if self.chance.below(5) else []
        by = f"PARTITION BY {', '.join(partition)} " if partition else ""
        whole, total = f"OVER ({by.strip()})", f"OVER ({by}ORDER BY {self._order(columns)})"
        some = f"OVER ({by}ORDER BY {self._order(self._some(columns, 1))})"
        column = self._one(columns)
        value = Column(*self._expressions.value("whole", columns))
        shown = self._some(
            [
                Column(f"row_number() {total}", "whole"),
                Column(f"rank() {some}", "whole"),
                Column(f"dense_rank() {some}", "whole"),
                Column(f"ntile(3) {total}", "whole"),
                Column(f"lag({column.name}) {total}", column.kind),
                Column(f"lead({column.name}, 2) {total}", column.kind),
                Column(f"count(*) {whole}", "whole"),
                Column(f"max({column.name}) {whole}", column.kind),
                Column(f"sum({value.name}) {some}", "whole"),
                Column(f"sum({value.name}) {total[:-1]} ROWS BETWEEN {self._frame()})", "whole"),
                Column(f"min({column.name}) {total[:-1]} ROWS BETWEEN {self._frame()})", column.kind),
                Column(f"first_value({column.name}) {total}", column.kind),
            ],
            2,
        )
        if self._is_open:
            columns = all_columns or columns
            shown = self._some(self._open_windows(by, columns), 2)
        as_whole = [Column(_as_bigint(each), each.kind) for each in shown]
        made = self._made([*self._some(columns, 3), *as_whole], f"FROM {source}")
        if self.chance.below(2) or made.columns[-1].kind != "whole":
            return made
        return self._made(made.columns, f"FROM ({made.sql}) WHERE {made.columns[-1].name} <= 2")

    def _open_windows(self, by: str, columns: Sequence[Column]) -> list[Column]:
        """Ordered by one column, so that rows tie; with whatever depends on which of them comes first."""
        column, real = self._one(columns), self._expressions.value("real", columns)[0]
        some = f"OVER ({by}ORDER BY {self._order(self._some(columns, 1))})"
        rows = f"{some[:-1]} ROWS BETWEEN {self._frame()})"
        return [
            *(Column(f"{name}({column.name}) {rows}", column.kind) for name in ("first", "last", "min", "max")),
            *(Column(f"{name}({column.name}) {some}", column.kind) for name in ("lag", "lead", "first_value")),
            Column(f"nth_value({column.name}, 2) {rows}", column.kind),
            *(Column(f"{name}({real}) {rows}", "real") for name in ("sum", "avg", "stddev", "kurtosis")),
            Column(f"sum({real}) OVER ({by.strip()})", "real"),
            Column(f"corr({real}, abs({real})) {some}", "real"),
            Column(f"CAST(collect_list({column.name}) {rows} AS STRING)", "text"),
            Column(f"CAST(collect_list({column.name}) OVER ({by.strip()}) AS STRING)", "text"),
            Column(f"row_number() {some}", "whole"),
            Column(f"ntile(2) {some}", "whole"),
        ]

    def _frame(self) -> str:
        frames = ("1 PRECEDING AND CURRENT ROW", "UNBOUNDED PRECEDING AND 1 FOLLOWING", "1 FOLLOWING AND 2 FOLLOWING")
        return self._one(frames)

    def _order(self, columns: Sequence[Column]) -> str:
        """By all of them, each up or down, NULL first or last."""
        ways = ("", " DESC", " NULLS LAST", " DESC NULLS FIRST")
        return ", ".join(f"{column.name}{self._one(ways)}" for column in columns)

    def _combine(self, depth: int) -> _Relation:
        left_source, left = self._source(depth)
        right_source, right = self._source(self.chance.below(depth + 1))
        shown = self._some(_exact(left), 3)
        one = self._made(shown, f"FROM {left_source}")
        others = [Column(*self._expressions.value(column.kind, right)) for column in shown]
        other = self._made(others, f"FROM {right_source}")
        return _Relation(f"({one.sql}) {self._one(_SETS)} ({other.sql})", one.columns)

    def _distinct(self, depth: int) -> _Relation:
        source, columns = self._source(depth)
        return self._made(self._some(_exact(columns), _DISTINCT_COLUMNS_MAX), f"FROM {source}", "SELECT DISTINCT")

    def _top(self, depth: int) -> _Relation:
        source, columns = self._source(depth)
        shown = columns if self._is_open and columns else _exact(columns)
        offset = f" OFFSET {1 + self.chance.below(2)}" if not self.chance.below(4) else ""
        made = self._made(shown, f"FROM {source}")
        order = self._order(self._some(made.columns, 1) if self._is_open else made.columns)
        top = f"{made.sql} ORDER BY {order} LIMIT {1 + self.chance.below(5)}{offset}"
        if not self.chance.below(4):
            top = f"SELECT * FROM ({top}) {self._one(('OFFSET 1', 'LIMIT 2 OFFSET 1', 'LIMIT 2'))}"
        return _Relation(top, made.columns)

    def _session(self, depth: int) -> _Relation:
        source, columns = self._source(depth)
        time, gap = self._expressions.value("time", columns)[0], self._one(("4 seconds", "10 minutes"))
        keys = [column for column in self._some(_exact(columns), 2) if self.chance.below(3)]
        values = [self._expressions.aggregate(columns) for _ in range(1 + self.chance.below(3))]
        names = dict.fromkeys([*(key.name for key in keys), f"session_window({time}, '{gap}')"])
        shown = [*keys, Column("session_window.end", "time"), *values]
        return self._made(shown, f"FROM {source} GROUP BY {', '.join(names)}")

    def _explode(self, depth: int) -> _Relation:
        source, columns = self._source(depth)
        first, second = (self._expressions.value("whole", columns)[0] for _ in range(2))
        outer = self._one(("", "OUTER "))
        elements = self._one((f"array({first}, {second})", f"filter(array({first}, {second}), e -> e > 1)"))
        self._aliases += 1
        view = f"LATERAL VIEW {outer}explode({elements}) AS e{self._aliases}"
        shown = [*self._some(columns, 3), Column(f"e{self._aliases}", "whole")]
        return self._made(shown, f"FROM {source} {view}")


def _kind_of(kind: pa.DataType) -> str | None:
    for applies, name in (
        (kinds.is_integer, "whole"),
        (kinds.is_floating, "real"),
        (kinds.is_decimal, "decimal"),
        (kinds.is_string, "text"),
        (kinds.is_boolean, "truth"),
        (kinds.is_timestamp, "time"),
    ):
        if applies(kind):
            return name
    return None


def _exact(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Those that can be keys."""
    return tuple(column for column in columns if column.kind not in ("rough", "folded")) or (Column("1", "whole"),)


def _pairs(left: Sequence[Column], right: Sequence[Column]) -> list[tuple[Column, Column]]:
    """What could be compared."""
    return [(a, b) for a in left for b in right if a.kind == b.kind and a.kind not in ("rough", "truth")]


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _as_bigint(column: Column) -> str:
    return f"CAST({column.name} AS BIGINT)" if column.kind == "whole" else column.name
