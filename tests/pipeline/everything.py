"""A process that feeds views from a PostgreSQL under pgbench, and writes them to a PostgreSQL, Delta and Kafka.

    python -m tests.pipeline.everything [small|spark] STORAGE DSN SLOT BROKERS TOPIC

It runs until it is killed, and prints the number of each transaction after its commit.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from evertide.errors import EvertideError
from evertide.pipeline.engine import DeclaredTable, Engine
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.spark_engine import SparkEngine
from evertide.plan.catalyst.session import open_session
from evertide.plan.program.properties import SinkProperties
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.kit.small_engine import SmallEngine, SmallView
from tests.sources.postgres.worker import BENCH

SETTINGS = Settings(
    transaction_rows_max=10_000,
    transaction_interval_s=0.02,
    checkpoint_interval_s=1.0,
    maintenance_interval_s=0.2,
    garbage_interval_s=0.6,
    inline_bytes_max=512,
    rollup_every_diffs=8,
)
Rows = list[dict[str, Any]]
INT, LONG = pa.int32(), pa.int64()
QUERIES = {
    "tellers": "SELECT t.tid, t.tbalance, count(h.tid) AS moves, coalesce(sum(h.delta), 0) AS total"
    " FROM pgbench_tellers t LEFT JOIN pgbench_history h ON h.tid = t.tid GROUP BY t.tid, t.tbalance",
    "rich": "SELECT aid, abalance FROM pgbench_accounts WHERE abalance > 0",
    "levels": "SELECT sign(abalance) AS level FROM pgbench_accounts WHERE abalance <> 0",
}
"""Each query has the same meaning in Spark and in PostgreSQL."""


@dataclass(frozen=True)
class World:
    """The servers that a pipeline reads from and writes to."""

    kind: str
    storage: str
    dsn: str
    slot: str
    brokers: str
    topic: str

    @property
    def lake(self) -> Path:
        return Path(f"{self.storage}.lake")

    @property
    def source(self) -> dict[str, str]:
        return {"url": self.dsn, "slot": self.slot, "idle_interval": "0.3", "fragment_rows": "500"}

    @property
    def sinks(self) -> dict[str, dict[str, dict[str, str]]]:
        """Options by view and sink name. `levels` has no key: its rows are a multiset."""
        return {
            "tellers": {
                "pg": {"connector": "postgres", "url": self.dsn, "table": "out.tellers", "key": "tid"},
                "topic": {"connector": "kafka", "brokers": self.brokers, "topic": self.topic, "key": "tid"},
            },
            "rich": {"lake": {"connector": "delta", "path": str(self.lake), "key": "aid"}},
            "levels": {"bag": {"connector": "postgres", "url": self.dsn, "table": "out.levels"}},
        }


def tellers(tables: Mapping[str, Rows]) -> Rows:
    moves: dict[int, list[int]] = {row["tid"]: [] for row in tables["pgbench_tellers"]}
    for row in tables["pgbench_history"]:
        moves[row["tid"]].append(row["delta"])
    return [
        {"tid": row["tid"], "tbalance": row["tbalance"], "moves": len(found), "total": sum(found)}
        for row in tables["pgbench_tellers"]
        for found in [moves[row["tid"]]]
    ]


def rich(tables: Mapping[str, Rows]) -> Rows:
    return [
        {"aid": row["aid"], "abalance": row["abalance"]} for row in tables["pgbench_accounts"] if row["abalance"] > 0
    ]


def levels(tables: Mapping[str, Rows]) -> Rows:
    balances = [row["abalance"] for row in tables["pgbench_accounts"]]
    return [{"level": 1.0 if balance > 0 else -1.0} for balance in balances if balance]


SMALL = [
    SmallView(
        "tellers",
        pa.schema([("tid", INT), ("tbalance", INT), ("moves", LONG), ("total", LONG)]),
        ("pgbench_tellers", "pgbench_history"),
        tellers,
    ),
    SmallView("rich", pa.schema([("aid", INT), ("abalance", INT)]), ("pgbench_accounts",), rich),
    SmallView("levels", pa.schema([("level", pa.float64())]), ("pgbench_accounts",), levels),
]


def _small(world: World) -> SmallEngine:
    tables = [DeclaredTable(name, schema, key, "postgres", world.source) for name, (schema, key) in BENCH.items()]
    views = []
    for view in SMALL:
        options = world.sinks[view.name]
        sinks = [
            SinkProperties(name, given["connector"], _rest(given), "SQL, line 1") for name, given in options.items()
        ]
        views.append(SmallView(view.name, view.schema, view.reads, view.function, sinks=tuple(sinks)))
    return SmallEngine(tables, views)


def _rest(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name != "connector"}


def _script(world: World) -> str:
    """Return the same views as an SQL script."""
    given = ", ".join(f"{name} '{value}'" for name, value in world.source.items())
    made = []
    for name, (schema, key) in BENCH.items():
        columns = [f"{field.name} INT{'' if field.nullable else ' NOT NULL'}" for field in schema]
        listed = ", ".join([*columns, f"PRIMARY KEY ({key[0]})"] if key else columns)
        made.append(f"CREATE TABLE {name} ({listed}) USING postgres OPTIONS ({given});")
    for view, query in QUERIES.items():
        sinks = world.sinks[view]
        told = {f"evertide.sink.{sink}.{option}": value for sink in sinks for option, value in sinks[sink].items()}
        properties = ", ".join(
            f"'{name}' = '{value}'" for name, value in {"evertide.sinks": ", ".join(sinks), **told}.items()
        )
        made.append(f"CREATE MATERIALIZED VIEW {view} TBLPROPERTIES ({properties}) AS {query};")
    return "\n".join(made)


def open_world(world: World, *, threads: bool = True) -> Pipeline:
    runtime, storage = SystemRuntime(), Path(world.storage)
    engine: Engine = _small(world) if world.kind == "small" else SparkEngine(open_session(), _script(world))
    opened = open_storage(storage, runtime=runtime, settings=SETTINGS)
    return Pipeline(engine, opened, base=storage, runtime=runtime, settings=SETTINGS, threads=threads)


def main(*arguments: str) -> None:
    with open_world(World(*arguments)) as p:
        print(f"running {p.time}", flush=True)
        p.run(on_transaction=lambda t, _: print(t, flush=True))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except EvertideError as error:
        print(f"error {error}", flush=True)
        sys.exit(error.exit_code)
