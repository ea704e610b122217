"""U1, U3, I14: two replicas on a storage that fails often, in each kind of fault and in all of them.

They run in one process, step by step, so that a seed determines the run: pushes to either replica, crashes of either,
checkpoints, garbage collection, rows that make a view fail, and transactions of two portions. In the end the tables
hold each pushed row once; the views equal plain Python over the tables; and the sink received each transaction once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.sources.generated.seeded import RandomStream
from evertide.store.open import Storage
from tests.kit.delivering import deliver_once
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.pipeline.kit import SETTINGS, VIEWS, Row, crash, rows_of, storage
from tests.pipeline.sink_kit import Bucket, into, is_right, order, shop, with_sink

QUICK = replace(
    SETTINGS,
    lead_interval_s=1e-6,
    garbage_interval_s=1e-6,
    inline_bytes_max=1,
    rollup_every_diffs=4,
    retry_wait_s=1e-5,
    retry_wait_max_s=1e-4,
    retry_limit_s=5.0,
    portion_rows_max=1,
)
STEPS = 40
ALL = (Fault.DONE_LOST, Fault.LOST, Fault.REFUSED)


class _Kept(Storage):
    """One storage for several pipelines: `close` leaves it open for the others."""

    def close(self) -> None:
        pass


@dataclass
class Two:
    """Two replicas on one storage that fails at a rate, and their expected content."""

    kinds: Sequence[Fault]
    percent: int
    chance: RandomStream
    below: Storage = field(default_factory=storage)
    faults: list[Faults] = field(default_factory=list)
    several: list[Pipeline] = field(default_factory=list)
    orders: dict[int, Row] = field(default_factory=dict)
    pushed: int = 0

    def failing(self) -> Faults:
        def chosen(kinds: Sequence[Fault]) -> Callable[[str, str], Fault]:
            return lambda *_: (
                kinds[self.chance.below(len(kinds))] if self.chance.below(100) < self.percent else Fault.DONE
            )

        self.faults.append(Faults(chosen(self.kinds), chosen((Fault.REFUSED,))))
        return self.faults[-1]

    def start(self, at: int) -> None:
        some = self.failing()
        seen = _Kept(FaultyBlob(self.below.blob, some), FaultyMeta(self.below.meta, some), "memory")
        views = (with_sink(VIEWS["revenue"]), VIEWS["counts"], VIEWS["share"])
        made = retry(lambda: shop(seen, *views, settings=QUICK, role=ProcessRole.REPLICA))
        self.several[at : at + 1] = [made]

    def push(self, at: int) -> None:
        """Push one transaction to one replica, and repeat it at the other if its outcome is unknown."""
        number, is_gone = self.chance.below(12), self.chance.below(4) == 0
        row = order(number, f"c{number % 3}", self.chance.below(20))
        self.pushed += 1

        def push_once() -> None:
            nonlocal at
            at = 1 - at
            with self.several[at].transaction("till", self.pushed) as given:
                given.push("orders", [] if is_gone else [row], deletes=[{"id": number}] if is_gone else [])
                given.push("notes", [{"text": f"n{self.pushed}"}])
            self.several[at].take(given)

        retry(push_once)
        if is_gone:
            self.orders.pop(number, None)
        else:
            self.orders[number] = row

    def step(self) -> None:
        at = self.chance.below(2)
        one = self.several[at]
        match self.chance.below(10):
            case 0:
                retry(lambda: crash(one))
                self.start(at)
            case 1 | 2:
                retry(lambda: one.leads and one.checkpoint())
                retry(lambda: one.leads and one._leader_tasks.checkpointer.collect_garbage())
            case 3:
                retry(partial(deliver_once, one))
            case 4 | 5:
                retry(one.advance)
            case _:
                self.push(at)


def retry(call: Callable[[], object]) -> Pipeline:
    """Repeat the call as a supervisor would."""
    while True:
        try:
            return call()  # type: ignore[return-value]
        except (Unavailable, OutcomeUnknown):
            continue


@contextmanager
def two(kinds: Sequence[Fault], percent: int, seed: int) -> Iterator[Two]:
    made = Two(kinds, percent, RandomStream(seed))
    for at in range(2):
        made.start(at)
    try:
        yield made
    finally:
        made.percent = 0
        for one in made.several:
            if not one._is_closed:
                one.close(checkpoint=False)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("kinds", "percent"), [((Fault.DONE_LOST,), 10), ((Fault.LOST,), 10), ((Fault.REFUSED,), 10), (ALL, 5), (ALL, 15)]
)
def test_u1_two_replicas_on_a_failing_storage_apply_each_push_once(
    kinds: tuple[Fault, ...], percent: int, seed: int
) -> None:
    bucket = Bucket()
    with into(lake=bucket), two(kinds, percent, 10 * seed + percent) as both:
        for _ in range(STEPS):
            both.step()
        assert {*kinds} <= {kind for some in both.faults for kind in some.injected}
        both.percent = 0
        check(both, bucket)


def check(both: Two, bucket: Bucket) -> None:
    last = max(one._context.journal.upper for one in both.several) - 1
    for _ in range(5):
        for one in both.several:
            one.advance()
    for one in both.several:
        while one.time < last:
            one.advance()
        tables = {name: one.view(name).to_pylist() for name in ("orders", "notes")}
        assert {row["id"]: row for row in tables["orders"]} == both.orders
        assert len(tables["orders"]) == len(both.orders)
        assert sorted(row["text"] for row in tables["notes"]) == sorted(f"n{n + 1}" for n in range(both.pushed))
        assert {"revenue", "counts"} <= one.definition.live_views().keys()
        for name in one.definition.live_views():
            expected = sorted((tuple(row.values()) for row in VIEWS[name].function(tables)), key=repr)
            assert rows_of(one, name) == expected
        assert one.status().state == "running"
    [leader] = [one for one in both.several if one.leads]
    deliver_once(leader)
    assert bucket.numbers == sorted(set(bucket.numbers))
    assert is_right(leader, bucket)
