"""A process that runs a shop on a Spark cluster, one transaction per command on its standard input.

python -m tests.cluster.driver MASTER STORAGE

A line of input is a word: `small`, `large` or `changes`, whose rows are pushed and committed; or `advance`. The answer
is a line of JSON: the time, and the digests of the transaction; or the error. After each transaction all views are
compared with DuckDB's results over the tables. Meanwhile it reports which executors have tasks, by the port of their
block manager.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from evertide.errors import EvertideError
from evertide.pipeline.pipeline import Pipeline
from evertide.problem import ComponentState
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.sources.generated.seeded import RandomStream

TABLES = """
CREATE TABLE orders (id BIGINT NOT NULL, customer BIGINT, amount BIGINT, PRIMARY KEY (id));
CREATE TABLE customers (id BIGINT NOT NULL, city STRING, PRIMARY KEY (id));
"""
QUERIES = {
    "named": "SELECT o.id, c.city, o.amount + 1 AS more FROM orders o JOIN customers c ON o.customer = c.id",
    "per_city": "SELECT c.city, count(*) AS n, CAST(sum(o.amount) AS BIGINT) AS total, max(o.amount) AS top "
    "FROM orders o LEFT JOIN customers c ON o.customer = c.id GROUP BY c.city",
    "placed": "SELECT id, customer, CAST(row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) AS BIGINT) "
    "AS place FROM orders",
    "best": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 20",
}
SCRIPT = TABLES + "".join(f"CREATE MATERIALIZED VIEW {name} AS {query};\n" for name, query in QUERIES.items())
LARGE = 20_000
CUSTOMERS = 2_000


class Shop:
    """The same transactions in every process: each kind is derived from the number of orders."""

    def __init__(self) -> None:
        self._chance = RandomStream(5)
        self._orders = 0

    def transaction(self, kind: str) -> Iterator[tuple[str, list[dict[str, Any]], list[int]]]:
        """By table: rows, and keys to delete."""
        if not self._orders:
            cities = [{"id": i, "city": f"city-{i % 40}"} for i in range(CUSTOMERS)]
            yield "customers", cities[: CUSTOMERS - 50], []  # some customers do not exist
        if kind == "changes":
            moved = [{"id": self._chance.below(CUSTOMERS), "city": "elsewhere"} for _ in range(20)]
            yield "customers", moved, [i for i in range(7) if i not in {one["id"] for one in moved}]
        count = LARGE if kind == "large" else 200
        old = self._orders // 4  # some exist already, and are replaced
        numbers = range(self._orders - old, self._orders - old + count)
        self._orders = max(self._orders, numbers.stop)
        rows = [
            {"id": i, "customer": self._chance.below(CUSTOMERS), "amount": self._chance.below(10_000)} for i in numbers
        ]
        yield "orders", rows, [numbers.start - 1 - i for i in range(min(old, 10))]


def settings() -> Settings:
    return Settings(checkpoint_interval_s=1e9)


def push(p: Pipeline, shop: Shop, kind: str) -> None:
    for table, rows, deletes in shop.transaction(kind):
        p.push(table, rows, deletes=deletes)


def digests(p: Pipeline, time: int) -> dict[str, str]:
    """The digests of each collection's changes in a transaction, as committed."""
    found = p._context.journal.read_outcome(time)
    assert found is not None
    shards = {name: p._runner.members.find_record(name).shard for name in (*p.definition.tables, *p.definition.views)}
    return {name: f"{found.shards[shard].rows} {found.shards[shard].digest}" for name, shard in shards.items()}


def check(p: Pipeline) -> None:
    tables = duckdb.connect()
    for name in ("orders", "customers"):
        tables.register(name, p.view(name).to_arrow())
    for name, query in QUERIES.items():
        assert count_rows(p.view(name).to_arrow()) == count_rows(tables.sql(query).to_arrow_table()), name


def count_rows(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def print_json(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def watch(p: Pipeline) -> None:
    """Report how many tasks run where, whenever that changes."""
    runtime = SystemRuntime()
    last: dict[int, int] = {}
    tracker = p.spark.sparkContext._jsc.sc().statusTracker()
    while True:
        found = {each.port(): each.numRunningTasks() for each in tracker.getExecutorInfos()}
        if found != last:
            print_json(running=found)
        last = found
        runtime.sleep_s(0.02)


def main(master: str, storage: str) -> None:
    with Pipeline.open(SCRIPT, storage, master=master, settings=settings()) as p:
        threading.Thread(target=watch, args=(p,), daemon=True).start()
        shop = Shop()
        print_json(opened=p.time)
        for line in sys.stdin:
            try:
                if line.strip() == "advance":
                    time = p.advance()
                else:
                    push(p, shop, line.strip())
                    time = p.commit()
            except EvertideError as error:
                print_json(error=error.error_code, why=str(error), state=p.status().state)
                continue
            assert time is not None
            check(p)
            large = {
                view.name: view.run_counts.large + view.run_counts.recompute
                for each in p.explain()
                for view in each.views
            }
            print_json(
                time=time, digests=digests(p, time), large=large, failed=p.definition.list_away(ComponentState.FAILED)
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
