"""A random run of a pipeline on Spark, in which features meet; it follows from a seed, threads apart.

One run is a storage, a model of its tables, and a number of steps. Each step is one of

    transaction   random rows, updates and deletes; some rows make a view fail, some transactions are several portions
    fault         storage calls fail in every way that they can, while the next steps go on
    checkpoint    as the pipeline makes it
    maintenance   compaction, and garbage collection of shards and state
    script        the pipeline is closed or crashes, and opens with another script: views are added, changed and
                  dropped, a table is undeclared or declared again
    repair        the rows that make views fail are deleted; every view must come back

After every transaction, each view that takes part is compared with Spark's answer to its query over the model, and each
table with the model. A step may fail because storage does; the pipeline itself must never fail.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from evertide.errors import OutcomeUnknown, TimeCompacted, Unavailable
from evertide.flow import stage
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.spark_engine import SparkEngine
from evertide.plan.catalyst.session import open_session
from evertide.plan.fragment import fragment
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.sources.generated.seeded import RandomStream
from evertide.store.memory import MemoryBlob, MemoryMeta
from evertide.store.open import Storage
from tests.kit.compare import compare
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.kit.oracle import Reference
from tests.pipeline.kit import crash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KEYS", "CombinedRun", "count_few_rows_as_many"]

LIMIT_S = 120.0
LOADED = 1_000
"""Rows of the table `u` at the beginning, so that views over it take many portions."""
SETTINGS = Settings(
    retry_limit_s=0.2,
    retry_wait_s=0.001,
    retry_wait_max_s=0.02,
    retry_view_s=0.05,
    portion_rows_max=30,
    inline_bytes_max=600,
    rollup_every_diffs=6,
    checkpoint_interval_s=0.3,
    maintenance_interval_s=0.1,
    garbage_interval_s=0.3,
    store_ahead_rows=20,
)

KEYS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "bigint": ("BIGINT", lambda number: number * (1 << 58) - 7),
    "tinyint": ("TINYINT", lambda number: number - 8),
    "string": ("STRING", lambda number: ["", "a", "A", "ä", "\U0001f600"][number % 5] * (1 + number // 5)),
    "double": ("DOUBLE", lambda number: [math.inf, -math.inf, 1e308, 5e-324][number % 4] if number < 4 else number / 7),
    "decimal": ("DECIMAL(38, 10)", lambda number: Decimal(number - 8) * Decimal("1234567890123456789.0123456789")),
    "date": ("DATE", lambda number: dt.date(1, 1, 1) + dt.timedelta(days=number * 200_000)),
    "timestamp": (
        "TIMESTAMP",
        lambda number: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=number * 9999, microseconds=number),
    ),
    "binary": ("BINARY", lambda number: bytes([0, 255, number]) * (number % 3) + bytes([number])),
    "boolean": ("BOOLEAN", lambda number: number % 2 == 0),
}
"""Types of the key of the table `t`, and the value of a number below 16 in each."""
FLOATS = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e16, -1e16, 1.0, 0.1, -3.5, 5e-324, None)
DECIMALS = (Decimal(0), Decimal("1e-10"), Decimal("-999999999.9999999999"), Decimal("7.25"), None)
TEXTS = ("x", "X", "x ", "", "é", "7", "008", None)
BAD = "no number"
"""A text that makes the view `numbers` fail."""

TABLE_U = "CREATE TABLE u (g STRING, v INT);"
VIEWS: dict[str, tuple[str, ...]] = {
    "sums": (
        "SELECT g, count(*) AS n, count(x) AS nx, min(x) AS lo, max(x) AS hi, sum(d) AS d FROM t GROUP BY g",
        "SELECT g, count(*) AS n, count(DISTINCT x) AS nx, min(d) AS lo, max(d) AS hi FROM t GROUP BY g",
    ),
    "pairs": (
        "SELECT t.k, t.g, u.v FROM t JOIN u ON t.g = u.g",
        "SELECT t.k, t.g, u.v FROM t LEFT JOIN u ON t.g = u.g AND u.v > 2",
        "SELECT t.k, u.g, u.v FROM t FULL JOIN u ON t.g = u.g AND 10 DIV if(t.g IS NULL, 0, 1) > u.v",
    ),
    "ranked": (
        "SELECT k, g, row_number() OVER (PARTITION BY g ORDER BY x, k) AS place FROM t",
        "SELECT k, g, lag(d) OVER (PARTITION BY g ORDER BY x DESC, k) AS before FROM t",
    ),
    "few": ("SELECT k, x FROM t ORDER BY x DESC, k LIMIT 3", "SELECT k, x FROM t ORDER BY x, k LIMIT 4 OFFSET 1"),
    "shares": (
        "SELECT g, v, 100 / v AS share FROM u",
        "SELECT g, count(*) AS n, sum(100 DIV v) AS share FROM u GROUP BY g",
    ),
    "numbers": ("SELECT k, CAST(s AS INT) AS number FROM t WHERE s IS NOT NULL",),
    "above": ("SELECT n, count(*) AS groups FROM sums GROUP BY n",),
}
"""By view, its definitions. `shares` fails if a `v` is 0, `numbers` if an `s` is no number; `above` reads `sums`. The
condition of the last `pairs` fails for a `g` that is NULL, which has no partner, so that the view does not fail."""
OF_U = {"pairs", "shares"}


def count_few_rows_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run joins by the linear rule, and joins of more than one portion on the executors."""
    monkeypatch.setattr(stage, "ROWS_SURPLUS_MAX", 0)
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 2 * SETTINGS.portion_rows_max)


@dataclass
class CombinedRun:
    spark: SparkSession
    seed: int
    threads: bool = True
    key: str = ""
    did: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = RandomStream(self.seed)
        self.key = self.key or sorted(KEYS)[self.chance.below(len(KEYS))]
        self.rate = 0.0
        self.fault_chance = self.chance.fork(1)
        faults = Faults(self._choose, self._choose_read)
        self.runtime = SystemRuntime()
        self.storage = Storage(FaultyBlob(MemoryBlob(), faults), FaultyMeta(MemoryMeta(self.runtime), faults), "memory")
        self.faults = faults
        self.views: dict[str, int] = {"sums": 0, "numbers": 0, "ranked": 0}
        self.has_u = True
        self.model: dict[str, dict[Any, dict[str, Any]]] = {"t": {}, "u": {}}
        self.number = 0
        self.p: Pipeline = self.open()
        self.commit({"u": ([self._row_of_u() for _ in range(LOADED)], [])})

    # The pipeline

    def script(self) -> str:
        kind = KEYS[self.key][0]
        tables = (
            f"CREATE TABLE t (k {kind} NOT NULL, g STRING, x DOUBLE, d DECIMAL(20, 10), s STRING, PRIMARY KEY (k));"
        )
        made = [f"CREATE MATERIALIZED VIEW {name} AS {VIEWS[name][version]};" for name, version in self.views.items()]
        return "\n".join([tables, *([TABLE_U] if self.has_u else []), *made])

    def open(self) -> Pipeline:
        deadline_s = self.runtime.monotonic_s() + LIMIT_S
        while True:
            try:
                return Pipeline(
                    SparkEngine(open_session(self.spark), self.script()),
                    self.storage,
                    base=Path(),
                    runtime=self.runtime,
                    settings=SETTINGS,
                    threads=self.threads,
                )
            except (Unavailable, OutcomeUnknown):
                assert self.runtime.monotonic_s() < deadline_s, "the pipeline does not open"
                self.did["opened in vain"] += 1
                self.rate *= 0.5

    def end(self) -> None:
        self.rate = 0.0
        self.p.close()

    # Steps

    def run(self, steps: int) -> str:
        try:
            for _ in range(steps):
                self.step()
            self.repair()
            self.end()
        except BaseException:
            print(f"seed {self.seed}, key {self.key}, {dict(self.did)}\n{self.script()}", flush=True)
            raise
        faults = sum(count for fault, count in self.faults.injected.items() if fault is not Fault.DONE)
        return f"key {self.key}, {self.number} transactions, {faults} faults, {dict(self.did)}"

    def step(self) -> None:
        steps = [
            *[self.transaction] * 10,
            *[self.fault] * 3,
            self.checkpoint,
            self.maintain,
            *[self.change_script] * 2,
            self.repair,
        ]
        chosen = steps[self.chance.below(len(steps))]
        self.did[chosen.__name__] += 1
        chosen()

    def fault(self) -> None:
        """Make storage calls fail until the next transaction commits."""
        self.rate = (0.02, 0.1, 0.3)[self.chance.below(3)]

    def transaction(self) -> None:
        self.commit(self._changes())
        self.compare()

    def checkpoint(self) -> None:
        with self._tolerating():
            self.p.checkpoint()

    def maintain(self) -> None:
        with self._tolerating():
            for shard in self.p._runner.members.open_all().values():
                shard.compact(self.p._writer)
                shard.collect_garbage(self.p._writer, self.p._context.checkpoints.find_pins)

    def change_script(self) -> None:
        """Close or crash the pipeline, with or without storage faults, and open it with another script."""
        if self.chance.below(2):
            crash(self.p)
        else:
            with self._tolerating():
                self.p.close()
            if not self.p._is_closed:
                crash(self.p)
        for _ in range(1 + self.chance.below(2)):
            self._change_views()
        self.p = self.open()
        self.rate = 0.0
        self.burst(4 + self.chance.below(6))

    def burst(self, count: int) -> None:
        """Commit transactions without a pause while the backfills of a new script run, then compare every view."""
        models = {}
        for _ in range(count):
            self.commit(self._changes())
            models[self.p.time] = {name: dict(rows) for name, rows in self.model.items()}
        now = self.model
        for time, self.model in models.items():
            self.compare(time)
        self.model = now
        self.compare()

    def repair(self) -> None:
        """Delete every row that makes a view fail, and check that all views recover and are correct."""
        self.rate = 0.0
        bad_t = [row for row in self.model["t"].values() if row["s"] == BAD]
        bad_u = [row for row in self.model["u"].values() if row["v"] == 0] if self.has_u else []
        self.commit({"t": ([], bad_t), "u": ([], bad_u)})
        deadline_s = self.runtime.monotonic_s() + LIMIT_S
        while away := [one for one in self.p.status().collections if one.kind == "view" and one.state != "running"]:
            assert self.runtime.monotonic_s() < deadline_s, f"views do not recover: {away}"
            self.p.wait_until_hydrated(5.0)
            self.p.advance()  # the pipeline's loop also retries failed views here
            self.runtime.sleep_s(0.02)
        assert self.compare() == set(self.views), "not all views were compared"

    # Inside

    def _choose(self, operation: str, key: str) -> Fault:
        if self.fault_chance.random() >= self.rate:
            return Fault.DONE
        return (Fault.DONE_LOST, Fault.LOST, Fault.REFUSED)[self.fault_chance.below(3)]

    def _choose_read(self, operation: str, key: str) -> Fault:
        return Fault.REFUSED if self.fault_chance.random() < self.rate else Fault.DONE

    @contextmanager
    def _tolerating(self) -> Iterator[None]:
        """Allow a step to fail only because of an injected storage fault."""
        try:
            yield
        except (Unavailable, OutcomeUnknown):
            assert self.rate > 0, "a step failed although storage was available"
            self.did["refused"] += 1

    def _row(self, number: int) -> dict[str, Any]:
        pick = self.chance.below
        text = BAD if pick(30) == 0 else str(pick(1000) - 500)
        return {
            "k": KEYS[self.key][1](number),
            "g": TEXTS[pick(len(TEXTS))],
            "x": FLOATS[pick(len(FLOATS))],
            "d": DECIMALS[pick(len(DECIMALS))],
            "s": None if pick(4) == 0 else text,
        }

    def _row_of_u(self, *, zero: bool = False) -> dict[str, Any]:
        return {
            "g": (*TEXTS, *map(str, range(90)))[self.chance.below(98)],
            "v": 0 if zero else self.chance.below(9) + 1,
        }

    def _changes(self) -> dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
        """Return, by table, the rows to write and the rows to delete."""
        pick = self.chance.below
        written = [self._row(pick(16)) for _ in range((1, 3, 8, 40)[pick(4)])]
        held = [*self.model["t"].values()]
        gone = [held[pick(len(held))] for _ in range(pick(4))] if held else []
        changes = {"t": (written, gone)}
        if self.has_u:
            come = [self._row_of_u(zero=pick(40) == 0) for _ in range((0, 2, 45)[pick(3)])]
            there = [*self.model["u"].values()]
            changes["u"] = (come, [there[pick(len(there))]] if there and pick(3) == 0 else [])
        return changes

    def commit(self, changes: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]) -> None:
        """Push the changes until one push succeeds; repeats carry the same number."""
        self.number += 1
        deadline_s = self.runtime.monotonic_s() + LIMIT_S
        while True:
            try:
                with self.p.transaction("run", self.number) as pushed:
                    for table, (written, gone) in changes.items():
                        if written or gone:
                            pushed.push(table, written, deletes=gone)
                if pushed.rows:
                    self.p.take(pushed)
                break
            except (Unavailable, OutcomeUnknown):
                assert self.rate > 0, "a push failed although storage was available"
                assert self.runtime.monotonic_s() < deadline_s, "the transaction does not commit"
                self.did["given again"] += 1
                self.rate *= 0.7 if self.rate > 0.01 else 0.0
        self.rate = 0.0
        self._apply(changes)

    def _apply(self, changes: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]) -> None:
        """Apply deletes first; a delete removes one of several equal rows in a table without a key."""
        written, gone = changes.get("t", ([], []))
        for row in gone:
            self.model["t"].pop(_same(row["k"]), None)
        for row in written:
            self.model["t"][_same(row["k"])] = row
        written, gone = changes.get("u", ([], []))
        for row in gone:
            place = next(at for at, held in self.model["u"].items() if held == row)
            del self.model["u"][place]
        for at, row in enumerate(written):
            self.model["u"][self.number, at] = row

    def _change_views(self) -> None:
        pick = self.chance.below
        name = sorted(VIEWS)[pick(len(VIEWS))]
        kind = pick(4)
        if kind == 0 and self.has_u:
            self.has_u = False
            self.views = {view: version for view, version in self.views.items() if view not in OF_U}
            self.did["undeclared"] += 1
        elif kind == 0:
            self.has_u = True
        elif name in self.views and kind == 1:
            self.views.pop(name)
        elif name not in OF_U or self.has_u:
            self.views[name] = pick(len(VIEWS[name]))
        if "sums" not in self.views:
            self.views.pop("above", None)
        order = [view for view in VIEWS if view in self.views]
        self.views = {view: self.views[view] for view in order}

    def compare(self, time: int | None = None) -> set[str]:
        """Compare the tables and every readable member view at the time; return the names of the views compared."""
        status = self.p.status()
        assert status.state in ("running", "stalled"), status
        states = {one.name: one.state for one in status.collections}
        reference = self._reference()
        for table in ("t", "u") if self.has_u else ("t",):
            if (found := self._read(table, time)) is not None:
                compare(found, reference.rows(table), where=f"table {table}, as of {time}")
        compared = set()
        for view, version in self.views.items():
            if states[view] == "running" and (found := self._read(view, time)) is not None:
                expected = reference.by_spark(VIEWS[view][version])
                where = f"view {view}, version {version}, as of {time}, after push {self.number}"
                compare(found, expected, where=where)
                compared.add(view)
        return compared

    def _read(self, collection: str, time: int | None) -> pa.Table | None:
        """Return None if the collection is not readable at that time."""
        view = self.p.view(collection)
        try:
            return (view if time is None else view.as_of(time)).to_arrow()
        except TimeCompacted:
            return None

    def _reference(self) -> Reference:
        schemas = {name: table.schema for name, table in self.p.engine.tables.items()}
        views = {"sums": VIEWS["sums"][self.views["sums"]]} if "sums" in self.views else {}
        reference = Reference(self.spark, schemas, views)
        for name, schema in schemas.items():
            rows = [{**row, "__diff": 1} for row in self.model[name].values()]
            full = pa.schema([*schema, pa.field("__diff", pa.int64(), nullable=False)])
            reference.apply({name: pa.Table.from_pylist(rows, full)})
        return reference


def _same(key: Any) -> Any:
    """Treat 0.0 and -0.0 as one key."""
    return key + 0.0 if isinstance(key, float) else key
