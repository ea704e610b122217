"""X1 to X4: random runs that combine these features, compared with plain Python after every transaction.

Backfills during transactions that wait for their commit, checkpoints, every kind of storage fault, views that rows make
fail, transactions in portions, views that are dropped and added, and restarts. A seed determines the run; it is in the
name of the test, and the soak test prints it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.pipeline.backfill.backfill import Backfill
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.state.members import Members
from evertide.sources.generated.seeded import RandomStream
from evertide.store.open import Storage
from evertide.threads.stopping import IsStopping
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.kit.small_engine import SmallEngine, SmallView
from tests.pipeline.kit import NOTES, ORDERS, SETTINGS, VIEWS, Row, crash, open_pipeline, rows_of
from tests.pipeline.replica_kit import shared
from tests.soak.rounds import Soak

QUICK = replace(
    SETTINGS,
    garbage_interval_s=1e-6,
    inline_bytes_max=256,
    rollup_every_diffs=4,
    portion_rows_max=3,
    retry_wait_s=1e-5,
    retry_wait_max_s=1e-4,
    retry_limit_s=0.005,
)
KINDS = (Fault.DONE_LOST, Fault.LOST, Fault.REFUSED)
STEPS = 25


def picky(tables: Mapping[str, list[Row]]) -> list[Row]:
    """Fail on other rows than `share` does."""
    return [{"n": sum(100 // (7 - row["amount"]) for row in tables["orders"]) + len(tables["notes"])}]


ALL = {**VIEWS, "picky": SmallView("picky", pa.schema([("n", pa.int64())]), ("orders", "notes"), picky)}


@dataclass
class Run:
    chance: RandomStream
    below: Storage = field(default_factory=shared)
    percent: int = 0
    orders: dict[int, Row] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    pushed: int = 0
    views: list[str] = field(default_factory=lambda: ["revenue", "share"])
    seen: Counter[str] = field(default_factory=Counter)
    owed: set[int] = field(default_factory=set)
    """Rows pushed during a backfill, until their push is acknowledged."""
    beside_last: int = 200
    p: Pipeline = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def fault(self, kinds: tuple[Fault, ...]) -> Fault:
        return kinds[self.chance.below(len(kinds))] if self.chance.below(100) < self.percent else Fault.DONE

    def open(self) -> None:
        """Open the pipeline, and retry as a supervisor does."""
        while True:
            faults = Faults(lambda *_: self.fault(KINDS), lambda *_: self.fault((Fault.REFUSED,)))
            seen = type(self.below)(FaultyBlob(self.below.blob, faults), FaultyMeta(self.below.meta, faults), "memory")
            made = SmallEngine([ORDERS, NOTES], [ALL[name] for name in self.views])
            try:
                self.p = open_pipeline(seen, made, settings=QUICK)
            except (Unavailable, OutcomeUnknown):
                self.percent = 0
            else:
                return

    def patiently(self, call: Callable[[], object]) -> None:
        """Repeat a call that fails because of storage, and restart a process that ends."""
        while True:
            try:
                call()
            except (Unavailable, OutcomeUnknown):
                self.seen["faults"] += 1
                self.percent = min(self.percent, 5)
                if self.p._process_state.error is not None:
                    self.reopen()
            else:
                return

    def reopen(self) -> None:
        self.percent = 0
        if not self.p._is_closed:
            crash(self.p)
        self.open()

    def push(self) -> None:
        """Push one transaction of several batches, often of more than one portion."""
        given: list[tuple[Row, bool, str]] = []
        for _ in range(1 + self.chance.below(4)):
            number = self.chance.below(8)
            amount = 7 * self.chance.below(2) if self.chance.below(5) == 0 else 1 + self.chance.below(6)
            row: Row = {"id": number, "customer": f"c{number % 3}", "amount": amount}
            given.append((row, self.chance.below(4) == 0, f"n{self.chance.below(3)}"))
        self.pushed += 1
        self.patiently(lambda: self.take(given))
        for row, is_gone, note in given:
            self.orders.pop(row["id"], None)
            if not is_gone:
                self.orders[row["id"]] = row
            self.notes[note] += 1

    def take(self, given: list[tuple[Row, bool, str]]) -> None:
        with self.p.transaction("till", self.pushed) as one:
            for row, is_gone, note in given:
                one.push("orders", [] if is_gone else [row], deletes=[{"id": row["id"]}] if is_gone else [])
                one.push("notes", [{"text": note}])
        self.p.take(one)

    def wait(self) -> None:
        """Make storage fail after a transaction, or a part of it, is computed."""
        self.percent = 20 + self.chance.below(80)
        self.push()
        self.percent = 0

    def tidy(self) -> None:
        self.p.checkpoint()
        self.p._leader_tasks.checkpointer.collect_garbage()

    def advance(self) -> None:
        self.p.advance()

    def evolve(self) -> None:
        self.patiently(lambda: self.p.checkpoint() if self.chance.below(2) else None)
        self.views = [name for name in ALL if self.chance.below(3)] or ["counts"]
        self.reopen()

    def step(self) -> None:
        self.percent = 5 if self.chance.below(3) == 0 else 0
        match self.chance.below(12):
            case 0:
                self.reopen()
            case 1:
                self.evolve()
            case 2 | 3:
                self.patiently(self.tidy)
            case 4:
                self.patiently(self.advance)
            case 5 | 6:
                self.wait()
            case _:
                self.push()
        self.percent = 0
        self.check()

    def beside(self) -> None:
        """Act between the computation of a backfill and its join."""
        self.seen["backfills"] += 1
        for _ in range(self.chance.below(4)):
            if self.chance.below(2):
                self.seen["checkpoints beside"] += 1
                self.p.checkpoint()
            else:
                self.beside_last += 1
                self.owed.add(self.beside_last)
                was, self.percent = self.percent, 100 * self.chance.below(2)
                try:
                    self.take_beside(self.beside_last)
                except (Unavailable, OutcomeUnknown):
                    self.seen["waits beside"] += 1
                finally:
                    self.percent = was

    def pay(self) -> None:
        for number in sorted(self.owed):
            self.take_beside(number)

    def take_beside(self, number: int) -> None:
        """Push a row during a backfill, with a producer of its own: a repeat is applied once."""
        row = {"id": number, "customer": "beside", "amount": 2}
        with self.p.transaction(f"beside{number}", 1) as one:
            one.push("orders", [row])
        self.p.take(one)
        self.orders[number] = row
        self.owed.discard(number)

    def check(self) -> None:
        """Check that tables and views equal plain Python, all at the same time."""
        self.patiently(self.pay)
        for _ in range(2):
            self.patiently(self.advance)
        p = self.p
        assert {row["id"]: row for row in p.view("orders").to_pylist()} == self.orders
        assert Counter(row["text"] for row in p.view("notes").to_pylist()) == self.notes
        tables = {name: p.view(name).to_pylist() for name in ("orders", "notes")}
        for name in p.definition.live_views():
            expected = sorted((tuple(row.values()) for row in ALL[name].function(tables)), key=repr)
            assert rows_of(p, name) == expected, name
            assert p.view(name).time == p.time, name
        self.seen["checks"] += 1


def survive(seed: int, steps: int) -> Run:
    compute = Backfill._compute
    runs: list[Run] = []

    def computed(self: Backfill, members: Members, is_stopping: IsStopping) -> None:
        compute(self, members, is_stopping)
        if runs and self._runner is runs[0].p._runner:  # skip backfills of a pipeline that is being opened
            runs[0].beside()

    with pytest.MonkeyPatch.context() as patched:
        run = Run(RandomStream(seed))
        runs.append(run)
        patched.setattr(Backfill, "_compute", computed)
        for _ in range(steps):
            run.step()
        run.p.close()
    return run


@pytest.mark.parametrize("seed", range(1, 7))
def test_x1_random_runs_equal_plain_python(seed: int) -> None:
    assert survive(seed, STEPS).seen["checks"] == STEPS


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_x1_long_random_runs_equal_plain_python(soak: Soak) -> None:
    soak.rounds("backfills", lambda seed: str(dict(survive(seed, 200).seen)))
