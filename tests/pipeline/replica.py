"""A process that runs a replica of a pipeline until it is killed.

    python -m tests.pipeline.replica STORAGE ROLE LOG [META] [FAULTS]

LOG is the directory that its sink writes into, one file per transaction. It prints, line by line, its upper and whether
it leads: `12 leads`. A replica that is fenced prints that and ends. FAULTS is the share of storage calls that fail,
each in a random way.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from evertide.errors import EvertideError
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.plan.program.properties import SinkProperties
from evertide.runtime import SystemRuntime
from evertide.store.open import open_storage
from tests.kit.faulty import Faults, FaultyBlob, FaultyMeta
from tests.kit.small_engine import SmallEngine
from tests.pipeline.worker import SETTINGS, SMALL, small_engine

QUICK = replace(
    SETTINGS,
    writer_ttl_s=8.0,
    lease_ttl_s=8.0,
    heartbeat_interval_s=0.5,
    lead_interval_s=0.2,
    transaction_interval_s=0.01,
)


def engine(log: Path) -> SmallEngine:
    made = small_engine("both,total")
    sink = SinkProperties("log", "files", {"path": str(log)}, "replica.sql, line 1")
    made.small_views = [SMALL["both"], replace(SMALL["total"], sinks=(sink,))]
    return made


def open_replica(storage: str, role: ProcessRole, log: Path, meta: str | None = None, faults: float = 0.0) -> Pipeline:
    runtime = SystemRuntime()
    opened = open_storage(storage, meta, runtime=runtime, settings=QUICK)
    if faults:
        some = Faults.seeded(runtime, faults)
        opened = replace(opened, blob=FaultyBlob(opened.blob, some), meta=FaultyMeta(opened.meta, some))
    return Pipeline(engine(log), opened, base=log.parent, runtime=runtime, settings=QUICK, role=role)


def main(storage: str, role: str, log: str, meta: str = "", faults: str = "0") -> None:
    runtime = SystemRuntime()
    with open_replica(storage, ProcessRole(role), Path(log), meta or None, float(faults)) as p:
        print(f"{p.time} opened", flush=True)
        while True:
            t = p.advance()
            print(f"{p.time} {'leads' if p.leads else 'follows'}", flush=True)
            if t is None:
                runtime.sleep_s(QUICK.transaction_interval_s)
            elif p.leads and t % 7 == 0:
                p.checkpoint()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except EvertideError as error:
        print(f"error {error.error_code}: {error}", flush=True)
        sys.exit(error.exit_code)
