"""Measures steps that could cost more than a recomputation of the view (docs/decisions/0014).

Each case is one view in which a small change can touch many rows: skewed joins, subqueries, conditions that reject most
pairs, cross joins, one huge partition, DISTINCT over a skewed group. After the initial load, each transaction updates
one row in a hundred in every table. The peer is a Spark batch of the whole query over the same rows as Parquet files,
in the same session, alternating with the steps; both return Arrow tables. The figures are the time and the CPU time (of
Python and the JVM together) of a step, relative to the peer. The bound grows with a delta that is longer than the view:
one that removes and adds all rows is twice as long. The first content is computed by another circuit at the end, in a
JVM that is as warm as that of the peer; its time includes the planning of the view.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.measure import Figure
from bench.shards import Progress
from bench.views import bench_spark
from evertide.flow import Circuit
from evertide.flow.stage import RunKind, Stage
from evertide.rows.changes import DIFF

HOT_SHARE = 0.3
HOT_KEYS = 25
CHANGED_SHARE = 0.01
BOUND = 1.5
"""The time of a step relative to Spark's whole query that decision 14 allows, for a delta as long as the view."""

Columns = dict[str, Any]
Rows = dict[str, Columns]


@dataclass(frozen=True, slots=True)
class BoundSize:
    rows: int = 50_000
    warm_up: int = 2
    rounds: int = 5
    cases: tuple[str, ...] = ()
    """Empty: all cases."""

    @classmethod
    def short(cls) -> BoundSize:
        return cls(rows=600, warm_up=1, rounds=1, cases=("skewed_join", "not_in"))


@dataclass(frozen=True, slots=True)
class Case:
    tables: dict[str, str]
    """The columns of each table, all BIGINT, as `id k a`."""
    make: Callable[[np.random.Generator, int], Rows]
    query: str

    @property
    def script(self) -> str:
        declared = [
            f"CREATE TABLE {name} ({', '.join(f'{column} BIGINT NOT NULL' for column in columns.split())},"
            " PRIMARY KEY (id));"
            for name, columns in self.tables.items()
        ]
        return "".join([*declared, f"CREATE MATERIALIZED VIEW v AS {self.query};"])


def skewed(random: np.random.Generator, rows: int) -> Any:
    """Keys: a few of them have 30 % of the rows, the others two rows each on average."""
    is_hot = random.random(rows) < HOT_SHARE
    return np.where(is_hot, random.integers(0, HOT_KEYS, rows), HOT_KEYS + random.integers(0, rows // 2 + 1, rows))


def two_sides(random: np.random.Generator, rows: int) -> Rows:
    return {
        name: {
            "id": np.arange(rows),
            "k": skewed(random, rows),
            "a": random.integers(0, 1000, rows),
            "g": random.integers(0, 50, rows),
        }
        for name in ("r", "s")
    }


def ranges(random: np.random.Generator, rows: int) -> Rows:
    low = random.integers(0, 1_000_000, rows // 50 + 1)
    return {
        "r": {"id": np.arange(rows), "x": random.integers(0, 1_000_000, rows), "g": random.integers(0, 50, rows)},
        "s": {"id": np.arange(len(low)), "lo": low, "hi": low + random.integers(1, 500, len(low))},
    }


def sales(random: np.random.Generator, rows: int) -> Rows:
    items = rows // 50 + 1
    facts = {
        name: {
            "id": np.arange(size),
            "i": random.integers(0, items, size),
            "d": random.integers(0, 2_000, size),
            "quantity": random.integers(1, 100, size),
            "price": random.integers(1, 300, size),
        }
        for name, size in (("store", rows), ("catalog", rows // 2), ("web", rows // 4))
    }
    numbers = np.arange(items)
    item = {"id": numbers, "brand": numbers % 97, "class": numbers % 7}
    return {"item": item, "day": {"id": np.arange(2_000), "year": 1999 + np.arange(2_000) % 5}, **facts}


FACTS = ("store", "catalog", "web")
SOLD = " INTERSECT ".join(
    f"SELECT n.brand AS b, n.class AS c FROM {name} s, item n, day y WHERE s.i = n.id AND s.d = y.id AND year < 2002"
    for name in FACTS
)
AMOUNTS = " UNION ALL ".join(
    f"SELECT quantity, price FROM {name} s, day y WHERE s.d = y.id AND year < 2002" for name in FACTS
)
CHANNELS = " UNION ALL ".join(
    f"SELECT '{name}' AS channel, brand, class, sum(quantity * price) AS sales, count(*) AS n"
    f" FROM {name} s, item n, day y"
    " WHERE s.i IN (SELECT id FROM crossed) AND s.i = n.id AND s.d = y.id AND year = 2001"
    " GROUP BY brand, class HAVING sum(quantity * price) > (SELECT a FROM average)"
    for name in FACTS
)
Q14 = (
    f"WITH crossed AS (SELECT item.id FROM item, ({SOLD}) WHERE brand = b AND class = c),"
    f" average AS (SELECT avg(quantity * price) AS a FROM ({AMOUNTS}))"
    f" SELECT channel, brand, class, sum(sales) AS sales, sum(n) AS n FROM ({CHANNELS})"
    " GROUP BY ROLLUP (channel, brand, class)"
)
TWO = {"r": "id k a g", "s": "id k a g"}
CASES = {
    "skewed_join": Case(
        TWO,
        two_sides,
        "SELECT r.g AS rg, s.g AS sg, sum(r.a * s.a) AS x, count(*) AS n FROM r JOIN s ON r.k = s.k GROUP BY r.g, s.g",
    ),
    "skewed_floats": Case(
        TWO,
        two_sides,
        "SELECT r.g AS g, sum(r.a * s.a * 0.01D) AS x, avg(s.a / 7D) AS y FROM r JOIN s ON r.k = s.k GROUP BY r.g",
    ),
    "skewed_rows": Case(
        TWO, two_sides, "SELECT r.id AS i, s.id AS j FROM r JOIN s ON r.k = s.k WHERE (r.a + s.a) % 100 = 0"
    ),
    "skewed_outer": Case(
        TWO,
        two_sides,
        "SELECT r.g AS g, count(s.id) AS n, max(s.a) AS x FROM r LEFT JOIN s ON r.k = s.k GROUP BY r.g",
    ),
    "exists": Case(
        TWO, two_sides, "SELECT r.id, r.g FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.a > r.a)"
    ),
    "not_exists": Case(
        TWO, two_sides, "SELECT r.id, r.g FROM r WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.a > r.a)"
    ),
    "exists_key": Case(TWO, two_sides, "SELECT r.id, r.g FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k)"),
    "not_in": Case(TWO, two_sides, "SELECT r.id, r.g FROM r WHERE r.k NOT IN (SELECT k FROM s WHERE a < 900)"),
    "range_join": Case(
        {"r": "id x g", "s": "id lo hi"},
        ranges,
        "SELECT s.id, count(*) AS n, sum(r.g) AS x FROM r JOIN s ON r.x BETWEEN s.lo AND s.hi GROUP BY s.id",
    ),
    "q14": Case(
        {
            "item": "id brand class",
            "day": "id year",
            **dict.fromkeys(FACTS, "id i d quantity price"),
        },
        sales,
        Q14,
    ),
    "cross_aggregates": Case(
        TWO,
        two_sides,
        "SELECT x.g AS xg, y.g AS yg, x.t * y.t AS t FROM (SELECT g, sum(a) AS t FROM r GROUP BY g) x"
        " CROSS JOIN (SELECT g, sum(a) AS t FROM s GROUP BY g) y",
    ),
    "cross_rows": Case(
        TWO,
        two_sides,
        "SELECT x.g, y.k, x.t * y.t AS t FROM (SELECT g, sum(a) AS t FROM r WHERE g < 10 GROUP BY g) x"
        " CROSS JOIN (SELECT k, sum(a) AS t FROM s GROUP BY k) y",
    ),
    "huge_partition": Case(
        TWO,
        two_sides,
        "SELECT id, sum(a) OVER (ORDER BY a, id) AS t, row_number() OVER (ORDER BY a, id) AS n FROM r",
    ),
    "distinct_skewed": Case(
        TWO,
        two_sides,
        "SELECT k, count(DISTINCT a) AS n, sum(DISTINCT g) AS t, count(DISTINCT a, g) AS m FROM r GROUP BY k",
    ),
}


class _Tables:
    def __init__(self, case: Case, rows: int) -> None:
        self._random = np.random.default_rng(5)
        self._case = case
        self.rows = case.make(self._random, rows)

    def first(self) -> dict[str, pa.Table]:
        return {name: _delta(_table(columns), 1) for name, columns in self.rows.items()}

    def update(self) -> dict[str, pa.Table]:
        """Give one row in a hundred of each table the values of another row, without the id."""
        found = {}
        for name, columns in self.rows.items():
            size = len(columns["id"])
            at = self._random.choice(size, max(1, int(size * CHANGED_SHARE)), replace=False)
            olds = {column: values[at].copy() for column, values in columns.items()}
            other = self._random.integers(0, size, len(at))
            for column, values in columns.items():
                if column != "id":
                    values[at] = values[other]
            news = {column: values[at] for column, values in columns.items()}
            found[name] = pa.concat_tables([_delta(_table(olds), -1), _delta(_table(news), 1)])
        return found


def _table(columns: Columns) -> pa.Table:
    fields = [pa.field(name, pa.int64(), nullable=False) for name in columns]
    return pa.Table.from_arrays(
        [pa.array(values.copy(), pa.int64()) for values in columns.values()], schema=pa.schema(fields)
    )


def _delta(rows: pa.Table, diff: int) -> pa.Table:
    field = pa.field(DIFF, pa.int64(), nullable=False)
    return rows.append_column(field, pa.array(np.full(rows.num_rows, diff, np.int64)))


@dataclass(frozen=True, slots=True)
class _Cost:
    seconds: float
    cpu_s: float


def bounds(size: BoundSize, moved: Progress) -> list[Figure]:
    cases = size.cases or tuple(CASES)
    with bench_spark("local[2]") as spark:
        found = []
        for at, name in enumerate(cases):
            found.append(_measure(spark, name, size))
            moved(at + 1, len(cases))
    return found


def _measure(spark: SparkSession, name: str, size: BoundSize) -> Figure:
    case = CASES[name]
    tables = _Tables(case, size.rows)
    circuit = Circuit(spark, case.script)
    circuit.step(tables.first())
    steps, wholes, changed, held = [], [], 0, 0
    peer = spark.newSession()
    with tempfile.TemporaryDirectory(dir=os.environ.get("EVERTIDE_BENCH_DIR")) as scratch:
        for number in range(size.warm_up + size.rounds):
            deltas = tables.update()
            result: list[pa.Table] = []
            view: list[pa.Table] = []
            step = _cost(lambda: result.append(circuit.step(deltas)["v"]))  # noqa: B023 - called at once
            for table, columns in tables.rows.items():
                path = str(Path(scratch) / f"{table}-{number}.parquet")
                pq.write_table(_table(columns), path)
                peer.read.parquet(path).createOrReplaceTempView(table)
            whole = _cost(lambda: view.append(peer.sql(case.query).toArrow()))  # noqa: B023 - called at once
            changed = result[0].num_rows
            held = view[0].num_rows
            if number >= size.warm_up:
                steps.append(step)
                wholes.append(whole)
    first = _cost(lambda: Circuit(spark, case.script).step(tables.first()))
    runs = sum((part.run_counts for part in circuit.parts if isinstance(part, Stage)), Counter[RunKind]())
    kinds = {kind.value: count for kind, count in runs.items()}
    step_s, whole_s = (statistics.median(cost.seconds for cost in costs) for costs in (steps, wholes))
    step_cpu, whole_cpu = (statistics.median(cost.cpu_s for cost in costs) for costs in (steps, wholes))
    detail = (
        f"step {step_s:.2f} s, CPU {step_cpu:.2f} s; whole query {whole_s:.2f} s, CPU {whole_cpu:.2f} s; first content"
        f" {first.seconds:.2f} s, CPU {first.cpu_s:.2f} s; {changed:,} changes of {held:,} rows of the view;"
        f" runs {kinds}"
    )
    value = f"{step_s / whole_s:.2f}x, CPU {step_cpu / max(whole_cpu, 0.01):.2f}x"
    bound = BOUND * max(1.0, changed / max(1, held))
    return Figure(
        f"{name}: a step against the whole query", value, detail, f"at most {bound:.1f}x", step_s <= bound * whole_s
    )


def _cost(call: Callable[[], object]) -> _Cost:
    begun, cpu = time.perf_counter(), _cpu_s()
    call()
    return _Cost(time.perf_counter() - begun, _cpu_s() - cpu)


def _cpu_s() -> float:
    """The CPU time of this process and its children."""
    process = psutil.Process()
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))
