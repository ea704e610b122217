"""Generates random, nested, typed queries over any tables from a seed, with a deterministic result.

A query is built of relations, each a SELECT with named columns of a known kind, over one or two smaller relations:

    (none)      a table, or a few constant rows
    select      expressions over each row, and a WHERE condition
    join        of every kind, by keys, by other conditions, by both, or by none
    group       aggregate functions: plain, DISTINCT, FILTER; HAVING; ROLLUP, CUBE and GROUPING SETS
    window      ranks, offsets, sums over frames
    combine     UNION, EXCEPT and INTERSECT, with and without ALL
    distinct    each row once
    top         ORDER BY and LIMIT
    explode     each row once per element of an array
    with        named relations, read several times by the relations below
    count       joins of which one side, or both, is only counted
    lateral     a subquery in FROM, for each row
    pivot       rows to columns, and unpivot
    session     groups by session windows
    tumbling    groups by windows of time that may overlap
    generate    rows of arrays, maps, structs and values: explode, posexplode, inline, stack
    nested      structs, maps, arrays, intervals and variants as keys, arguments and values

Any expression may be a subquery: scalar, EXISTS, IN and NOT IN, correlated or not.

The result is deterministic: rows are ordered by all columns, so that ties are equal; no function depends on the order
of rows; nothing overflows or fails, since operands are small and divisors are constants; and a sum of floats, whose
last digits vary in Spark, is *rough*: it is passed up, and no expression uses it.

With `is_open`, none of these rules apply: rows tie, floats are added, texts are equal under a collation. Spark's result
is then no reference, and `tests.kit.oracle.drive_again` checks that this engine always returns the same."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

import pyarrow as pa

from tests.kit.expressions import Column
from tests.kit.rare_relations import RareRelations
from tests.kit.relations import Relation, exact, pairs_of, where_of
from tests.kit.runtime import RandomStream

_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "CROSS JOIN")
_SETS = ("UNION ALL", "UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL")
_DISTINCT_COLUMNS_MAX = 4
_FRAMES = (
    "1 PRECEDING AND CURRENT ROW",
    "UNBOUNDED PRECEDING AND 1 FOLLOWING",
    "1 FOLLOWING AND 2 FOLLOWING",
    "2 PRECEDING AND 1 PRECEDING",
    "CURRENT ROW AND UNBOUNDED FOLLOWING",
    "UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
)
_RANGES = (
    "UNBOUNDED PRECEDING AND CURRENT ROW",
    "CURRENT ROW AND UNBOUNDED FOLLOWING",
    "CURRENT ROW AND CURRENT ROW",
)
_SPAN = "INTERVAL 5 SECONDS"


def random_queries(
    schemas: Mapping[str, pa.Schema],
    seed: int,
    count: int,
    depth: int = 3,
    *,
    is_open: bool = False,
    folded: Container[str] = (),
    accepts: Callable[[str], bool] = lambda _: True,
) -> list[str]:
    """Generate `count` queries of at most `depth` nested operators.

    `folded` are columns, as "table.column", whose texts have a collation. Spark refuses subqueries in some positions: a
    query for which `accepts` is false is replaced by another one.
    """
    queries = _Queries(schemas, RandomStream(seed), is_open=is_open, folded=folded)
    made: list[str] = []
    while len(made) < count:
        query = queries.relation(1 + queries.rng.below(depth)).sql
        if accepts(query):
            made.append(query)
    return made


class _Queries(RareRelations):
    def relation(self, depth: int) -> Relation:
        if depth == 0:
            return self._table()
        makers: Sequence[Callable[[int], Relation]] = (
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
        rare = (
            self._top,
            self._with,
            self._count,
            self._lateral,
            self._pivot,
            self._unpivot,
            self._session,
            self._tumbling,
            self._generate,
            self._nested,
            self._nested,
        )
        if self._is_open:
            makers = (*makers, self._window, self._top, self._session)
        elif not self.rng.below(3):
            makers = rare
        return self._one(makers)(depth - 1)

    def _select(self, depth: int) -> Relation:
        source, columns = self._source(depth)
        operands = self._operands(columns, columns)
        shown = [*self._expressions.several(operands, 3), *self._some(columns, 2)]
        conditions = []
        if self.rng.below(3):
            conditions.append(self._expressions.truth(operands))
        if not self.rng.below(3):
            conditions.append(self._subquery_condition(columns))
        if not self.rng.below(4):
            shown += [self._scalar_subquery(columns) for _ in range(1 + self.rng.below(2))]
        return self._made(shown, f"FROM {source}{where_of(conditions)}")

    def _join(self, depth: int) -> Relation:
        left_source, left = self._source(depth)
        right_source, right = self._source(self.rng.below(depth + 1))
        join = self._one(_JOINS)
        conditions = []
        pairs = pairs_of(left, right)
        if pairs and self.rng.below(8):
            for _ in range(1 + self.rng.below(2)):
                a, b = self._one(pairs)
                conditions.append(f"{a.name} {self._one(('=', '=', '=', '<=>'))} {b.name}")
        operands = self._operands([*left, *right], self._one(((), left, right)))
        if len(operands) > len(left) + len(right) and self.rng.below(2):
            key, value = (
                self._expressions.value("whole", left)[0],
                self._expressions.value("whole", operands[len(left) :])[0],
            )
            conditions.append(f"{key} = {value}")
        if not self.rng.below(3):
            conditions.append(self._expressions.truth(operands))
        on = "" if join == "CROSS JOIN" else f" ON {' AND '.join(conditions) or 'true'}"
        both = left if join in ("LEFT SEMI JOIN", "LEFT ANTI JOIN") else (*left, *right)
        where = f" WHERE {self._expressions.truth(both)}" if not self.rng.below(4) else ""
        shown = [*self._some(both, 4), *self._expressions.several(both, 1)]
        return self._made(shown, f"FROM {left_source} {join} {right_source}{on}{where}")

    def _group(self, depth: int) -> Relation:
        source, columns = self._source(depth)
        keys = [column for column in self._some(exact(columns), 3) if self.rng.below(4)]
        operands = self._operands(columns, self._one(((), columns)))
        if len(operands) > len(columns) and self.rng.below(2):
            keys.append(Column(*self._expressions.value("whole", operands)))
        values = [self._expressions.aggregate(operands) for _ in range(1 + self.rng.below(3))]
        having = ""
        if not self.rng.below(3):
            value = self._expressions.aggregate(operands, is_rough=False)
            having = f" HAVING {self._expressions.truth(self._operands([value], self._one(((), keys))))}"
        grouping = self._grouping(keys)
        if "(" in grouping and self._has_sets(grouping) and self.rng.below(2):
            values.append(Column("CAST(grouping_id() AS BIGINT)", "whole"))
        return self._made([*keys, *values], f"FROM {source}{grouping}{having}")

    @staticmethod
    def _has_sets(grouping: str) -> bool:
        return grouping.startswith((" GROUP BY ROLLUP", " GROUP BY CUBE", " GROUP BY GROUPING SETS"))

    def _grouping(self, keys: Sequence[Column]) -> str:
        if not keys:
            return ""
        names = list(dict.fromkeys(key.name for key in keys))
        listed = ", ".join(names)
        match self.rng.below(9):
            case 0:
                return f" GROUP BY ROLLUP ({listed})"
            case 1:
                return f" GROUP BY CUBE ({listed})"
            case 2:
                return f" GROUP BY GROUPING SETS (({listed}), ({names[0]}), ())"
            case 3:
                return f" GROUP BY {names[0]}, ROLLUP ({listed})"
        return f" GROUP BY {listed}"

    def _window(self, depth: int) -> Relation:
        source, all_columns = self._source(depth)
        columns = exact(all_columns)
        operands = exact(self._operands(columns))
        partition = [column.name for column in self._some(operands, 2)] if self.rng.below(5) else []
        by = f"PARTITION BY {', '.join(partition)} " if partition else ""
        whole, total = f"OVER ({by.strip()})", f"OVER ({by}ORDER BY {self._order(columns)})"
        some = f"OVER ({by}ORDER BY {self._order(self._some(operands, 1))})"
        column = self._one(columns)
        value = Column(*self._expressions.value("whole", operands))
        time = self._expressions.value("time", operands)[0]
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
                Column(
                    f"nth_value({column.name}, 2) IGNORE NULLS {total[:-1]} ROWS BETWEEN {self._frame()})", column.kind
                ),
                Column(f"lag({column.name}, 1) IGNORE NULLS {total}", column.kind),
                Column(f"last_value({column.name}) {total[:-1]} ROWS BETWEEN {self._frame()})", column.kind),
                Column(f"percent_rank() {some}", "real"),
                Column(f"cume_dist() {some}", "real"),
                Column(f"count(*) OVER ({by}ORDER BY {value.name} RANGE BETWEEN {self._range('1')})", "whole"),
                Column(f"sum({value.name}) OVER ({by}ORDER BY {value.name} RANGE BETWEEN {self._range('2')})", "whole"),
                Column(f"min({column.name}) {some[:-1]} RANGE BETWEEN {self._one(_RANGES)})", column.kind),
                Column(f"count({column.name}) OVER ({by}ORDER BY {time} RANGE BETWEEN {self._range(_SPAN)})", "whole"),
            ],
            2,
        )
        if self._is_open:
            columns = all_columns or columns
            shown = self._some(self._open_windows(by, columns), 2)
        as_whole = [Column(_as_bigint(each), each.kind) for each in shown]
        made = self._made([*self._some(columns, 3), *as_whole], f"FROM {source}")
        if self.rng.below(2) or made.columns[-1].kind != "whole":
            return made
        if not self._is_open and self.rng.below(2):
            return Relation(f"{made.sql} QUALIFY {made.columns[-1].name} <= 2", made.columns)
        return self._made(made.columns, f"FROM ({made.sql}) WHERE {made.columns[-1].name} <= 2")

    def _open_windows(self, by: str, columns: Sequence[Column]) -> list[Column]:
        """Window functions that depend on the order of ties: the order is by one column only."""
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
        return self._one(_FRAMES)

    def _range(self, by: str) -> str:
        ends = (
            f"{by} PRECEDING AND {by} FOLLOWING",
            f"CURRENT ROW AND {by} FOLLOWING",
            f"{by} PRECEDING AND CURRENT ROW",
        )
        return self._one((*ends, *_RANGES))

    def _order(self, columns: Sequence[Column]) -> str:
        """Order by all columns, each ascending or descending, with NULL first or last."""
        ways = ("", " DESC", " NULLS LAST", " DESC NULLS FIRST")
        return ", ".join(f"{column.name}{self._one(ways)}" for column in columns)

    def _combine(self, depth: int) -> Relation:
        left_source, left = self._source(depth)
        right_source, right = self._source(self.rng.below(depth + 1))
        shown = self._some(exact(left), 3)
        one = self._made(shown, f"FROM {left_source}")
        operands = self._operands(right, right)
        others = [Column(*self._expressions.value(column.kind, operands)) for column in shown]
        other = self._made(others, f"FROM {right_source}")
        made = f"({one.sql}) {self._one(_SETS)} ({other.sql})"
        if not self._is_open and not self.rng.below(4):
            made = self._one((f"({made}) {self._one(_SETS)} ({one.sql})", f"({other.sql}) {self._one(_SETS)} ({made})"))
        return Relation(made, one.columns)

    def _distinct(self, depth: int) -> Relation:
        source, columns = self._source(depth)
        return self._made(self._some(exact(columns), _DISTINCT_COLUMNS_MAX), f"FROM {source}", "SELECT DISTINCT")

    def _top(self, depth: int) -> Relation:
        source, columns = self._source(depth)
        shown = columns if self._is_open and columns else exact(columns)
        offset = f" OFFSET {1 + self.rng.below(2)}" if not self.rng.below(4) else ""
        made = self._made(shown, f"FROM {source}")
        order = self._order(self._some(made.columns, 1) if self._is_open else made.columns)
        operands = self._operands(made.columns)
        if len(operands) > len(made.columns):
            order = f"{self._expressions.value('whole', operands)[0]}, {order}"
        top = f"{made.sql} ORDER BY {order} LIMIT {1 + self.rng.below(5)}{offset}"
        if self.rng.below(4):
            return Relation(top, made.columns)
        cut = self._one(("OFFSET 1", "LIMIT 2 OFFSET 1", "LIMIT 2"))
        if self._is_open or self.rng.below(2):
            return Relation(f"SELECT * FROM ({top}) {cut}", made.columns)
        alias = self._alias()
        below = [Column(f"{alias}.{column.name}", column.kind) for column in made.columns]
        values = [*below, *self._expressions.several(self._operands(below), 2)]
        between = self._made(values, f"FROM ({top}) AS {alias}")
        return Relation(f"{between.sql} {cut}", between.columns)

    def _session(self, depth: int) -> Relation:
        source, columns = self._source(depth)
        time, gap = self._expressions.value("time", columns)[0], self._one(("4 seconds", "10 minutes"))
        keys = [column for column in self._some(exact(columns), 2) if self.rng.below(3)]
        values = [self._expressions.aggregate(columns) for _ in range(1 + self.rng.below(3))]
        names = dict.fromkeys([*(key.name for key in keys), f"session_window({time}, '{gap}')"])
        shown = [*keys, Column("session_window.end", "time"), *values]
        return self._made(shown, f"FROM {source} GROUP BY {', '.join(names)}")

    def _explode(self, depth: int) -> Relation:
        source, columns = self._source(depth)
        operands = self._operands(columns)
        first, second = (self._expressions.value("whole", operands)[0] for _ in range(2))
        outer = self._one(("", "OUTER "))
        elements = self._one((f"array({first}, {second})", f"filter(array({first}, {second}), e -> e > 1)"))
        element = self._alias("e")
        view = f"LATERAL VIEW {outer}explode({elements}) AS {element}"
        shown = [*self._some(columns, 3), Column(element, "whole")]
        return self._made(shown, f"FROM {source} {view}")


def _as_bigint(column: Column) -> str:
    return f"CAST({column.name} AS BIGINT)" if column.kind == "whole" else column.name
