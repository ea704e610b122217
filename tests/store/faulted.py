"""Runs a pipeline on a directory while system calls fail: for `test_io_errors`, with `faults.c` preloaded.

Prints one line per fault: the call, the path, whether the fault occurred, and the pipeline's state afterwards.
"""

from __future__ import annotations

import errno
import os
import sys
from functools import partial
from pathlib import Path

from evertide.errors import EvertideError, Unavailable
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.meta import Write
from evertide.store.metas.sqlite import SqliteMeta
from evertide.store.open import open_storage
from evertide.store.retry import retry_read
from tests.pipeline.kit import engine, rows_of

SETTINGS = Settings(retry_limit_s=3, retry_wait_s=0.01, retry_wait_max_s=0.05, inline_bytes_max=1)
FAULTS = (
    ("fsync", "/storage/checkpoints", 2),
    ("fsync", "/storage/parts", 2),
    ("fsync", "/storage/journal/push", 1),
    ("fsync", "meta.db-wal", 4),
    ("pread", "meta.db", 4),
    ("pwrite", "meta.db-wal", 4),
)


def main(root: Path) -> None:
    plan = Path(os.environ["FAULTS"])
    for number, (call, part, times) in enumerate(FAULTS):
        where = root / str(number) / "storage"
        where.parent.mkdir()
        plan.write_text("")
        first = open_pipeline(where)
        said = [run(first, 1)]
        first.close()
        plan.write_text(f"{call} {part} {times} {errno.EIO}\n")
        made = open_pipeline(where)
        said.append(run(made, 2))
        is_hit = int(plan.read_text().split()[2]) < times
        plan.write_text("")
        said.append(run(made, 3))
        made.close()
        again = open_pipeline(where)
        print(call, part, is_hit, *said, rows_of(again, "revenue"), again.status().state, flush=True)
        again.close()


def read_cold(root: Path) -> str:
    """Read pages that no connection has read yet, four of which cannot be read at first."""
    runtime, plan = SystemRuntime(), Path(os.environ["FAULTS"])
    first = SqliteMeta(root / "meta.db", runtime, SETTINGS)
    for number in range(300):
        first.commit([Write(f"key{number}", 0, b"x" * 300)])
    first.close()
    again = SqliteMeta(root / "meta.db", runtime, SETTINGS)
    plan.write_text(f"pread meta.db 4 {errno.EIO}\n")
    try:
        heads = [retry_read(partial(again.head, f"key{number}"), runtime, SETTINGS) for number in range(300)]
    except EvertideError as error:
        return error.error_code
    finally:
        again.close()
    return f"{sum(head is not None for head in heads)} read, {plan.read_text().split()[2]} faults left"


def open_pipeline(where: Path) -> Pipeline:
    runtime = SystemRuntime()
    storage = open_storage(where, runtime=runtime, settings=SETTINGS)
    return Pipeline(engine(), storage, base=Path(), runtime=runtime, settings=SETTINGS, threads=False)


def run(pipeline: Pipeline, number: int) -> str:
    """One transaction, as the loop of a pipeline makes it: an unavailable storage is retried."""
    tries = 0
    given = False
    while True:
        try:
            if not given:
                pipeline.push("orders", [{"id": number, "customer": "a", "amount": 10}])
                given = True
            pipeline.commit()
            pipeline.checkpoint()
        except Unavailable:
            tries += 1
            if tries == 20:
                return "stalled"
        except EvertideError as error:
            return error.error_code
        else:
            return "done"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    print(read_cold(Path(sys.argv[1])))
