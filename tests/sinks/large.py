"""A process that fills a storage, or delivers its content to a sink, under a memory limit that the kernel enforces.

`fill` makes one transaction for each batch. `follow` delivers a first batch to the sink, and then makes one transaction
of all others, which `deliver` delivers. `remove` has a Delta sink write a content, and then one transaction that
removes nearly all of it, and prints how much memory that took.

python -m tests.sinks.large fill STORAGE BATCHES
python -m tests.sinks.large follow STORAGE CONNECTOR OPTIONS BATCHES
python -m tests.sinks.large remove DIRECTORY KEY ROWS
python -m tests.sinks.large deliver STORAGE CONNECTOR OPTIONS BYTES [PORTION_BYTES]
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from evertide.pipeline.engine import DeclaredTable
from evertide.rows.changes import DIFF_FIELD
from evertide.runtime import SystemRuntime
from evertide.sinks.contract import Changes
from evertide.store.open import open_storage
from tests.kit.delivering import deliver_once
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import SETTINGS, open_pipeline
from tests.pipeline.sink_kit import sink
from tests.sinks.kit import declare, prepare

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
ROWS = 8_000
TEXT_BYTES = 1_000
MIB = 1024 * 1024
PIECES = replace(SETTINGS, portion_bytes_max=4 * MIB, portion_rows_max=10_000, part_rows_max=ROWS)


def private_bytes() -> int:
    """Private memory of the process; pages of files are not counted, as the kernel may drop them."""
    return read_status("VmData")


def rows(batch: int) -> pa.Table:
    """Incompressible texts."""
    content = np.random.default_rng(batch).bytes(ROWS * TEXT_BYTES // 2).hex()
    texts = [content[at : at + TEXT_BYTES] for at in range(0, len(content), TEXT_BYTES)]
    return pa.table({"id": pa.array(range(batch * ROWS, (batch + 1) * ROWS)), "text": texts}, SCHEMA)


def read_status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def remove(where: Path, key: str, count: int) -> None:
    def make_pieces(diff: int) -> Iterator[pa.Table]:
        for start in range(0, count, 50_000):
            numbers = np.arange(start, start + 50_000)
            numbers = numbers if diff > 0 else numbers[numbers % 100 != 0]
            texts = pa.array(np.char.add("customer-", numbers.astype(str)))
            diffs = pa.array(np.full(len(numbers), diff))
            yield pa.table([numbers, texts, diffs], schema=pa.schema([*SCHEMA, DIFF_FIELD]))

    keys = tuple(filter(None, key.split(",")))
    target = prepare(declare(where, "delta", schema=SCHEMA, key=keys)).open("token")
    for time, diff in enumerate([1, -1]):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that from now on
        before = read_status("VmRSS")
        target.write(time, Changes(partial(make_pieces, diff), is_addition=diff > 0))
    rows = DeltaTable(where / "target").to_pyarrow_dataset().count_rows()
    print(json.dumps({"rows": rows, "bytes": read_status("VmHWM") - before}), flush=True)


def main(what: str, where: str, *given: str) -> None:
    if what == "remove":
        remove(Path(where), given[0], int(given[1]))
        return
    table = DeclaredTable("texts", SCHEMA, ("id",))
    if what != "fill":
        table = replace(table, sinks=(sink(connector=given[0], **json.loads(given[1])),))
    settings = (
        PIECES
        if what != "deliver" or len(given) < 4
        else replace(PIECES, portion_bytes_max=int(given[3]), portion_rows_max=10**9)
    )
    store = open_storage(where, runtime=SystemRuntime(), settings=settings)
    with open_pipeline(store, SmallEngine([table], []), settings=settings, base=Path(where).parent) as p:
        if what == "fill":
            for batch in range(int(given[0])):
                p.push("texts", rows(batch))
                p.commit()
            return
        if what == "follow":
            p.push("texts", rows(0))
            p.commit()
            deliver_once(p)
            for batch in range(1, int(given[2])):
                p.push("texts", rows(batch))
            p.commit()
            return
        most = private_bytes() + int(given[2])
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        deliver_once(p)
        [status] = p.status().sinks
        print(json.dumps({"state": status.state, "behind": status.behind}), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
