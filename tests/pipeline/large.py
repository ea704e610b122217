"""A process that commits one large transaction within bounds on its memory, and prints by how much its memory grew.

    python -m tests.pipeline.large STORAGE MIB PORTION_MIB [HEAP_MIB]

With HEAP_MIB, the engine is Spark with a heap of that size; otherwise it is the small engine, without views. Prints the
number of rows in the table, the number of portions, and the growth of Python's memory in MiB.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from evertide.pipeline.engine import DeclaredTable, Engine
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.spark_engine import SparkEngine
from evertide.plan.catalyst.session import open_session
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.kit.small_engine import SmallEngine

MIB = 1024 * 1024
GROUPS = 1000
LOG = DeclaredTable("log", pa.schema([("id", pa.int64()), ("kind", pa.int64()), ("line", pa.binary())]))
VIEWS = {
    "chosen": "SELECT id, line FROM log WHERE kind % 2 = 0",
    "kinds": "SELECT kind, count(*) AS n, sum(id) AS total FROM log GROUP BY kind",
}
SCRIPT = "\n".join(
    [
        "CREATE TABLE log (id BIGINT, kind BIGINT, line BINARY);",
        *(f"CREATE MATERIALIZED VIEW {name} AS {query};" for name, query in VIEWS.items()),
    ]
)


def main(path: str, mib: int, portion_mib: int, heap_mib: int = 0) -> None:
    settings = replace(
        Settings(), portion_bytes_max=portion_mib * MIB, push_buffer_bytes=MIB, row_group_rows=1024, part_rows_max=4096
    )
    runtime = SystemRuntime()
    storage = open_storage(Path(path), None, runtime=runtime, settings=settings)
    with Pipeline(make_engine(heap_mib), storage, base=Path(), runtime=runtime, settings=settings, threads=False) as p:
        p.push("log", make_rows(0))
        p.commit()
        before = _peak_mib()
        for number in range(1, mib):
            p.push("log", make_rows(number))
        p.commit()
        grown = _peak_mib() - before
        outcome = p._context.journal.read_outcome(p.time)
        rows = sum(batch.rows for batch in p._runner.members.open_collection("log").log.read().state.batches)
        print(rows, outcome.portions if outcome else 0, grown)


def make_engine(heap_mib: int) -> Engine:
    if not heap_mib:
        return SmallEngine([LOG], [])
    bound = {"spark.driver.memory": f"{heap_mib}m", "spark.driver.defaultJavaOptions": "-XX:+ExitOnOutOfMemoryError"}
    return SparkEngine(open_session(None, "local[2]", bound), SCRIPT)


def make_rows(number: int) -> pa.Table:
    """Incompressible rows of one MiB."""
    lines = np.random.default_rng(number).bytes(MIB)
    ids = np.arange(number * 1024, (number + 1) * 1024)
    columns = {"id": ids, "kind": ids % GROUPS, "line": [lines[at : at + 1024] for at in range(0, MIB, 1024)]}
    return pa.table(columns, LOG.schema)


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
