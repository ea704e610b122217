"""Random aggregates of joins over the tables of `tests.flow.test_condensed`, none of which fails in Spark.

Arguments of every type are counted, added up, compared and made distinct, with and without FILTER, with no key, one or
several, and above every kind of join. Some arguments fail for some rows, and are only used where FILTER excludes these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tests.kit.runtime import RandomStream

T = TypeVar("T")

_SOURCES = (
    *("r JOIN s ON r.k = s.k",) * 3,
    "r LEFT JOIN s ON r.k = s.k",
    "r RIGHT JOIN s ON r.k = s.k AND r.i < s.j",
    "r FULL JOIN s ON r.k = s.k",
    "r JOIN s ON r.k < s.k",
    "r JOIN s ON r.k <=> s.k",
    "(SELECT * FROM r WHERE i > 0 UNION ALL SELECT * FROM r WHERE x > 0) r JOIN s ON r.k = s.k",
    "r JOIN (SELECT k, sum(j) AS j, max(c) AS c, max(p) AS p FROM s GROUP BY k) s ON r.k = s.k",
    "r JOIN s ON r.k = s.k JOIN (SELECT k AS other, x AS far FROM r) q ON q.other = s.k",
)
_COLUMNS = ("b", "h", "i", "x", "y", "d", "e", "f", "w", "v", "c", "j", "p")
_SMALL = ("b", "h", "i", "x", "y", "d", "e", "j", "p")
_COMPUTED = (
    "-{}",
    "if({} > 0, 1, NULL)",
    "coalesce({}, 1)",
    "CAST({} AS DOUBLE)",
    "CAST({} AS DECIMAL(30, 4))",
)
_GUARDED = (
    ("-b", "b > -128"),
    ("100 div j", "j <> 0"),
    ("100 / d", "d <> 0"),
    ("CAST(r.l AS INT)", "r.l < 1000"),
    ("CAST(x AS INT)", "x BETWEEN -9 AND 9"),
)
"""Arguments that fail for rows that do not meet the condition."""
_CONDITIONS = ("{} > 0", "{} IS NULL", "{} <= 0", "{} = 1")
_KEYS = ((), ("g",), ("g",), ("g",), ("r.k",), ("g", "x"), ("y",), ("x",), ("d",), ("r.t",), ("g", "i > 0"))
_WHERES = ("", "", "", " WHERE x IS NOT NULL", " WHERE i > 0 OR y < 0")


def random_aggregates(seed: int, count: int) -> dict[str, str]:
    """Queries by name."""
    made = _Aggregates(RandomStream(seed))
    return {f"v{at}": made.query() for at in range(count)}


class _Aggregates:
    def __init__(self, chance: RandomStream) -> None:
        self._chance = chance

    def query(self) -> str:
        keys = self._one(_KEYS)
        columns = [f"{key} AS k{at}" for at, key in enumerate(keys)]
        columns += [f"{self._function()} AS a{at}" for at in range(1 + self._chance.below(5))]
        form = self._one(("{}", "{}", "{}", "CUBE ({})", "ROLLUP ({})"))
        grouped = f" GROUP BY {form.format(', '.join(keys))}" if keys else ""
        having = self._one(("", "", "", " HAVING count(*) > 1"))
        return f"SELECT {', '.join(columns)} FROM {self._one(_SOURCES)}{self._one(_WHERES)}{grouped}{having}"

    def _one(self, choices: Sequence[T]) -> T:
        return choices[self._chance.below(len(choices))]

    def _function(self) -> str:
        if not self._chance.below(5):
            argument, condition = self._one(_GUARDED)
            return f"{self._aggregate(argument)} FILTER (WHERE {condition})"
        function = self._one((self._aggregate(self._argument()),) * 3 + (self._other(),))
        condition = self._one(_CONDITIONS).format(self._one(_SMALL))
        return function if self._chance.below(5) else f"{function} FILTER (WHERE {condition})"

    def _argument(self) -> str:
        column = self._one(_COLUMNS)
        if self._chance.below(3):
            return column
        computed = self._one(_COMPUTED)
        return computed.format(self._one("dexyp") if computed == "-{}" else self._one(_SMALL))

    def _aggregate(self, argument: str) -> str:
        return self._one(("sum({})", "sum({})", "avg({})", "avg({})", "count({})", "min({})", "max({})")).format(
            argument
        )

    def _other(self) -> str:
        small, other = self._one(_SMALL), self._one(_SMALL)
        pair = f"{small}, {other}"
        return self._one(
            (
                *("count(*)", "try_sum(r.l)", "try_avg(r.l)", "max(r.t)", f"count({pair})", f"bool_and({small} > 0)"),
                *(f"count(DISTINCT {self._argument()})", f"sum(DISTINCT {small})", f"count(DISTINCT {pair})"),
                *(f"stddev({small})", f"var_pop({small})"),
                *(f"corr({pair})", f"covar_pop({pair})", f"regr_slope({pair})"),
            )
        )
