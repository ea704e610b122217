"""A process that commits one large transaction, and prints by how much its memory grew.

    python -m tests.pipeline.large STORAGE MIB PORTION_MIB

Prints the number of rows in the table, the number of portions, and the growth in MiB.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.kit.small_engine import SmallEngine

MIB = 1024 * 1024
LOG = DeclaredTable("log", pa.schema([("line", pa.binary())]))


def main(path: str, mib: int, portion_mib: int) -> None:
    settings = replace(
        Settings(), portion_bytes_max=portion_mib * MIB, push_buffer_bytes=MIB, row_group_rows=1024, part_rows_max=4096
    )
    runtime = SystemRuntime()
    storage = open_storage(Path(path), None, runtime=runtime, settings=settings)
    with Pipeline(SmallEngine([LOG], []), storage, base=Path(), runtime=runtime, settings=settings, threads=False) as p:
        _push(p, 0)
        p.commit()
        before = _peak_mib()
        for number in range(1, mib):
            _push(p, number)
        p.commit()
        grown = _peak_mib() - before
        outcome = p._context.journal.read_outcome(p.time)
        rows = sum(batch.rows for batch in p._runner.members.open_collection("log").log.read().state.batches)
        print(rows, outcome.portions if outcome else 0, grown)


def _push(p: Pipeline, number: int) -> None:
    """Push rows of one MiB."""
    lines = np.random.default_rng(number).bytes(MIB)
    p.push("log", pa.table({"line": pa.array([lines[at : at + 1024] for at in range(0, MIB, 1024)])}))


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
