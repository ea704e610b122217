"""The columns that identify the rows of a view, as far as its plan proves it; and declared keys."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from evertide.errors import InvalidInput
from evertide.plan.program.program import Program

TABLES = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, day DATE, PRIMARY KEY (id));
CREATE TABLE lines (item BIGINT NOT NULL, part BIGINT NOT NULL, price BIGINT, PRIMARY KEY (part, item));
CREATE TABLE notes (text STRING);
"""
VIEWS: dict[str, tuple[str, ...]] = {
    "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer": ("customer",),
    "SELECT count(*) AS n, day AS d, customer AS c FROM orders GROUP BY customer, day": ("c", "d"),
    "SELECT customer, count(*) AS n FROM orders GROUP BY customer HAVING count(*) > 1": ("customer",),
    "SELECT sum(amount) AS total FROM orders GROUP BY customer": (),  # the keys of the groups are not selected
    "SELECT upper(customer) AS c, count(*) AS n FROM orders GROUP BY upper(customer)": ("c",),
    "SELECT upper(customer) AS c, count(*) AS n FROM orders GROUP BY customer": (),
    "SELECT max(id) AS last FROM orders": (),
    "SELECT DISTINCT customer, day FROM orders": ("customer", "day"),
    "SELECT id, amount + 1 AS more FROM orders WHERE amount > 0": ("id",),
    "SELECT amount FROM orders": (),
    "SELECT price, part, item AS number FROM lines": ("number", "part"),
    "SELECT item, price FROM lines": (),
    "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount, id) AS n FROM orders": ("id",),
    "SELECT * FROM orders ORDER BY amount, id LIMIT 3": ("id",),
    "SELECT * FROM orders WHERE customer IN (SELECT text FROM notes)": ("id",),
    "SELECT * FROM orders o WHERE NOT EXISTS (SELECT 1 FROM lines l WHERE l.item = o.id)": ("id",),
    "SELECT o.id, l.part FROM orders o JOIN lines l ON l.item = o.id": ("id", "part"),  # `item` is equal to `id`
    "SELECT l.part, l.price FROM orders o JOIN lines l ON l.item = o.id": (),
    "SELECT o.id, l.part FROM orders o JOIN lines l ON l.item = o.amount": (),  # a row of either side may match several
    "SELECT o.id, l.part FROM orders o LEFT JOIN lines l ON l.item = o.id": (),
    "SELECT o.id, l.part FROM lines l LEFT JOIN orders o ON l.item = o.id": (),  # without an order, `id` is NULL
    "SELECT l.item, l.part, o.amount FROM lines l LEFT JOIN orders o ON l.item = o.id AND o.amount > 1": (
        "item",
        "part",
    ),
    "SELECT l.item, l.part, o.amount FROM orders o RIGHT JOIN lines l ON l.item = o.id": ("item", "part"),
    "SELECT l.item, l.part, o.id FROM lines l FULL JOIN orders o ON l.item = o.id": (),
    "SELECT o.id, n.text FROM orders o JOIN notes n ON n.text = o.customer": (),
    "SELECT o.id, c.n FROM orders o JOIN (SELECT customer, count(*) AS n FROM orders GROUP BY customer) c"
    " ON c.customer = o.customer": ("id",),
    "SELECT customer, count(DISTINCT day) AS d, count(DISTINCT amount) AS a FROM orders GROUP BY customer": (
        "customer",
    ),
    "SELECT CASE WHEN id > 1 THEN 'a' END AS kind, count(DISTINCT day) AS d, count(DISTINCT amount) AS a, max(id) AS m"
    " FROM orders GROUP BY 1": ("kind",),
    "SELECT count(DISTINCT day) AS d, count(DISTINCT amount) AS a, sum(amount) AS s FROM orders GROUP BY customer": (),
    "SELECT id FROM orders UNION ALL SELECT item FROM lines": (),
    "SELECT customer, count(*) AS n FROM orders GROUP BY ROLLUP (customer)": (),
    "SELECT text FROM notes": (),
}


def test_only_proven_keys_are_found(spark: SparkSession) -> None:
    script = TABLES + "".join(f"CREATE MATERIALIZED VIEW v{n} AS {query};\n" for n, query in enumerate(VIEWS))
    program = Program(spark, script)
    found = {query: set(program.keys[f"v{n}"]) for n, query in enumerate(VIEWS)}
    wrong = {query: (found[query], key) for query, key in VIEWS.items() if found[query] != set(key)}
    assert not wrong


def declare(spark: SparkSession, key: str) -> tuple[str, ...]:
    view = (
        f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('evertide.key' = '{key}') AS SELECT text AS Said, 1 AS n FROM notes"
    )
    return Program(spark, f"{TABLES}{view};").keys["v"]


def test_a_declared_key_is_used(spark: SparkSession) -> None:
    assert declare(spark, "said") == ("Said",)
    assert declare(spark, "N, said") == ("n", "Said")
    for wrong in ("", "nope", "said,", "said, said"):
        with pytest.raises(InvalidInput, match=r"'evertide.key' is .*the view has Said, n"):
            declare(spark, wrong)
    with pytest.raises(InvalidInput, match=r"the property 'evertide.key' does not exist"):
        Program(spark, "CREATE TABLE t (a INT) TBLPROPERTIES ('evertide.key' = 'a');")
