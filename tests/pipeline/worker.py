"""A process that runs a pipeline until it is killed.

    python -m tests.pipeline.worker STORAGE [spark|small] [VIEWS] [FAULTS]

VIEWS are names of views, separated by commas; `both-2` is another definition of `both`. FAULTS is the share of storage
calls that fail, each in a random way. The process prints the number of each transaction after its commit, one per line.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from evertide.errors import EvertideError
from evertide.pipeline.engine import DeclaredTable, Engine
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.spark_engine import SparkEngine
from evertide.plan.catalyst.session import open_session
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.kit.faulty import Faults, FaultyBlob, FaultyMeta
from tests.kit.small_engine import SmallEngine, SmallView

SETTINGS = Settings(
    transaction_rows_max=40,
    checkpoint_interval_s=0.5,
    maintenance_interval_s=0.2,
    garbage_interval_s=0.6,
    inline_bytes_max=512,
    rollup_every_diffs=8,
)
OPTIONS = {"rows_per_transaction": "17", "columns.id.distinct": "50", "columns.amount.max": "1000"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.int64())])
SCRIPT = """
CREATE TABLE north (id BIGINT NOT NULL, amount BIGINT, PRIMARY KEY (id)) USING datagen
OPTIONS (seed '1', rows_per_transaction '17', `columns.id.distinct` '50', `columns.amount.max` '1000');
CREATE TABLE south (id BIGINT NOT NULL, amount BIGINT, PRIMARY KEY (id)) USING datagen
OPTIONS (seed '2', rows_per_transaction '17', `columns.id.distinct` '50', `columns.amount.max` '1000');
"""
QUERIES = {
    "both": "SELECT n.id, n.amount AS n, s.amount AS s FROM north n JOIN south s ON n.id = s.id",
    "both-2": "SELECT n.id, n.amount AS n, -s.amount AS s FROM north n JOIN south s ON n.id = s.id",
    "total": "SELECT sum(amount) AS amount, count(*) AS rows FROM (TABLE north UNION ALL TABLE south)",
    "highest": "SELECT id, amount FROM north ORDER BY amount DESC NULLS LAST, id LIMIT 3",
}
DEFAULT = "both,total"


def script(views: str) -> str:
    """Return the script of the tables and these views."""
    made = [f"CREATE MATERIALIZED VIEW {name.split('-')[0]} AS {QUERIES[name]};" for name in views.split(",")]
    return "\n".join([SCRIPT, *made])


def joined(tables: object) -> list[dict[str, object]]:
    assert isinstance(tables, dict)
    south = {row["id"]: row["amount"] for row in tables["south"]}
    return [
        {"id": row["id"], "n": row["amount"], "s": south[row["id"]]} for row in tables["north"] if row["id"] in south
    ]


def total(tables: object) -> list[dict[str, object]]:
    assert isinstance(tables, dict)
    rows = [*tables["north"], *tables["south"]]
    amounts = [row["amount"] for row in rows if row["amount"] is not None]
    return [{"amount": sum(amounts) if amounts else None, "rows": len(rows)}]


def negated(tables: object) -> list[dict[str, object]]:
    return [{**row, "s": None if row["s"] is None else -row["s"]} for row in joined(tables)]  # type: ignore[operator]


def highest(tables: object) -> list[dict[str, object]]:
    assert isinstance(tables, dict)
    known = sorted(tables["north"], key=lambda row: (row["amount"] is None, -(row["amount"] or 0), row["id"]))
    return [{"id": row["id"], "amount": row["amount"]} for row in known[:3]]


BOTH = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("s", pa.int64())])
TOTAL = pa.schema([("amount", pa.int64()), ("rows", pa.int64())])


SMALL = {
    "both": SmallView("both", BOTH, ("north", "south"), joined),
    "both-2": SmallView("both", BOTH, ("north", "south"), negated, version=2),
    "total": SmallView("total", TOTAL, ("north", "south"), total),
    "highest": SmallView("highest", SCHEMA, ("north",), highest),
}


def small_engine(views: str) -> SmallEngine:
    tables = [
        DeclaredTable(name, SCHEMA, ("id",), "datagen", {**OPTIONS, "seed": seed})
        for name, seed in (("north", "1"), ("south", "2"))
    ]
    return SmallEngine(tables, [SMALL[name] for name in views.split(",")])


def open_worker(storage: Path, kind: str, views: str = DEFAULT, faults: float = 0.0) -> Pipeline:
    runtime = SystemRuntime()
    engine: Engine = small_engine(views) if kind == "small" else SparkEngine(open_session(), script(views))
    opened = open_storage(storage, runtime=runtime, settings=SETTINGS)
    if faults:
        some = Faults.seeded(runtime, faults)
        opened = replace(opened, blob=FaultyBlob(opened.blob, some), meta=FaultyMeta(opened.meta, some))
    return Pipeline(engine, opened, base=storage, runtime=runtime, settings=SETTINGS)


def main(storage: str, kind: str = "small", views: str = DEFAULT, faults: str = "0") -> None:
    with open_worker(Path(storage), kind, views, float(faults)) as p:
        print(f"running {p.time}", flush=True)
        while True:
            t = p.advance()
            print("-" if t is None else t, flush=True)
            if t is not None and t % 7 == 0:
                p.checkpoint()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except EvertideError as error:
        print(f"error {error}", flush=True)
        sys.exit(error.exit_code)
