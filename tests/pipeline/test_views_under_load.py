"""X1: views are added, changed, dropped, or fail and recover, while transactions keep coming, on Spark.

A stream of transactions runs during every backfill. After each transaction, all views that are up to date are compared
with DuckDB over the expected tables; views that joined later are compared at every transaction since.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

import evertide as et
from evertide.problem import ComponentState
from evertide.sources.generated.seeded import RandomStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = """
CREATE TABLE t (id BIGINT NOT NULL, g STRING, n BIGINT, PRIMARY KEY (id));
CREATE TABLE d (g STRING NOT NULL, name STRING, PRIMARY KEY (g));
"""
STAYING = {
    "joined": "SELECT t.id, d.name, t.n FROM t JOIN d ON t.g = d.g",
    "ranked": "SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY n, id) AS place FROM t WHERE id % 5 = 0",
    "risky": "SELECT id, 1000 / n AS share FROM t",
}
LOUD = "SELECT t.id, upper(d.name) AS name, t.n + 1 AS n FROM t JOIN d ON t.g = d.g"
QUIET = "SELECT t.id, lower(d.name) AS name, t.n * 2 AS n FROM t JOIN d ON t.g = d.g WHERE t.n > 5"
LAST = "SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY n DESC, id) AS place FROM t WHERE id % 5 = 1"
SCRIPTS: tuple[dict[str, str], ...] = (
    {"mapped": "SELECT id, concat(g, '!') AS g, n * 3 AS n FROM t", "told": LOUD},
    {"told": QUIET, "last": LAST},
    {"last": LAST, "mapped": "SELECT id, concat(g, '?') AS g, n - 3 AS n FROM t"},
)
GROUPS = 8


class Model:
    """The expected content of the tables, by transaction."""

    def __init__(self, chance: RandomStream) -> None:
        self.chance = chance
        self.rows: dict[int, tuple[str, int]] = {}
        self.names: dict[str, str] = {}
        self.at: dict[int, duckdb.DuckDBPyConnection] = {}
        self._fresh = 0

    def fill(self, p: et.Pipeline, count: int) -> None:
        self.names = {f"g{number}": f"Name{number}" for number in range(GROUPS)}
        p.push("d", [{"g": g, "name": name} for g, name in self.names.items()])
        self.put(p, [(number, 1 + number % 97) for number in range(count)])
        self.commit(p)

    def put(self, p: et.Pipeline, rows: list[tuple[int, int]]) -> None:
        made = {at: (f"g{self.chance.below(GROUPS)}", n) for at, n in rows}
        p.push("t", [{"id": at, "g": g, "n": n} for at, (g, n) in made.items()])
        self.rows |= made

    def change(self, p: et.Pipeline) -> None:
        """Commit one transaction: new rows, changed rows, deleted rows, and sometimes another name of a group."""
        known = len(self.rows)
        fresh = [(100_000 + self._fresh + number, 1 + self.chance.below(97)) for number in range(self.chance.below(6))]
        self._fresh += len(fresh)
        self.put(p, [*fresh, *((self.chance.below(known), 1 + self.chance.below(97)) for _ in range(3))])
        gone = [at for at in {self.chance.below(known), self.chance.below(known)} if at in self.rows]
        p.push("t", deletes=gone)
        for at in gone:
            del self.rows[at]
        if not self.chance.below(4):
            g = f"g{self.chance.below(GROUPS)}"
            self.names[g] = f"Name{self.chance.below(1000)}"
            p.push("d", [{"g": g, "name": self.names[g]}])
        self.commit(p)

    def commit(self, p: et.Pipeline) -> None:
        oracle = duckdb.connect()
        t, d = self.rows, self.names
        columns = {"id": [*t], "g": [g for g, _ in t.values()], "n": [n for _, n in t.values()]}
        oracle.register("t", pa.table(columns))
        oracle.register("d", pa.table({"g": [*d], "name": [*d.values()]}))
        self.at[p.commit()] = oracle


def bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def compare(p: et.Pipeline, model: Model, views: dict[str, str], since: int) -> dict[str, int]:
    """Return the number of transactions at which each view was compared, from a time at which it is up to date."""
    states = {one.name: one.state for one in p.status().collections}
    found: dict[str, int] = {}
    for name, query in views.items():
        view = p.view(name)
        times = [time for time in model.at if time >= since] if states[name] == "running" else []
        first = p._runner.members.open_collection(name).log.read().state.batches[0].upper - 1 if times else 0
        for time in (time for time in times if time >= first):
            expected = model.at[time].sql(query).to_arrow_table()
            assert bag(view.as_of(time).to_arrow()) == bag(expected), f"{name} at {time}"
            found[name] = found.get(name, 0) + 1
    return found


def churn(spark: SparkSession, storage: Path, *, seed: int, rounds: int, rows: int) -> int:
    """Return the number of transactions that ran during a backfill."""
    model, beside = Model(RandomStream(seed)), 0
    settings = et.Settings(portion_rows_max=max(100, rows // 8), retry_view_s=0.001)
    for number in range(rounds):
        views = {**STAYING, **SCRIPTS[number % len(SCRIPTS)]}
        script = TABLES + "".join(f"CREATE MATERIALIZED VIEW {name} AS {query};\n" for name, query in views.items())
        with et.Pipeline.open(script, storage, spark=spark, settings=settings) as p:
            begun = p.time + 1
            if not model.at:
                model.fill(p, rows)
            model.put(p, [(1, 0)])  # a row without a share
            model.commit(p)
            assert "risky" in p.definition.list_away(ComponentState.FAILED)
            model.put(p, [(1, 7)])
            model.commit(p)
            while p.definition.list_away(ComponentState.FAILED) or p.definition.list_away(ComponentState.HYDRATING):
                model.change(p)
                compare(p, model, STAYING, p.time)
                beside += 1
            model.change(p)
            compared = compare(p, model, views, begun)
            assert compared.keys() == views.keys()
            assert not p.status().problems
    return beside


def test_x1_views_that_change_or_fail_under_load_equal_the_oracle(spark: SparkSession, tmp_path: Path) -> None:
    """With one scratch file for all threads, either side failed or got rows of the other within a few transactions."""
    assert churn(spark, tmp_path / "s", seed=1, rounds=3, rows=600) > 3
