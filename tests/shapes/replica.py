"""A replica that runs the shop from a PostgreSQL source, and kills itself at a given moment.

    python -m tests.shapes.replica STORAGE DSN TABLE MOMENT

When a file `armed` exists beside the storage, it prints `armed`, and dies at the next MOMENT of a transaction with rows
(see `tests.sources.postgres.worker`), as by kill -9.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.records.ownership import ProcessRole
from evertide.runtime import SystemRuntime
from evertide.store.open import Storage, open_storage
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import NOTES, SETTINGS, open_pipeline
from tests.shapes.kit import VIEWS, engine
from tests.sources.postgres.worker import _arm as arm
from tests.sources.postgres.worker import _Death as Death

REPLICA = replace(SETTINGS, lead_interval_s=0.05)


def declared(dsn: str, table: str) -> DeclaredTable:
    """`orders`, which follows a table of that database; the slot has the table's name."""
    options = {"url": dsn, "slot": table, "table": f"public.{table}", "idle_interval": "0.05"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("customer", pa.string()), ("amount", pa.int64())])
    return DeclaredTable("orders", schema, ("id",), "postgres", options, where="test:1")


def stored(path: Path) -> Storage:
    return open_storage(path, runtime=SystemRuntime(), settings=REPLICA)


def following(table: DeclaredTable) -> SmallEngine:
    return engine(*VIEWS, tables=(table, NOTES))


def main(storage: str, dsn: str, table: str, moment: str) -> None:
    runtime, armed = SystemRuntime(), Path(storage).with_name("armed")
    death = Death(moment, 0)
    arm(death, dsn, table)
    made = following(declared(dsn, table))
    with open_pipeline(stored(Path(storage)), made, settings=REPLICA, role=ProcessRole.REPLICA) as p:
        print("opened", flush=True)
        is_armed = False
        while True:
            if not is_armed and armed.exists():
                is_armed, death._left = True, 1
                print("armed", flush=True)
            if p.advance() is None:
                runtime.sleep_s(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
