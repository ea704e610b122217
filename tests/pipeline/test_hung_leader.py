"""X10: the leader's transaction thread hangs while its heartbeat thread runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from evertide.errors import EvertideError, Fenced
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.sources.contract import Limit, Offer, Rows
from evertide.store.open import Storage
from tests.metrics.kit import wait_for
from tests.pipeline.kit import (
    NOTES,
    ORDERS,
    SETTINGS,
    ScriptedSource,
    batch,
    engine,
    open_pipeline,
    rows_of,
    with_sources,
)
from tests.pipeline.replica_kit import leaders, order, shared

QUICK = replace(
    SETTINGS,
    hang_after_s=0.5,
    stall_after_s=0.1,
    writer_ttl_s=1.0,
    lease_ttl_s=1.0,
    heartbeat_interval_s=0.1,
    lead_interval_s=0.05,
)


class Hanging(ScriptedSource):
    """A source that hangs when the test asks for it, until the test releases it."""

    def __init__(self, batches: list[Rows]) -> None:
        super().__init__("shop", ("orders",), batches)
        self.hangs, self.released, self.is_asked = threading.Event(), threading.Event(), threading.Event()

    def offer(self, position: str, limit: Limit) -> Offer | None:
        if self.hangs.is_set():
            self.is_asked.set()
            assert self.released.wait(60)
        return super().offer(position, limit)


@contextmanager
def running(p: Pipeline) -> Iterator[list[EvertideError]]:
    """Run the pipeline in a thread; yield the error that ended it."""
    errors: list[EvertideError] = []

    def run() -> None:
        try:
            p.run()
        except EvertideError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield errors
    finally:
        p.stop()
        thread.join()


def replica(kept: Storage, source: Hanging) -> Pipeline:
    made = engine(tables=(replace(ORDERS, connector="shop"), NOTES))
    with with_sources(source):
        return open_pipeline(kept, made, settings=QUICK, threads=True, role=ProcessRole.REPLICA)


def test_x10_a_hung_leader_loses_the_lead_and_nothing_else() -> None:
    """The heartbeat has a thread of its own: without the check of its steps, the hung process would lead for ever."""
    kept, batches = shared(), [batch(ORDERS, [order(number)]) for number in range(3)]
    sources = [Hanging(batches), Hanging(batches)]
    several = [replica(kept, source) for source in sources]
    first, second = several
    with running(first) as errors, running(second) as others:
        wait_for(lambda: second.time >= 3)
        assert leaders(first, second) == [first]
        sources[0].hangs.set()
        assert sources[0].is_asked.wait(60)
        wait_for(lambda: first.status().state == "stalled")
        assert "makes no progress while its sources are read" in first.status().why
        batches.append(batch(ORDERS, [order(7)]))
        wait_for(lambda: second.time >= 4 and second.leads)
        sources[0].released.set()
        wait_for(lambda: len(errors) > 0)
        assert isinstance(errors[0], Fenced)
        assert others == []
    assert rows_of(second, "counts") == [(4, 0)]
    for one in several:
        one.close()
