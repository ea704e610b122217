"""Random views of joins, against Spark's own answers after each transaction.

The queries of `tests.kit.queries` do not fail, and few of their stages are joins only. These are the opposite:

    inputs      tables, filtered, computed, united, grouped, ranked, cut or exploded; constants; joins
    keys        of every kind: NULL, NaN, -0.0, decimals of other scales, binary, structs, texts with a collation; `<=>`
    conditions  on both sides or on one, also of outer joins
    failures    a condition or a column that fails for some rows or pairs of rows

A view may fail where Spark's query fails, and is then dropped. It must not fail elsewhere. A step computes with the
rows before and after the transaction, so the query may fail for either. It also counts if Spark's query only fails over
tables whose rows the optimizer does not see: it removes a join with a table that it sees to be empty. Nor does the
order of the rows matter: a semi join stops at the first match, and does not evaluate its condition for later rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException

from evertide.errors import InvalidInput, ViewFailed
from evertide.flow import Circuit
from tests.kit.compare import compare
from tests.kit.ledger import Transaction
from tests.kit.oracle import Content, Reference, read_types
from tests.kit.runtime import RandomStream
from tests.kit.transactions import random_transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_ORDERS = 30
"""In so many orders of the rows a query is asked before its failure counts as needless."""

_REST = "b BINARY, f FLOAT, p STRUCT<f: INT, g: STRING>, v INT, w ARRAY<INT>"
TABLES = f"""
CREATE TABLE r (k INT, x DOUBLE, d DECIMAL(6, 2), t STRING, {_REST});
CREATE TABLE s (id BIGINT NOT NULL, k INT, x DOUBLE, d DECIMAL(8, 3), t STRING, {_REST}, PRIMARY KEY (id));
CREATE TABLE u (k BIGINT NOT NULL, x DOUBLE, d DECIMAL(6, 2), t STRING COLLATE UTF8_LCASE, {_REST});
"""
_COLUMNS = ("k", "x", "d", "t", "b", "f", "p", "v", "w")
_ALL = ", ".join(_COLUMNS)
_ORDER = f"{_ALL}, CAST(t AS BINARY)"
"""Equal texts of a table with a collation differ in their bytes."""
_POOLS = {
    "k": (0, 1, 2, 3, 7),
    "r.k": (0, 1, 2, 3, None),
    "s.k": (0, 1, 2, None),
    "v": (0, 1, 2, 3, 7, None),
    "w": ([], [1], [2, 1], [None, 3], None),
}
_TYPES = {"k": "BIGINT", "d": "DECIMAL(8, 3)", "t": "STRING", "v": "INT"}
_GROUPED = {"t": "CAST(t AS STRING)"}
"""Spark's `max` returns any of the texts that are equal under a collation."""
_EQUAL = ("{0}.k {2} {1}.k",) * 4 + (
    *(f"{{0}}.{name} {{2}} {{1}}.{name}" for name in "xdbfp"),
    "{0}.k + 1 {2} {1}.k",
    "{0}.x {2} {1}.f",
    "CAST({0}.t AS STRING) {2} CAST({1}.t AS STRING)",
    "{0}.t COLLATE UTF8_LCASE {2} {1}.t COLLATE UTF8_LCASE",
)
_CONDITIONS = (
    "{0}.v > 1",
    "{1}.v <= 2",
    "{0}.x IS NULL",
    "{0}.v < {1}.v",
    "{0}.v BETWEEN {1}.v AND {1}.v + 1",
    "({0}.k = 1 OR {1}.k = 2)",
)
_FAILING = ("{0}.v - 2", "{0}.v - 9", "{1}.v - 2", "{1}.v - 9", "{0}.v + {1}.v - 7", "{0}.k - {1}.v + 5")
"""As divisors: those with 9 are never 0."""
_FILTERS = ("v > 0", "k IS NOT NULL", "v <> 2 OR v IS NULL", "x = x")
_WHERES = (
    "{0}.v IS NULL",
    "coalesce({0}.v, 0) < 3",
    "{0}.v <> {1}.v OR {1}.v IS NULL",
    "coalesce({0}.k, {1}.k) = 1",
    "EXISTS (SELECT 1 FROM u WHERE u.k = {0}.k)",
    "{0}.v NOT IN (SELECT v FROM s WHERE v > 2)",
)
_VALUES = (
    *("{0}.v",) * 4,
    "{0}.v + coalesce({1}.v, 1)",
    "10 div coalesce({0}.v, 1)",
    "10 div (coalesce({0}.v, 4) + 1)",
    "if({0}.v + {1}.v = 14, CAST(raise_error('x') AS INT), 3)",
)
_CONSTANTS = """SELECT k, CAST(k AS DOUBLE) AS x, CAST(k AS DECIMAL(6, 2)) AS d, w AS t, CAST('a' AS BINARY) AS b,
CAST(NULL AS FLOAT) AS f, CAST(NULL AS STRUCT<f: INT, g: STRING>) AS p, k AS v, array(k) AS w
FROM VALUES (0, 'a'), (1, ''), (2, NULL), (NULL, 'b'), (1, '') AS c(k, w)"""
_INNER, _OUTER, _HALF = ("JOIN",), ("LEFT JOIN", "RIGHT JOIN", "FULL JOIN"), ("LEFT SEMI JOIN", "LEFT ANTI JOIN")


class _Joins:
    def __init__(self, chance: RandomStream) -> None:
        self._chance = chance
        self._aliases = 0

    def view(self) -> str:
        joined = self._join(depth=1)
        explode = f"LATERAL VIEW {self._one(('', 'OUTER '))}explode(w) AS e"
        copies = f"m a {self._one(('JOIN', 'LEFT JOIN'))} m b ON a.k = b.k AND a.v < b.v"
        return self._one(
            (
                *(joined,) * 6,
                f"({joined}) UNION ALL ({self._join(depth=1)})",
                f"SELECT k, count(*) AS n, sum(v) AS v, max(x) AS x FROM ({joined}) GROUP BY k",
                f"SELECT k, v, e FROM ({joined}) {explode}",
                f"WITH m AS ({joined}) SELECT a.k, a.v, b.x FROM {copies}",
            )
        )

    def _one(self, choices: Sequence[T]) -> T:
        return choices[self._chance.below(len(choices))]

    def _alias(self) -> str:
        self._aliases += 1
        return f"q{self._aliases}"

    def _table(self) -> str:
        return f"SELECT {_ALL} FROM {self._one('rsu')}"

    def _input(self, depth: int) -> str:
        table = self._table()
        most = ", ".join(f"max({_GROUPED.get(name, name)}) AS {name}" for name in _COLUMNS if name not in "kv")
        rank = f"CAST(row_number() OVER (PARTITION BY k ORDER BY {_ORDER}) AS INT)"
        explode = f"LATERAL VIEW {self._one(('', 'OUTER '))}explode(w) AS e"
        return self._one(
            (
                *(table,) * 8,
                *(f"SELECT {_ALL} FROM ({table}) WHERE {self._one(_FILTERS)}",) * 2,
                f"({table}) UNION ALL ({self._table()})",
                f"SELECT k, {most}, CAST(sum(v) AS INT) AS v FROM ({table}) GROUP BY k",
                f"SELECT k, x, d, t, b, f, p, {rank} AS v, w FROM ({table})",
                f"SELECT {_ALL} FROM ({table}) ORDER BY {_ORDER} LIMIT 5",
                f"SELECT k, x, d, t, b, f, p, e AS v, w FROM ({table}) {explode}",
                f"SELECT k + 1 AS k, -x AS x, d, upper(t) AS t, b, f, p, v, w FROM ({table})",
                _CONSTANTS,
                self._join(depth=0) if depth else table,
            )
        )

    def _join(self, *, depth: int) -> str:
        count = 2 + self._chance.below(3) * depth
        seen = [self._alias()]
        source, outers = f"({self._input(depth)}) {seen[0]}", 0
        for _ in range(count - 1):
            kinds = _INNER * 3 + (_OUTER if not outers or not self._chance.below(5) else ()) + _HALF * (count > 2)
            kind, alias = self._one(kinds), self._alias()
            outers += kind in _OUTER
            source += f" {kind} ({self._input(depth)}) {alias} ON {self._condition(self._one(seen), alias)}"
            seen += [] if kind in _HALF else [alias]
        where = f" WHERE {self._one(_WHERES).format(self._one(seen), self._one(seen))}"
        return f"SELECT {self._columns(seen)} FROM {source}{self._one(('', '', '', where))}"

    def _condition(self, left: str, right: str) -> str:
        parts = [self._one(_EQUAL) for _ in range(self._one((0, 1, 1, 1, 1, 2)))]
        parts += [self._one(_CONDITIONS) for _ in range(self._one((0, 0, 0, 1, 1, 2)))]
        if not self._chance.below(6):
            parts.append(f"(6 div ({self._one(_FAILING)})) >= 0")
        filled = [part.format(left, right, self._one(("=", "=", "=", "<=>"))) for part in parts]
        return " AND ".join(filled) or "true"

    def _columns(self, seen: Sequence[str]) -> str:
        values = {name: f"{self._one(seen)}.{name}" for name in _COLUMNS}
        values["v"] = self._one(_VALUES).format(self._one(seen), self._one(seen))
        values |= {name: f"CAST({values[name]} AS {kind})" for name, kind in _TYPES.items()}
        return ", ".join(f"{value} AS {name}" for name, value in values.items())


def check_random_joins(spark: SparkSession, seed: int, count: int, transactions: int) -> Counter[str]:
    """Maintain `count` random views; return how many answers were compared, and how many views were dropped."""
    joins, circuit = _Joins(RandomStream(seed)), Circuit(spark, TABLES)
    reference = Reference(spark, circuit.tables, types=read_types(circuit.program))
    queries: dict[str, str] = {}
    while len(queries) < count:
        query = joins.view()
        if _ask(reference.by_spark, query) is not None and _is_maintained(spark, query):
            queries[f"v{len(queries)}"] = query
    given = random_transactions(
        circuit.tables, seed, keys={"s": ["id"]}, pools=_POOLS, count=transactions, rows_each=6, rows_huge=20
    )
    return check_joins(spark, queries, given, f"seed {seed}")


def check_joins(
    spark: SparkSession, queries: Mapping[str, str], given: Iterable[Transaction], where: str
) -> Counter[str]:
    """Maintain views over `TABLES`; return how many answers were compared, and how many views were dropped."""
    made = "".join(f"CREATE MATERIALIZED VIEW {name} AS {query};\n" for name, query in queries.items())
    circuit = Circuit(spark, TABLES + made)
    before, reference = (Reference(spark, circuit.tables, types=read_types(circuit.program)) for _ in range(2))
    contents = {name: Content(circuit.views[name], f"view {name}") for name in queries}
    found: Counter[str] = Counter()
    for number, deltas in enumerate(given):
        reference.apply(deltas)
        expected = {name: _ask(reference.by_spark, queries[name]) for name in circuit.views}
        at = f"{where}, transaction {number}"
        answered = {name: queries[name] for name, answer in expected.items() if answer is not None}
        for name, delta in _step(circuit, deltas, (before, reference), answered, at).items():
            contents[name].apply(delta)
            compare(contents[name].rows, expected[name], where=f"{at}, view {name}: {queries[name]}")
            found["compared"] += 1
        before.apply(deltas)
        found["failed"] = len(queries) - len(circuit.views)
    return found


def _ask(answer: Callable[[str], pa.Table], query: str) -> pa.Table | None:
    """Spark's answer; None if it has none."""
    try:
        return answer(query)
    except PySparkException:
        return None


def _is_maintained(spark: SparkSession, query: str) -> bool:
    """Whether the query is not refused: a collation makes some ambiguous."""
    try:
        Circuit(spark, f"{TABLES} CREATE MATERIALIZED VIEW v AS {query};")
    except InvalidInput:
        return False
    return True


def _step(
    circuit: Circuit, deltas: Transaction, references: Iterable[Reference], answered: Mapping[str, str], where: str
) -> dict[str, pa.Table]:
    """Step the circuit. Drop the views that fail, and those that are not in `answered`, which has the queries that
    Spark answers. `references` have the rows before and after the transaction."""
    while circuit.views:
        try:
            found = circuit.step(deltas)
        except ViewFailed as error:
            failed = [answered[name] for name in error.views if name in answered]
            needless = [query for query in failed if not _may_fail(references, query)]
            if needless:
                raise AssertionError(f"{where}: {error}\n{needless}") from error
            circuit.drop(error.views)
        else:
            circuit.drop([name for name in found if name not in answered])
            return {name: found[name] for name in circuit.views}
    return {}


def _may_fail(references: Iterable[Reference], query: str) -> bool:
    """Whether Spark's query fails before or after the transaction, for the rows in some order."""
    chance = RandomStream(0)
    orders = (None, *(chance,) * _ORDERS)
    return any(
        _ask(partial(reference.by_spark_over_unseen_rows, shuffle=order), query) is None
        for order in orders
        for reference in references
    )
