"""A process that adds views over many rows on a Spark cluster, whose executors compute them.

python -m tests.cluster.wide MASTER STORAGE CONTROL

It prints `running` when the tables are filled, and at the end a line of JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from evertide.plan.catalyst.session import open_session
from evertide.problem import ComponentState
from evertide.settings import Settings
from tests.cluster.driver import QUERIES, SCRIPT, TABLES, check
from tests.pipeline.test_wide import count_wide_runs
from tests.pipeline.wide_faults import Control
from tests.pipeline.wide_worker import opened

ORDERS = 60_000
CUSTOMERS = 2_000


def main(master: str, storage: str, control: str) -> None:
    logging.basicConfig(level=logging.WARNING)  # to standard error
    session = open_session(None, master)
    place = Path(storage), Control(Path(control)), session.spark
    settings = Settings(wide_rows_min=1, inline_bytes_max=1)
    with opened(*place, TABLES, threads=False, settings=settings) as p:
        p.push("customers", [{"id": i, "city": f"city-{i % 40}"} for i in range(CUSTOMERS - 50)])
        p.push("orders", [{"id": i, "customer": i * 7 % CUSTOMERS, "amount": i * 31 % 10_007} for i in range(ORDERS)])
        p.commit()
        p.push("orders", [{"id": i, "customer": None, "amount": i} for i in range(300)], deletes=range(300, 400))
        p.commit()
    print("running", flush=True)
    with opened(*place, SCRIPT, threads=False, settings=settings) as p:
        is_hydrated = p.wait_until_hydrated(600)
        check(p)
        failed, wide = p.definition.list_away(ComponentState.FAILED), count_wide_runs(p)
        p.push("orders", deletes=[row["id"] for row in p.view("orders").to_pylist()])
        p.commit()
        left = {name: p.view(name).to_arrow().num_rows for name in QUERIES}
    session.close()
    print(json.dumps({"hydrated": is_hydrated, "failed": failed, "wide": wide, "left": left}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
