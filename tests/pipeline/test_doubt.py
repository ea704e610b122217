"""X6: storage that is away, or does not say what became of a write, for longer than a call is tried again.

A pipeline with a sink and a view that fails does all that it can: it opens, takes rows, computes the view that failed
again, makes checkpoints, collects, and opens again with another script. At one storage call after the other the answer
is lost, and the error reaches the caller at once, as after `retry_limit_s`. Nothing ends, and in the end everything is
as if nothing had been lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.pipeline.pipeline import Pipeline
from evertide.shard.maintenance import Maintenance
from evertide.store.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from evertide.store.open import Storage
from evertide.store.paths import JOURNAL
from tests.pipeline.kit import SETTINGS, VIEWS, Row, crash, rows_of, storage
from tests.pipeline.sink_kit import Bucket, into, is_right, order, shop, with_sink
from tests.shard.test_log import LateMeta

QUICK = replace(
    SETTINGS,
    inline_bytes_max=1,
    rollup_every_diffs=4,
    retry_wait_s=1e-6,
    retry_wait_max_s=1e-6,
    retry_limit_s=1e-9,
    lead_interval_s=1e-6,
)
T = TypeVar("T")


@dataclass
class Outage:
    """Some calls that write fail, from a numbered one on: the first in one way, those after it before they are done."""

    fault: Fault
    at: int
    count: int = 1
    below: Storage = field(default_factory=storage)
    calls: int = 0

    def seen(self) -> Storage:
        some = Faults(self._chosen, lambda *_: Fault.DONE)
        return _Kept(FaultyBlob(self.below.blob, some), FaultyMeta(self.below.meta, some), "memory")

    def _chosen(self, _operation: str, _key: str) -> Fault:
        self.calls += 1
        if self.calls == self.at:
            return self.fault
        return Fault.LOST if self.at < self.calls < self.at + self.count else Fault.DONE


class _Kept(Storage):
    """Several pipelines have it, one after the other."""

    def close(self) -> None:
        pass


def patiently(call: Callable[[], T]) -> T:
    """As the loop does."""
    while True:
        try:
            return call()
        except (Unavailable, OutcomeUnknown):
            continue


@contextmanager
def opened(outage: Outage, *views: str) -> Iterator[Pipeline]:
    """Opening waits by itself."""
    p = shop(
        outage.seen(), *(with_sink(VIEWS[name]) if name == "revenue" else VIEWS[name] for name in views), settings=QUICK
    )
    yield p
    patiently(lambda: crash(p))


def push(p: Pipeline, rows: list[Row], note: str) -> None:
    pushed = p.transaction()
    pushed.push("orders", rows)
    pushed.push("notes", [{"text": note}])
    patiently(lambda: p._pushes.offer_pushed(pushed))
    while pushed.time is None or pushed.time > p.time:
        patiently(p.advance)


def run(outage: Outage, bucket: Bucket) -> dict[str, list[tuple[object, ...]]]:
    with opened(outage, "revenue", "share") as p:
        push(p, [order(1, "a", 5), order(2, "b", 4)], "n1")
        patiently(p.deliver_once)
        push(p, [order(3, "a", 0)], "n2")  # the view `share` fails
        p.try_checkpoint()
        patiently(p.deliver_once)
        push(p, [order(3, "a", 2)], "n3")  # and is computed again
        patiently(p.advance)
        patiently(Maintenance(p._context.shards, p._writer, p._context.checkpoints.pinned).run_once)
        p.try_checkpoint()
        patiently(p._leader_tasks.checkpointer.collect)
    with opened(outage, "revenue", "counts", "share") as p:
        push(p, [order(4, "c", 10)], "n4")
        while p.definition.away("failed") or p.definition.away("hydrating"):
            patiently(p.advance)
            p._leader_tasks.backfills._due.update(p.definition.views)
        while not patiently(lambda: is_right(p, bucket)):
            patiently(p.deliver_once)
        assert p.status().state == "running"
        return {name: patiently(lambda name=name: rows_of(p, name)) for name in EXPECTED}  # type: ignore[misc]


EXPECTED = {
    "orders": [(1, "a", 5), (2, "b", 4), (3, "a", 2), (4, "c", 10)],
    "notes": [("n1",), ("n2",), ("n3",), ("n4",)],
    "revenue": [("a", 7), ("b", 4), ("c", 10)],
    "share": [(1, 20), (2, 25), (3, 50), (4, 10)],
    "counts": [(4, 4)],
}


def calls_of(outage: Outage) -> int:
    """How many calls wrote, in a run that came to what is expected."""
    bucket = Bucket()
    with into(lake=bucket):
        assert run(outage, bucket) == EXPECTED
    assert bucket.numbers == sorted(set(bucket.numbers))
    return outage.calls


CALLS = 231
"""Of a run without an outage, about."""


def test_x6_without_an_outage() -> None:
    assert 0.8 * CALLS < calls_of(Outage(Fault.DONE, 0)) < 1.2 * CALLS


@pytest.mark.parametrize("fault", [Fault.DONE_LOST, Fault.LOST, Fault.REFUSED])
@pytest.mark.parametrize("count", [1, 4])
def test_x6_an_answer_that_is_lost_at_some_calls(fault: Fault, count: int) -> None:
    """Other calls for each fault; the soak test takes all of them."""
    first = 1 + 2 * (count > 1) + 4 * [Fault.DONE_LOST, Fault.LOST, Fault.REFUSED].index(fault)
    for at in range(first, CALLS, 12):
        calls_of(Outage(fault, at, count))


def test_x6_rows_whose_bind_was_in_doubt_are_bound_once() -> None:
    """The bind happened, and rows that came after it are offered together with them. Seen to fail without look-back."""
    for is_later in (False, True):
        outage = Outage(Fault.DONE, 0)
        with opened(outage, "counts") as p:
            outage.fault, outage.at = Fault.DONE_LOST, outage.calls + 2  # after what is staged
            p.push("notes", [{"text": "early"}])
            with pytest.raises(OutcomeUnknown):
                p.commit()
            if is_later:
                p.push("notes", [{"text": "later"}])
            p.commit()
            assert rows_of(p, "notes") == [("early",), ("later",)][: 1 + is_later]


@pytest.mark.parametrize("is_last_moment", [False, True])
def test_x6_a_bind_in_doubt_that_arrives_late(is_last_moment: bool) -> None:
    """It is under way at the server while the next one, with more rows, is tried: only one of the two can be bound.

    Seen to fail, by the rows that came later, with any record of our own writer taken for the one that was tried last.
    """
    below = storage()
    late = LateMeta(below.meta)
    p = shop(_Kept(below.blob, late, "memory"), VIEWS["counts"], settings=QUICK)
    p.push("notes", [{"text": "early"}])
    late.script = ["late"]
    with pytest.raises(OutcomeUnknown):
        p.commit()
    pushed = p.transaction()
    pushed.push("notes", [{"text": "later"}])
    p._pushes.offer_pushed(pushed)
    bind, commit = p._runner.bind, late.commit

    def arrives_before_the_bind(inputs: Any) -> Any:
        late.arrive()
        return bind(inputs)

    def arrives_before_the_commit(writes: Any, guards: Any = ()) -> Any:
        if writes[0].key == JOURNAL:
            late.arrive()
        return commit(writes, guards)

    if is_last_moment:
        late.commit = arrives_before_the_commit  # type: ignore[method-assign]
    else:
        p._runner.bind = arrives_before_the_bind  # type: ignore[method-assign]
    while pushed.time is None or pushed.time > p.time:
        p.advance()
    assert rows_of(p, "notes") == [("early",), ("later",)]
    assert (p.time, pushed.time) == (2, 2)
    crash(p)
