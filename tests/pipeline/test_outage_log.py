"""An outage of storage is logged when it begins and when it ends, not at every retry."""

from __future__ import annotations

import re
import threading
from collections import Counter
from dataclasses import replace

from evertide.logs import Ring
from evertide.runtime import SystemRuntime
from evertide.store.memory import MemoryMeta
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.pipeline.kit import SETTINGS, open_pipeline, storage
from tests.pipeline.test_threads import wait_until

QUICK = replace(SETTINGS, retry_limit_s=0.05, heartbeat_interval_s=0.02, transaction_interval_s=0.01)


def test_an_outage_of_storage_is_logged_once_by_each_part() -> None:
    """Fails if the heartbeat or the loop of transactions logs each of its retries."""
    refused = 0
    is_off = threading.Event()

    def choose(_operation: str, _key: str) -> Fault:
        nonlocal refused
        if is_off.is_set():
            refused += 1
            return Fault.REFUSED
        return Fault.DONE

    meta = FaultyMeta(MemoryMeta(SystemRuntime()), Faults(choose, choose))
    with Ring() as ring, open_pipeline(storage(meta=meta), threads=True, settings=QUICK) as p:
        loop = threading.Thread(target=p.run)
        loop.start()
        is_off.set()
        wait_until(lambda: refused > 300)
        is_off.clear()
        last = p.time
        p.push("orders", [{"id": 1, "customer": "ann", "amount": 1}])
        p.commit()
        assert p.time > last
        wait_until(lambda: any("recovered after" in line.message for line in ring.lines()))
        wait_until(lambda: any("the pipeline is running again" in line.message for line in ring.lines()))
        p.stop()
        loop.join()
        lines = ring.lines(1_000, "warning")
    counts = Counter(re.sub(r"\d+", "", line.message) for line in lines)
    assert "could not write a heartbeat" in str(counts)
    assert {message: count for message, count in counts.items() if count > 1} == {}
