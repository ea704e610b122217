"""Random queries of forms that both engines may answer, over the tables of `test_query_translation`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

DASHBOARD = (
    "SELECT ID, Da, one.X FROM one ORDER BY id",
    "SELECT `x` AS `a - b`, `values`.`id` FROM `one` AS `values` ORDER BY `a - b`, id",
    "SELECT x, count(*), sum(n), avg(i) AS mean FROM one WHERE i < 100 GROUP BY x ORDER BY 2 DESC, x LIMIT 5",
    "SELECT date_trunc('week', ts) AS week, count(*) AS n FROM one WHERE ts >= '1970-01-01' GROUP BY 1 ORDER BY week",
    "SELECT year(da) AS y, hour(ts) AS h, CAST(ts AS DATE) AS d, extract(month FROM nt) AS m, id FROM one ORDER BY id",
    "SELECT * FROM one p LEFT JOIN two q USING (X, n)",
    "SELECT n, p.n, q.n, P.ID FROM one p JOIN two q USING (n)",
    "SELECT n % 2 AS k, sum(n) AS c FROM one GROUP BY 1 HAVING c > 0 AND k = 1",
    "WITH one AS (SELECT id AS q FROM two) SELECT * FROM one",
    "WITH w(a, c) AS (SELECT id, x FROM one) SELECT c, a FROM w WHERE a < 3",
    "SELECT (SELECT count(*) FROM two) AS c, (SELECT max(x) FROM none) AS m, 1.50 AS d, -5 AS f, 3000000000 AS g",
    "SELECT count(*) FROM one o WHERE EXISTS (SELECT * FROM two t WHERE t.n = o.n AND t.id > o.id)",
    "SELECT count(*) FROM one WHERE x NOT IN (SELECT x FROM two)",
    "SELECT x FROM one UNION SELECT x FROM two INTERSECT SELECT x FROM none",
    "SELECT a.id FROM one a JOIN (two b JOIN two c ON b.id = c.id) ON a.id = b.id",
    "SELECT n AS x FROM one ORDER BY one.x, id",
    "SELECT sum(m * n) AS a, sum(w) AS b, sum(m) * 2 AS c, min(m) - max(m) AS d, min(d) AS e FROM one WHERE d > 0",
    "SELECT x, count(*) FILTER (WHERE n > 1) AS c, avg(n) FILTER (WHERE b) AS a FROM one GROUP BY x",
    "SELECT CASE n WHEN 1 THEN 'one' ELSE 'more' END AS k, count(DISTINCT x) FROM one GROUP BY k",
)
"""Queries that DuckDB must answer."""
DIFFERENT = (
    *("CAST(1.5 AS INT)", "CAST(2.7e0 AS BIGINT)", "concat('a', NULL)", "log(100.0)", "1.0 / 3", "2 ^ 3", "avg(1.25)"),
    *("dayofweek(DATE '2024-02-29')", "regexp_replace('aa', 'a', 'b')", "substr('abc', 0, 2)", "'a\\\\b'", "hash('a')"),
    *("DATE '2024-01-02' - DATE '2024-01-01'", "floor(1.5e0)", "round(2.345, 2) / 2", "CAST(1e20 AS STRING)"),
    *("CAST(1.50 AS DECIMAL)", "instr('abc', 'c')", "DATE '2024-01-31' + INTERVAL 1 MONTH", "sum(9223372036854775808)"),
)
"""Without a table: the two engines give different results."""
UNSURE = (
    *(
        "SELECT n + 1 FROM one",
        "SELECT 'a' FROM one",
        "SELECT sum(n) + 1 FROM one",
        "SELECT n AS a, a + 1 AS c FROM one",
    ),
    *(
        "SELECT n AS k FROM one WHERE k > 1",
        "SELECT id AS n, count(*) AS c FROM one GROUP BY n",
        "SELECT a.id FROM one",
    ),
    *("SELECT id FROM one JOIN two ON one.n = two.n", "SELECT sum(n) AS n FROM one GROUP BY x ORDER BY n + 1"),
    *("SELECT sum(d) FROM one", "SELECT avg(d) FROM one", "SELECT avg(m) FROM one", "SELECT d FROM one GROUP BY d"),
    *("SELECT DISTINCT f FROM one", "SELECT d FROM one UNION SELECT d FROM two", "SELECT count(DISTINCT d) FROM one"),
    *("SELECT n FROM one UNION ALL SELECT i FROM one", "SELECT l FROM one EXCEPT ALL SELECT l FROM two"),
    *("SELECT id FROM one WHERE x > 5", "SELECT id FROM one WHERE d = '1'", "SELECT id FROM one WHERE da = '2024-2-9'"),
    *(
        "SELECT id FROM one WHERE n < 99999999999999999999.9",
        "SELECT f > 1 AS a FROM one",
        "SELECT w + d AS a FROM one",
    ),
    *(
        'SELECT "x" AS a FROM one',
        "SELECT `x``y` FROM one",
        "SELECT `é` FROM one",
        "SELECT `x`'a' FROM one",
        "SELECT 'a\\n' AS a FROM one",
        "SELECT 1L AS a",
        "SELECT 0x1F AS a",
    ),
    *("SELECT id -- all\nFROM one", "SELECT /*+ BROADCAST(one) */ id FROM one", "SELECT id FROM one # all"),
    *("SELECT 'a' 'b' AS a", "SELECT DATE'2024-01-01' AS a", "SELECT E'a' AS a", "SELECT id FROM one;;"),
    *("SELECT id, FROM one", "FROM one", "FROM one SELECT id", "SELECT * FROM (FROM one)", "VALUES (1)"),
    *(
        "SELECT id FROM one WHERE b = n IN (1)",
        "SELECT x || n + 1 AS a FROM one",
        "SELECT (n = 1) IS NULL AS a FROM one",
    ),
    *(
        "SELECT x ILIKE 'A' AS a FROM one",
        "SELECT x LIKE x AS a FROM one",
        "SELECT x LIKE 'a' ESCAPE 'a' AS a FROM one",
    ),
    *("SELECT id FROM one QUALIFY row_number() OVER (ORDER BY id) = 1", "SELECT row_number() OVER () AS a FROM one"),
    *("SELECT DISTINCT ON (n) n, id FROM one", "SELECT count(DISTINCT n, x) FROM one", "SELECT first(n) AS a FROM one"),
    *(
        "SELECT id FROM one LIMIT 10%",
        "SELECT id FROM one LIMIT n",
        "SELECT n FROM one GROUP BY ALL",
        "SELECT any_value(n) AS a FROM one",
    ),
    *(
        "SELECT n, x FROM one GROUP BY ROLLUP (n, x)",
        "SELECT id FROM one TABLESAMPLE 10%",
        "SELECT id FROM one ORDER BY ALL",
    ),
    *(
        "SELECT * EXCLUDE (id) FROM one",
        "SELECT * FROM one NATURAL JOIN two",
        "SELECT x FROM one SEMI JOIN two USING (x)",
    ),
    *("SELECT * FROM one FULL JOIN two USING (n)", "SELECT p.id FROM one p ASOF JOIN two q ON p.id >= q.id"),
    *(
        "SELECT (SELECT max(n) FROM two WHERE two.id = one.id) AS a FROM one",
        "SELECT id IN (SELECT id FROM two) AS a FROM one",
    ),
    *(
        "SELECT NULL AS a",
        "SELECT now() AS a",
        "SELECT current_date AS a",
        "SELECT random() AS a",
        "SELECT CAST(x AS INT) AS a FROM one",
    ),
    *(
        "SELECT TRY_CAST(x AS INT) AS a FROM one",
        "SELECT CAST(d AS STRING) AS a FROM one",
        "SELECT da + 1 AS a FROM one",
    ),
    *(
        "SELECT substring(x, -2, 1) AS a FROM one",
        "SELECT round(d) AS a FROM one",
        "SELECT (n, x) = (1, 'a') AS a FROM one",
    ),
    *(
        "SELECT count() FROM one",
        "SELECT CAST(n AS INT8) AS a FROM one",
        "SELECT sum(n ORDER BY id) AS a FROM one",
        "SELECT $1 AS a",
        "SELECT x: 1 FROM one",
    ),
    *("WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM r WHERE a < 3) SELECT * FROM r",),
    "SELECT " + "nullif(" * 40 + "n" + ", 1)" * 40 + " AS a FROM one",
    "SELECT " + "(" * 3000 + "1" + ")" * 3000 + " AS a",
)
"""Queries not known to agree, such as those that only one engine accepts."""
FAILING = (
    *(
        "SELECT sum(l) FROM one WHERE l > 0",
        "SELECT i + i AS a FROM one",
        "SELECT t * t AS a FROM one",
        "SELECT abs(l) AS a FROM one",
    ),
    *(
        "SELECT n / n AS a FROM one",
        "SELECT d / d AS a FROM one",
        "SELECT n % n AS a FROM one",
        "SELECT avg(l) FROM one",
    ),
    *(
        "SELECT upper(x) AS a FROM one",
        "SELECT lower(x) AS a FROM one",
        "SELECT max(d) FROM one",
        "SELECT n FROM one WHERE n = (SELECT n FROM two)",
    ),
    *(
        "SELECT CAST(i AS TINYINT) AS a FROM one",
        "SELECT CAST(w AS DECIMAL(9, 2)) AS a FROM one",
        "SELECT -t AS a FROM one",
    ),
)
ZONED = (
    *(
        "SELECT hour(ts) AS a FROM one",
        "SELECT CAST(ts AS DATE) AS a FROM one",
        "SELECT ts > '2024-01-01' AS a FROM one",
    ),
    *("SELECT date_trunc('day', ts) AS a FROM one", "SELECT date_trunc('month', da) AS a FROM one"),
    *("SELECT ts < TIMESTAMP '2024-01-01 00:00:00' AS a FROM one", "SELECT extract(year FROM ts) AS a FROM one"),
)

T = TypeVar("T")
_WHOLE = ("id", "t", "s", "i", "l", "n", "n", "n")
_KEYS = ("t", "s", "i", "l", "n", "m", "w", "x", "y", "b", "da", "nt", "ts")
_ALL = (*_KEYS, "id", "f", "d")


@dataclass(frozen=True)
class Query:
    sql: str
    is_ordered: bool = False


class Words:
    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._at = ""

    def _one(self, *values: T) -> T:
        return values[int(self._rng.integers(len(values)))]

    def _made(self, *ways: Callable[[], str]) -> str:
        return self._one(*ways)()

    def _chance(self, part: float) -> bool:
        return bool(self._rng.random() < part)

    def _column(self, *names: str) -> str:
        return self._at + self._one(*names)

    def _bracketed(self, text: str) -> str:
        """Bracket half of the expressions: without brackets, both engines must use the same precedence."""
        return f"({text})" if self._chance(0.5) else text

    def expression(self, depth: int = 3) -> str:
        kind = self._one(self.whole, self.decimal, self.real, self.text, self.condition, self.condition, self.moment)
        return kind(depth)

    def _number(self, depth: int) -> str:
        return self._one(self.whole, self.whole, self.decimal, self.real)(depth)

    def whole(self, depth: int) -> str:
        if depth <= 0:
            return self._one(self._column(*_WHOLE), self._column(*_WHOLE), self._one("0", "1", "7", "-3", "3000000000"))
        a, b = self.whole(depth - 1), self.whole(depth - 2)
        return self._made(
            lambda: self._bracketed(f"{a} {self._one('+', '-', '*', '%')} {b}"),
            lambda: f"- {a}",
            lambda: f"abs({a})",
            lambda: f"length({self.text(depth - 1)})",
            lambda: f"coalesce({a}, {b})",
            lambda: self._case(a, b, depth),
            lambda: f"CAST({a} AS {self._one('BIGINT', 'INT', 'SMALLINT', 'TINYINT')})",
            lambda: f"CAST({self.condition(depth - 1)} AS INT)",
            lambda: f"nullif({a}, {b})",
            lambda: f"{self._one('least', 'greatest')}({a}, {b})",
            lambda: f"{self._one('year', 'month', 'day', 'quarter')}({self.moment(depth - 1)})",
            lambda: f"{self._one('hour', 'minute', 'second')}({self._column('nt', 'ts')})",
            lambda: f"extract({self._one('year', 'month', 'day')} FROM {self._column('da', 'nt')})",
        )

    def decimal(self, depth: int) -> str:
        if depth <= 0:
            return self._one(self._column("m", "w"), self._one("1.25", "0.5", "-2.50", ".5", "100.00", "0.001"))
        a, b = self.decimal(depth - 1), self._one(self.decimal, self.whole)(depth - 2)
        return self._made(
            lambda: self._bracketed(f"{a} {self._one('+', '-', '*')} {b}"),
            lambda: self._bracketed(f"{b} {self._one('+', '-', '*')} {a}"),
            lambda: f"coalesce({a}, {b})",
            lambda: f"CAST({b} AS DECIMAL({self._one('12, 3', '20, 1', '38, 0', '30, 10', '9')}))",
            lambda: self._case(a, b, depth),
            lambda: f"abs({a})",
            lambda: f"- {a}",
            lambda: f"{self._one('least', 'greatest')}({a}, {b})",
        )

    def real(self, depth: int) -> str:
        if depth <= 0:
            return self._one(self._column("d", "f"), self._column("d"), self._one("1e2", "2.5e-3", "0e0"))
        a, b = self.real(depth - 1), self._number(depth - 2)
        return self._made(
            lambda: self._bracketed(f"{a} {self._one('+', '-', '*', '/')} {b}"),
            lambda: f"{self.whole(depth - 1)} / {self.whole(depth - 2)}",
            lambda: f"coalesce({a}, {b})",
            lambda: f"CAST({self._number(depth - 1)} AS DOUBLE)",
            lambda: self._case(a, b, depth),
            lambda: f"abs({a})",
            lambda: f"- {a}",
        )

    def text(self, depth: int) -> str:
        if depth <= 0:
            return self._one(self._column("x"), self._column("x"), self._one("'ann'", "''", "'é''%'"))
        a, b = self.text(depth - 1), self.text(depth - 2)
        return self._made(
            lambda: self._bracketed(f"{a} || {b}"),
            lambda: f"concat({a}, {b}, 'z')",
            lambda: f"{self._one('upper', 'lower', 'trim', 'ltrim', 'rtrim')}({a})",
            lambda: f"substring({a}, {self._one('1', '2', '4')}, {self._one('0', '1', '3')})",
            lambda: f"substr({a}, {self._one('1', '3')})",
            lambda: f"coalesce({a}, {b})",
            lambda: f"CAST({self._one(self.whole, self.condition)(depth - 1)} AS STRING)",
            lambda: self._case(a, b, depth),
            lambda: f"nullif({a}, {b})",
        )

    def moment(self, depth: int) -> str:
        if depth <= 0:
            return self._one(self._column("da"), self._column("nt"), "DATE '2024-02-29'", "DATE '1600-01-01'")
        return self._made(
            lambda: self.moment(0),
            lambda: f"CAST({self._column('nt')} AS DATE)",
            lambda: f"coalesce({self._column('da')}, DATE '2000-01-01')",
            lambda: self._case(self._column("ts"), self._column("ts"), depth),
            lambda: f"CAST({self._column('ts')} AS DATE)",
            lambda: (
                f"date_trunc('{self._one('year', 'QUARTER', 'week', 'day', 'hour')}', {self._column('ts', 'nt', 'da')})"
            ),
        )

    def _case(self, a: str, b: str, depth: int) -> str:
        when = self.condition(depth - 1)
        other = self._one(f" ELSE {b}", "")
        return self._one(f"CASE WHEN {when} THEN {a}{other} END", f"if({when}, {a}, {b})")

    def condition(self, depth: int) -> str:
        if depth <= 0:
            return self._one(self._column("b"), f"{self._column(*_ALL)} IS NULL", "TRUE")
        sign = self._one("=", "<>", "<", "<=", ">", ">=", "!=", "==", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
        kind = self._one(self._number, self.text)
        a, b = kind(depth - 1), kind(depth - 2)
        return self._made(
            lambda: self._bracketed(f"{a} {sign} {b}"),
            lambda: self._bracketed(f"{self._column('d', 'f')} {sign} {self._one('d', 'f', '1.5', '0', '100')}"),
            lambda: f"{self._column('y', 'b', 'nt', 'ts', 'da')} IS {self._one('', 'NOT ')}NULL",
            lambda: self._bracketed(self._same(sign)),
            lambda: f"{self._column('da', 'nt')} {sign} '2024-02-29'",
            lambda: f"{self._column('nt', 'ts')} {sign} '1970-01-01 00:00:00'",
            lambda: f"{self._column('ts')} {sign} TIMESTAMP '2024-02-29 10:30:15.123456'",
            lambda: f"{a} {self._one('', 'NOT ')}IN ({b}, {kind(0)})",
            lambda: f"{a} {self._one('', 'NOT ')}BETWEEN {b} AND {kind(0)}",
            lambda: (
                f"{self.text(depth - 1)} {self._one('', 'NOT ')}LIKE '{self._one('a%', '%b', '_', '%', 'a_b', '%é%')}'"
            ),
            lambda: f"{self._bracketed(a)} IS NULL",
            lambda: self._bracketed(
                f"{self.condition(depth - 1)} {self._one('AND', 'OR')} {self.condition(depth - 2)}"
            ),
            lambda: f"NOT {self.condition(depth - 1)}",
        )

    def _same(self, sign: str) -> str:
        name = self._one("y", "b", "nt", "ts", "da")
        return f"{self._column(name)} {sign} {self._column(name)}"

    def query(self) -> Query:
        self._at = ""
        made = self._one(self._rows, self._grouped, self._joined, self._set, self._shared, self._distinct, self._within)
        return made()

    def _table(self) -> str:
        return self._one("one", "one", "two", "none")

    def _where(self) -> str:
        return f" WHERE {self.condition(2)}" if self._chance(0.6) else ""

    def _rows(self) -> Query:
        columns = self._one("*", f"ID, {self.expression(2)} AS e", "id, x AS name, d AS i")
        keys = ", ".join(f"{self._column('d', 'f', 'x', 'l', 'ts', 'b')}{self._way()}" for _ in range(2))
        limit = self._one("", " LIMIT 7", " LIMIT 5 OFFSET 3")
        sql = f"SELECT {columns} FROM {self._table()} AS o{self._where()} ORDER BY {keys}, o.id{limit}"
        return Query(sql, is_ordered=True)

    def _way(self) -> str:
        return self._one("", " ASC", " DESC", " DESC NULLS FIRST", " NULLS LAST")

    def _aggregate(self) -> str:
        whole = self._column(*_WHOLE)
        return self._made(
            lambda: "count(*)",
            lambda: f"count({self._column(*_ALL)})",
            lambda: f"count(DISTINCT {self._column(*_KEYS)})",
            lambda: f"sum({whole})",
            lambda: f"sum({self._column('m')})",
            lambda: f"avg({whole})",
            lambda: f"{self._one('min', 'max')}({self._column(*_ALL)})",
            lambda: f"sum({self.whole(1)}) AS q{self._rng.integers(1000)}",
            lambda: f"count(*) FILTER (WHERE {self.condition(1)}) AS q{self._rng.integers(1000)}",
            lambda: f"sum(CASE WHEN {self.condition(1)} THEN 1 ELSE 0 END) AS q{self._rng.integers(1000)}",
            lambda: f"max({self.expression(1)}) AS q{self._rng.integers(1000)}",
            lambda: f"sum(n) * 2 - count(*) AS q{self._rng.integers(1000)}",
        )

    def _grouped(self) -> Query:
        keys = [self._column(*_KEYS) for _ in range(int(self._rng.integers(0, 3)))]
        columns = ", ".join([*keys, *(self._aggregate() for _ in range(3)), "sum(n) AS total"])
        sql = f"SELECT {columns} FROM {self._table()}{self._where()}"
        if not keys:
            return Query(sql)
        sql += " GROUP BY " + self._one(", ".join(keys), ", ".join(str(at + 1) for at in range(len(keys))))
        sql += self._one("", " HAVING count(*) > 1", " HAVING total > 2", " HAVING sum(n) IS NOT NULL")
        sql += self._one("", f" ORDER BY total{self._way()}, {', '.join(keys)}", " ORDER BY count(*) DESC, 1")
        return Query(sql)

    def _joined(self) -> Query:
        kind = self._one("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "INNER JOIN", "FULL OUTER JOIN")
        key = self._one("id", "n", "x", "da", "m", "b", "d", "l")
        on = self._one(f"ON p.{key} = q.{key}", f"ON p.{key} = q.{key} AND p.n < q.n", f"USING ({key})", "ON p.i = q.l")
        columns = self._one("p.id, q.id AS other, p.x, q.d", "p.*, q.n AS m2", f"{key}, p.n")
        if "USING" not in on:
            columns = columns.replace(f"{key}, p.n", f"p.{key}, p.n")
        self._at = "p."
        where = self._where()
        comma = f"SELECT p.id, q.id AS other FROM one p, two q WHERE p.{key} = q.{key}"
        return Query(self._one(f"SELECT {columns} FROM one p {kind} two AS q {on}{where}", comma))

    def _set(self) -> Query:
        columns = self._one("x, n", "id, l", "da, m AS v", "b, y")
        kind = self._one("UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT")
        parts = [f"SELECT {columns} FROM {self._table()}{self._where()}" for _ in range(int(self._rng.integers(2, 4)))]
        text = f" {kind} ".join(parts)
        if self._chance(0.3):
            text = f"{parts[0]} UNION {parts[1]} {kind} {parts[-1]}"
        return Query(text + self._one("", " ORDER BY 1, 2"))

    def _shared(self) -> Query:
        inner = self._grouped().sql
        first = f"WITH g AS (SELECT x, sum(n) AS total, count(*) AS c FROM {self._table()}{self._where()} GROUP BY x)"
        return self._one(
            Query(f"{first} SELECT o.id, g.total FROM one o JOIN g ON o.x = g.x{self._one('', ' WHERE c > 1')}"),
            Query(f"{first}, h AS (SELECT * FROM g WHERE c > 2) SELECT h.*, total + 1 AS more FROM h"),
            Query(f"{first} SELECT count(*) AS n, max(total) AS m FROM g"),
            Query(f"SELECT count(*) AS n, sum(total) AS t FROM ({inner}) AS s"),
            Query(f"{first} SELECT a.c, b.total FROM g a JOIN g b ON a.c = b.c"),
        )

    def _distinct(self) -> Query:
        columns = self._one("x", "n, b", "l", "m, da", "ts")
        return Query(
            f"SELECT DISTINCT {columns} FROM {self._table()}{self._where()}{self._one('', ' ORDER BY 1 DESC')}"
        )

    def _within(self) -> Query:
        key = self._one("id", "n", "x", "da")
        inner = self._one("", " WHERE b", f" WHERE {key} IS NOT NULL")
        sign: Callable[[], str] = lambda: self._one("", "NOT ")  # noqa: E731
        where = self._made(
            lambda: f"{key} {sign()}IN (SELECT {key} FROM two{inner})",
            lambda: f"{sign()}EXISTS (SELECT 1 FROM two u WHERE u.{key} = o.{key})",
            lambda: f"n > (SELECT min(n) FROM two{inner})",
            lambda: f"n = (SELECT max(n) FROM none) OR {sign()}b",
        )
        extra = self._one("", ", (SELECT max(l) FROM two) AS top")
        return Query(f"SELECT id, x{extra} FROM one o WHERE {where}")
