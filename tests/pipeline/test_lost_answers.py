"""X6: storage is unavailable, or the outcome of a write is unknown, for longer than a call is retried.

A pipeline with a sink and a view that fails does all kinds of work: it opens, commits rows, recomputes the failed view,
makes checkpoints, collects garbage, and opens again with another script. The answer is lost at one storage call after
the other, and the error reaches the caller at once, as after `retry_limit_s`. No process ends, and the final content is
the same as without faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import pytest

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.pipeline.pipeline import Pipeline
from evertide.problem import ComponentState
from evertide.shard.maintenance import Maintenance
from evertide.store.open import Storage
from evertide.store.paths import JOURNAL
from tests.kit.delivering import deliver_once
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.pipeline.kit import SETTINGS, VIEWS, Row, crash, rows_of, storage
from tests.pipeline.sink_kit import Bucket, into, is_right, order, shop, with_sink
from tests.shard.hosts import LateMeta

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
    """Some writing calls fail from a numbered one on: the first in the chosen way, later ones before they are done."""

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
    """A storage for several pipelines, one after the other."""

    def close(self) -> None:
        pass


def retry(call: Callable[[], T]) -> T:
    """Repeat the call as the pipeline's loop does."""
    while True:
        try:
            return call()
        except (Unavailable, OutcomeUnknown):
            continue


@contextmanager
def opened(outage: Outage, *views: str) -> Iterator[Pipeline]:
    """Open the pipeline; opening waits for storage by itself."""
    p = shop(
        outage.seen(), *(with_sink(VIEWS[name]) if name == "revenue" else VIEWS[name] for name in views), settings=QUICK
    )
    yield p
    retry(lambda: crash(p))


def push(p: Pipeline, rows: list[Row], note: str) -> None:
    pushed = p.transaction()
    pushed.push("orders", rows)
    pushed.push("notes", [{"text": note}])
    retry(lambda: p._pushes.offer_pushed(pushed))
    while pushed.time is None or pushed.time > p.time:
        retry(p.advance)


def run(outage: Outage, bucket: Bucket) -> dict[str, list[tuple[object, ...]]]:
    with opened(outage, "revenue", "share") as p:
        push(p, [order(1, "a", 5), order(2, "b", 4)], "n1")
        retry(partial(deliver_once, p))
        push(p, [order(3, "a", 0)], "n2")  # the view `share` fails
        p.try_checkpoint()
        retry(partial(deliver_once, p))
        push(p, [order(3, "a", 2)], "n3")  # and is recomputed
        retry(p.advance)
        retry(Maintenance(p._context.shards, p._writer, p._context.checkpoints.find_pins).run_once)
        p.try_checkpoint()
        retry(p._leader_tasks.checkpointer.collect_garbage)
    with opened(outage, "revenue", "counts", "share") as p:
        push(p, [order(4, "c", 10)], "n4")
        while p.definition.list_away(ComponentState.FAILED) or p.definition.list_away(ComponentState.HYDRATING):
            retry(p.advance)
            p._leader_tasks.backfills._due.update(p.definition.views)
        while not retry(lambda: is_right(p, bucket)):
            retry(partial(deliver_once, p))
        assert p.status().state == "running"
        return {name: retry(lambda name=name: rows_of(p, name)) for name in EXPECTED}  # type: ignore[misc]


EXPECTED = {
    "orders": [(1, "a", 5), (2, "b", 4), (3, "a", 2), (4, "c", 10)],
    "notes": [("n1",), ("n2",), ("n3",), ("n4",)],
    "revenue": [("a", 7), ("b", 4), ("c", 10)],
    "share": [(1, 20), (2, 25), (3, 50), (4, 10)],
    "counts": [(4, 4)],
}


def calls_of(outage: Outage) -> int:
    """Run with the outage, check the content, and return the number of writing calls."""
    bucket = Bucket()
    with into(lake=bucket):
        assert run(outage, bucket) == EXPECTED
    assert bucket.numbers == sorted(set(bucket.numbers))
    return outage.calls


CALLS = 231
"""The approximate number of calls of a run without an outage."""


def test_x6_the_run_without_an_outage() -> None:
    assert 0.8 * CALLS < calls_of(Outage(Fault.DONE, 0)) < 1.2 * CALLS


@pytest.mark.parametrize("fault", [Fault.DONE_LOST, Fault.LOST, Fault.REFUSED])
@pytest.mark.parametrize("count", [1, 4])
def test_x6_answers_lost_at_some_calls_change_nothing(fault: Fault, count: int) -> None:
    """Each fault is tested at other calls; the soak test covers all of them."""
    first = 1 + 2 * (count > 1) + 4 * [Fault.DONE_LOST, Fault.LOST, Fault.REFUSED].index(fault)
    for at in range(first, CALLS, 12):
        calls_of(Outage(fault, at, count))


def test_x6_rows_whose_bind_has_an_unknown_outcome_are_bound_once() -> None:
    """The bind succeeded, and later rows are offered together with its rows. Seen to fail without look-back."""
    for is_later in (False, True):
        outage = Outage(Fault.DONE, 0)
        with opened(outage, "counts") as p:
            outage.fault, outage.at = Fault.DONE_LOST, outage.calls + 2  # after the staged rows
            p.push("notes", [{"text": "early"}])
            with pytest.raises(OutcomeUnknown):
                p.commit()
            if is_later:
                p.push("notes", [{"text": "later"}])
            p.commit()
            assert rows_of(p, "notes") == [("early",), ("later",)][: 1 + is_later]


@pytest.mark.parametrize("is_last_moment", [False, True])
def test_x6_a_bind_of_unknown_outcome_that_arrives_late_is_bound_once(is_last_moment: bool) -> None:
    """The bind is still in flight at the server while the next one, with more rows, is tried: only one can be bound.

    Seen to fail, by the later rows, if any record of our own writer counts as the one that was tried last.
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


@pytest.mark.parametrize("how", ["take", "commit"])
def test_x6_rows_of_an_earlier_bind_in_flight_are_not_said_to_be_refused(how: str) -> None:
    """Another bind of the same rows is refused. Fails if the second error counts: the client pushes the rows again, and
    the first bind arrives."""
    below = storage()
    late = LateMeta(below.meta)
    p = shop(_Kept(below.blob, late, "memory"), VIEWS["counts"], settings=QUICK)
    if how == "take":
        pushed = p.transaction()
        pushed.push("notes", [{"text": "early"}])
        p._pushes.offer_pushed(pushed)
    else:
        p.push("notes", [{"text": "early"}])
    late.script = ["late"]
    with pytest.raises(OutcomeUnknown):
        p.advance() if how == "take" else p.commit()
    late.script = ["away"] if how == "take" else []
    with pytest.raises(OutcomeUnknown):
        p.take(pushed) if how == "take" else p.abort()
    late.arrive()
    p.advance()
    assert rows_of(p, "notes") == [("early",)]
    crash(p)
