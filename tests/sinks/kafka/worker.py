"""A process that reads a topic, maintains a view of it, and writes that to another topic, until it is killed.

python -m tests.sinks.kafka.worker STORAGE BROKERS INPUT OUTPUT

It prints the number of each transaction after its commit.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from evertide.errors import EvertideError
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.plan.program.properties import SinkProperties
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.kit.small_engine import SmallEngine, SmallView

SETTINGS = Settings(
    transaction_rows_max=25,
    transaction_interval_s=0.02,
    checkpoint_interval_s=0.5,
    maintenance_interval_s=0.2,
    garbage_interval_s=0.6,
    inline_bytes_max=512,
    rollup_every_diffs=8,
)
ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("customer", pa.string()), ("amount", pa.int64())])
REVENUE = pa.schema([("customer", pa.string()), ("amount", pa.int64())])


def by_customer(tables: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    total: Counter[str] = Counter()
    for row in tables["orders"]:
        total[row["customer"]] += row["amount"]
    return [{"customer": customer, "amount": amount} for customer, amount in total.items()]


def open_worker(
    storage: Path,
    brokers: str,
    given: str,
    taken: str = "",
    *,
    is_kept: bool = True,
    threads: bool = True,
    settings: Settings = SETTINGS,
    **options: str,
) -> Pipeline:
    runtime = SystemRuntime()
    source = {"brokers": brokers, "topic": given, "format": "json", "envelope": "upsert", **options}
    orders = DeclaredTable("orders", ORDERS, ("id",), "kafka", source, is_kept=is_kept)
    sink = SinkProperties("out", "kafka", {"brokers": brokers, "topic": taken, "key": "customer"}, "SQL, line 1")
    view = SmallView("revenue", REVENUE, ("orders",), by_customer, sinks=(sink,) if taken else ())
    opened = open_storage(storage, runtime=runtime, settings=settings)
    return Pipeline(
        SmallEngine([orders], [view]), opened, base=storage, runtime=runtime, settings=settings, threads=threads
    )


def main(storage: str, brokers: str, given: str, taken: str) -> None:
    with open_worker(Path(storage), brokers, given, taken) as p:
        print(f"running {p.time}", flush=True)
        p.run(on_transaction=lambda t, _: print(t, flush=True))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except EvertideError as error:
        print(f"error {error}", flush=True)
        sys.exit(error.exit_code)
