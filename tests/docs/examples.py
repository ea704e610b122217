"""The examples of docs/sql.md: its table is the output of `explain` for these views."""

from __future__ import annotations

from dataclasses import dataclass

TABLES = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount INT, price DOUBLE, at TIMESTAMP, tags ARRAY<STRING>,
                     PRIMARY KEY (id));
CREATE TABLE customers (name STRING NOT NULL, city STRING, PRIMARY KEY (name));
CREATE TABLE marks (name STRING, m MAP<STRING, STRING>, t STRING COLLATE UTF8_LCASE);
"""


@dataclass(frozen=True)
class Example:
    what: str
    query: str
    kind: str = ""
    """The kind of the expected operator; empty for a refused query."""


MAINTAINED: dict[str, list[Example]] = {
    "Row by row": [
        Example("columns, expressions, CASE, CAST", "SELECT id, amount * 2 AS a FROM orders", "Map"),
        Example("WHERE", "SELECT * FROM orders WHERE amount > 10", "Filter"),
        Example("UNION ALL", "SELECT name AS n FROM customers UNION ALL SELECT customer FROM orders", "Union"),
        Example("explode, posexplode, inline, LATERAL VIEW", "SELECT id, explode(tags) AS tag FROM orders", "Generate"),
        Example(
            "GROUPING SETS, ROLLUP, CUBE",
            "SELECT customer, amount, count(*) AS n FROM orders GROUP BY ROLLUP (customer, amount)",
            "Expand",
        ),
        Example("VALUES, range", "SELECT * FROM VALUES (1), (2) AS v(a)", "Constant"),
    ],
    "Joins": [
        Example("inner", "SELECT o.id, c.city FROM orders o JOIN customers c ON o.customer = c.name", "Join"),
        Example(
            "left, right, full outer",
            "SELECT o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name",
            "Join",
        ),
        Example("semi; IN, EXISTS", "SELECT * FROM orders WHERE customer IN (SELECT name FROM customers)", "Join"),
        Example(
            "anti; NOT EXISTS",
            "SELECT * FROM orders o WHERE NOT EXISTS (SELECT 1 FROM customers c WHERE c.name = o.customer)",
            "Join",
        ),
        Example(
            "NOT IN, with its NULL semantics",
            "SELECT * FROM customers WHERE name NOT IN (SELECT customer FROM orders)",
            "Join",
        ),
        Example("scalar subquery", "SELECT id FROM orders WHERE amount > (SELECT avg(amount) FROM orders)", "Join"),
        Example(
            "correlated subquery",
            "SELECT name, (SELECT max(amount) FROM orders o WHERE o.customer = c.name) AS top FROM customers c",
            "Join",
        ),
        Example(
            "without an equality: cross, <, BETWEEN",
            "SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer < c.name",
            "Join",
        ),
        Example("LATERAL", "SELECT o.id, l.t FROM orders o, LATERAL (SELECT o.amount + 1 AS t) l", "Map"),
    ],
    "Aggregates": [
        Example(
            "count, sum, avg",
            "SELECT customer, count(*) AS n, sum(price) AS s, avg(amount) AS a FROM orders GROUP BY customer",
            "Aggregate",
        ),
        Example(
            "stddev, variance, skewness, kurtosis, corr, covar, regr_*",
            "SELECT customer, stddev(price) AS s FROM orders GROUP BY customer",
            "Aggregate",
        ),
        Example(
            "min, max", "SELECT customer, min(amount) AS a, max(amount) AS b FROM orders GROUP BY customer", "Aggregate"
        ),
        Example(
            "bool_and, bool_or, every",
            "SELECT customer, bool_and(amount > 1) AS b FROM orders GROUP BY customer",
            "Aggregate",
        ),
        Example("DISTINCT", "SELECT DISTINCT customer FROM orders", "Aggregate"),
        Example(
            "count(DISTINCT), sum(DISTINCT)",
            "SELECT customer, count(DISTINCT amount) AS n FROM orders GROUP BY customer",
            "Aggregate",
        ),
        Example(
            "UNION, EXCEPT, INTERSECT", "SELECT customer FROM orders EXCEPT SELECT name FROM customers", "Aggregate"
        ),
        Example(
            "collect_list, collect_set, array_agg, listagg",
            "SELECT customer, collect_list(amount) AS l FROM orders GROUP BY customer",
            "Aggregate",
        ),
        Example(
            "percentile, percentile_approx, median, mode",
            "SELECT customer, median(amount) AS m FROM orders GROUP BY customer",
            "Aggregate",
        ),
        Example(
            "first, last, any_value, max_by, min_by",
            "SELECT customer, max_by(id, amount) AS m FROM orders GROUP BY customer",
            "Aggregate",
        ),
        Example(
            "approx_count_distinct",
            "SELECT customer, approx_count_distinct(id) AS n FROM orders GROUP BY customer",
            "Aggregate",
        ),
        Example("without GROUP BY, additive", "SELECT count(*) AS n, sum(amount) AS s FROM orders", "Aggregate"),
        Example("without GROUP BY, others", "SELECT median(amount) AS m FROM orders", "Aggregate"),
        Example(
            "FILTER, HAVING",
            "SELECT customer, count(*) FILTER (WHERE amount > 1) AS n FROM orders GROUP BY customer HAVING n > 1",
            "Aggregate",
        ),
        Example(
            "PIVOT",
            "SELECT * FROM (SELECT customer, amount FROM orders) PIVOT (count(*) FOR amount IN (1, 2))",
            "Aggregate",
        ),
        Example(
            "window(at, '1 hour')",
            "SELECT window(at, '1 hour').start AS h, count(*) AS n FROM orders GROUP BY window(at, '1 hour')",
            "Aggregate",
        ),
        Example(
            "session_window(at, '5 minutes')",
            "SELECT customer, count(*) AS n FROM orders GROUP BY customer, session_window(at, '5 minutes')",
            "Aggregate",
        ),
    ],
    "Windows and order": [
        Example(
            "row_number, rank, dense_rank, ntile",
            "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount) AS r FROM orders",
            "Window",
        ),
        Example(
            "lag, lead, first_value, last_value, nth_value",
            "SELECT id, lag(amount) OVER (PARTITION BY customer ORDER BY id) AS l FROM orders",
            "Window",
        ),
        Example(
            "sum and others OVER, ROWS and RANGE frames",
            "SELECT id, sum(amount) OVER (PARTITION BY customer ORDER BY id) AS s FROM orders",
            "Window",
        ),
        Example("OVER without PARTITION BY", "SELECT id, rank() OVER (ORDER BY amount) AS r FROM orders", "Window"),
        Example(
            "the first k of each group",
            "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount) AS r FROM orders QUALIFY r <= 3",
            "Window",
        ),
        Example("ORDER BY ... LIMIT", "SELECT * FROM orders ORDER BY amount DESC LIMIT 10", "TopK"),
    ],
}

REFUSED: list[Example] = [
    Example("the current time", "SELECT id FROM orders WHERE at > now() - INTERVAL 1 DAY"),
    Example("the current user", "SELECT current_user() AS u FROM orders"),
    Example("randomness", "SELECT id, rand() AS r FROM orders"),
    Example("TABLESAMPLE", "SELECT * FROM orders TABLESAMPLE (10 PERCENT)"),
    Example("LIMIT without ORDER BY", "SELECT * FROM orders LIMIT 10"),
    Example("tables outside of the pipeline", "SELECT * FROM spark_catalog.default.elsewhere"),
    Example("groups under a collation", "SELECT t, count(*) AS n FROM marks GROUP BY t"),
    Example("ties that nothing can break", "SELECT *, row_number() OVER (ORDER BY name) AS r FROM marks"),
    Example(
        "recursion",
        "WITH RECURSIVE t(n) AS (SELECT id FROM orders UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t",
    ),
    Example("two columns of one name", "SELECT id, amount AS id FROM orders"),
    Example("two fields of one name", "SELECT named_struct('a', id, 'a', amount) AS pair FROM orders"),
]
