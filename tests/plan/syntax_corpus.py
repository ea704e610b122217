"""Queries with rare syntax of Spark, and rare tokens."""

from __future__ import annotations

RARE = (
    "SELECT 1L, 2S, 3Y, 1.5BD, 2.5D, 1e3, .5, 1., 1.5e-3F, 0x, x'1F' AS b, X'00'",
    "SELECT 'it''s', 'a\\'b', r'\\d', R\"\\d\", \"double\", 'two' 'texts' FROM t",
    "SELECT `a``b`, t.`c d`, `1`.x FROM `my table` t -- a comment\n WHERE /* one /* two */ */ true",
    "SELECT a.b.c[1].d, m['k'], (x, y).x, x -> x + 1, (x, y) -> x FROM t",
    "SELECT transform(a, x -> x * 2), named_struct('a', 1).a, array(1, 2)[0], a:b.c::int, a::string FROM t",
    "FROM t SELECT a, b WHERE a > 1",
    "FROM t |> WHERE a > 1 |> EXTEND a + 1 AS b |> AGGREGATE sum(b) AS s GROUP BY a |> ORDER BY s DESC |> LIMIT 3",
    "VALUES (1, 'a'), (2, 'b') AS t(x, y)",
    "TABLE t",
    "(SELECT 1) UNION ALL (SELECT 2) EXCEPT SELECT 3 MINUS SELECT 4 INTERSECT DISTINCT SELECT 5",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
    "WITH a AS (SELECT 1), b (x) AS (SELECT * FROM a) SELECT * FROM b CROSS JOIN LATERAL (SELECT b.x + 1) AS l",
    "SELECT * FROM a NATURAL LEFT OUTER JOIN b FULL JOIN c USING (x, y) LEFT SEMI JOIN d ON a.x = d.x ANTI JOIN e",
    "SELECT * EXCEPT (a, b), t.* FROM t",
    "SELECT a, grouping(a), count(*) FROM t GROUP BY ROLLUP (a, b), CUBE (c), GROUPING SETS ((a), (), (b, c))",
    "SELECT a FROM t GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL NULLS LAST LIMIT ALL OFFSET 2",
    (
        "SELECT sum(a) FILTER (WHERE b > 1) OVER (PARTITION BY c ORDER BY d ROWS BETWEEN 1 PRECEDING AND CURRENT"
        " ROW) FROM t"
    ),
    (
        "SELECT lag(a) IGNORE NULLS OVER w, nth_value(a, 2) OVER (w RANGE UNBOUNDED PRECEDING) FROM t WINDOW w AS"
        " (ORDER BY b)"
    ),
    "SELECT a FROM t QUALIFY row_number() OVER (PARTITION BY a ORDER BY b) = 1",
    "SELECT * FROM t PIVOT (sum(x) AS s, max(y) FOR (a, b) IN ((1, 2) AS p, (3, 4)))",
    "SELECT * FROM t UNPIVOT INCLUDE NULLS (v FOR n IN (a AS 'x', b)) AS u",
    "SELECT * FROM t LATERAL VIEW OUTER explode(m) e AS k, v LATERAL VIEW posexplode(a) p",
    "SELECT * FROM range(1, 10, 2) AS r(i), LATERAL explode(array(1, 2)) AS e(x), stack(2, 1, 2)",
    (
        "SELECT * FROM t TABLESAMPLE (10 PERCENT) REPEATABLE (3) AS s, u TABLESAMPLE (5 ROWS), w TABLESAMPLE"
        " (BUCKET 1 OUT OF 4)"
    ),
    "SELECT * FROM t VERSION AS OF 3, u TIMESTAMP AS OF '2020-01-01', w FOR SYSTEM_TIME AS OF current_date",
    "SELECT CASE a WHEN 1 THEN 'x' ELSE 'y' END, CASE WHEN a IS NOT DISTINCT FROM b THEN 1 END FROM t",
    (
        "SELECT a BETWEEN SYMMETRIC 1 AND 2, a NOT IN (SELECT 1), a LIKE ANY ('x%', 'y%'), a ILIKE ALL ('z')"
        " ESCAPE '!' FROM t"
    ),
    (
        "SELECT a RLIKE 'x', a REGEXP 'y', NOT a, !b, a <=> b, a == b, a != b, a <> b, a !> b, a !< b, a DIV b, a"
        " % b FROM t"
    ),
    "SELECT a & b | c ^ ~d, a << 2, a >> 1, a >>> 1, a || b || 'c' FROM t",
    (
        "SELECT interval 3 days 2 hours, interval '1-2' year to month, INTERVAL '1 02:03:04' DAY TO SECOND,"
        " interval -1 week"
    ),
    "SELECT date '2020-01-01', timestamp '2020-01-01 00:00:00', timestamp_ntz'2020-01-01', time '10:00', -1, +2, - -3",
    (
        "SELECT cast(a AS decimal(10, 2)), cast(a AS array<map<string, struct<b: int, c: array<int>>>>),"
        " try_cast(a AS int) FROM t"
    ),
    (
        "SELECT extract(year FROM a), trim(LEADING 'x' FROM b), substring(c FROM 2 FOR 3), overlay(a PLACING 'b'"
        " FROM 2) FROM t"
    ),
    "SELECT position('a' IN b), timestampadd(HOUR, 1, c), dateadd(MONTH, 1, d), datediff(DAY, e, f) FROM t",
    (
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a DESC), listagg(DISTINCT a, ',') WITHIN GROUP (ORDER"
        " BY a) FROM t"
    ),
    "SELECT first(a) IGNORE NULLS, any_value(b), mode(a, true), count(DISTINCT a, b), count(*), f(x => 1) FROM t",
    "SELECT a COLLATE UTF8_LCASE, current_date, current_timestamp(), user FROM t",
    "SELECT ?, :name, IDENTIFIER('a.b'), IDENTIFIER(:t).x FROM IDENTIFIER('t')",
    "SELECT /*+ BROADCAST(t), COALESCE(3) */ a FROM t",
    "SELECT DISTINCT a FROM t SORT BY b DISTRIBUTE BY c",
    "SELECT a FROM t CLUSTER BY a;;",
    (
        "SELECT exists(SELECT 1), (SELECT max(a) FROM t), array(SELECT 1) FROM t WHERE EXISTS (SELECT 1) AND (a,"
        " b) IN (SELECT 1, 2)"
    ),
    "SELECT a by, b select_, c end, d time, e day, f x FROM t date",
    "SELECT date, timestamp, year, first, last, count, `select` FROM t value",
    "SELECT TRANSFORM (a, b) USING 'cat' AS (c STRING, d INT) FROM t",
    "FROM t MAP a USING 'cat' AS b",
    "EXPLAIN SELECT 1",
    "SET a.b = c d e",
    "DESCRIBE QUERY SELECT 1",
    "INSERT INTO t VALUES (1)",
    "CREATE TABLE t (a INT COMMENT 'x', b STRING NOT NULL) USING parquet PARTITIONED BY (a) TBLPROPERTIES ('x' = 'y')",
    "BEGIN DECLARE x INT DEFAULT 1; SELECT x; END",
)
