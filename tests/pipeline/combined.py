"""A random run of a pipeline on Spark, in which features meet; it follows from a seed, threads apart.

One run is a storage, a model of its tables, and a number of steps. Each step is one of

    transaction   random rows, updates and deletes; some rows make a view fail, some transactions are several portions
    fault         storage calls fail in every way that they can, and so do temporary files, while the next steps go on
    checkpoint    as the pipeline makes it
    maintenance   compaction, and garbage collection of shards and state
    script        the pipeline is closed or crashes, and opens with another script: views are added, changed and
                  dropped, a table is undeclared or declared again, also the one that a connector reads from files;
                  the view `sums` gets a sink, or loses it
    repair        the rows that make views fail are deleted; every view must come back, every file must have been read
                  once, and the sink must have what its view has

Every third seed has its storage on a disk, with SQLite; the others have it in memory. In every fourth seed a read-only
replica follows, and compares what it computes with the digests of the leader.

After every transaction, each view that takes part is compared with Spark's answer to its query over the model, and each
table with the model. A step may fail because storage does; the pipeline itself must never fail.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from evertide.errors import OutcomeUnknown, TimeCompacted, Unavailable
from evertide.flow import stage
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.spark_engine import SparkEngine
from evertide.plan.catalyst.session import open_session
from evertide.plan.fragment import fragment
from evertide.rows.changes import TIME, consolidate_delta, expand
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.sources.generated.seeded import RandomStream
from evertide.store.memory import MemoryBlob, MemoryMeta
from evertide.store.open import Storage, open_storage
from tests.kit.compare import compare
from tests.kit.delivering import deliver_once
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.kit.oracle import Reference
from tests.pipeline.combined_data import BAD, KEYS, NO_JSON, READS, TEXTS, VIEWS, make_row, make_script
from tests.pipeline.kit import crash

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
        if self.key == "time":  # Spark 4.1 has the type only with this setting
            session = self.spark._jsparkSession.cloneSession()
            self.spark = SparkSession(self.spark.sparkContext, jsparkSession=session)
            self.spark.conf.set("spark.sql.timeType.enabled", "true")
        self.rate = 0.0
        """The share of storage calls that fail."""
        self.scratch_rate = 0.0
        """The share of temporary files that cannot be made."""
        self.fault_chance = self.chance.fork(1)
        self.faults = Faults(self._choose, self._choose_read)
        self.runtime = SystemRuntime()
        self.directory = Path(tempfile.mkdtemp(prefix="combined-"))
        (self.directory / "files").mkdir()
        self.memory = MemoryBlob(), MemoryMeta(self.runtime)
        self.views: dict[str, int] = {"sums": 0, "numbers": 0, "ranked": 0, "read": 0}
        self.tables = {"u": True, "m": True}
        self.sink = 1
        """The number of the sink of `sums`; 0 if it has none."""
        self.sinks_made = 1
        self.model: dict[str, dict[Any, dict[str, Any]]] = {"t": {}, "u": {}}
        self.files: dict[int, Counter[tuple[int, int]]] = {}
        """The rows of each file that was written."""
        self.files_read: set[int] = set()
        self.number = 0
        self.follower: Pipeline | None = None
        self.p: Pipeline = self.open()
        self.commit({"u": ([self._row_of_u() for _ in range(LOADED)], [])})

    # The pipeline

    def script(self) -> str:
        sink = f"{self.directory}/lake{self.sink}" if self.sink else ""
        return make_script(self.key, self.tables, self.views, f"{self.directory}/files", sink)

    def _open_storage(self) -> Storage:
        if self.seed % 3:
            blob, meta = self.memory
            return Storage(FaultyBlob(blob, self.faults), FaultyMeta(meta, self.faults), "memory")
        with self._no_faults():
            kept = open_storage(self.directory / "storage", runtime=self.runtime, settings=SETTINGS)
        return Storage(FaultyBlob(kept.blob, self.faults), FaultyMeta(kept.meta, self.faults), kept.root)

    def open(self) -> Pipeline:
        if self.seed % 4 != 1:
            return self._open_as(ProcessRole.ALONE)
        leader = self._open_as(ProcessRole.REPLICA)
        self.follower = self._open_as(ProcessRole.READ_ONLY)
        return leader

    def _open_as(self, role: ProcessRole) -> Pipeline:
        deadline_s = self.runtime.monotonic_s() + LIMIT_S
        while True:
            try:
                return Pipeline(
                    SparkEngine(open_session(self.spark), self.script()),
                    self._open_storage(),
                    base=Path(),
                    runtime=self.runtime,
                    settings=SETTINGS,
                    threads=self.threads,
                    role=role,
                )
            except (Unavailable, OutcomeUnknown):
                assert self.runtime.monotonic_s() < deadline_s, "the pipeline does not open"
                self.did["opened in vain"] += 1
                self.rate *= 0.5
                self.scratch_rate *= 0.5

    def end(self) -> None:
        self._end_faults()
        self._follow()
        self._end_process(self.follower)
        self.p.close()

    def _end_faults(self) -> None:
        self.rate = self.scratch_rate = 0.0

    # Steps

    def run(self, steps: int) -> str:
        try:
            with self._failing_scratch():
                for _ in range(steps):
                    self.step()
                self.repair()
                self.end()
        except BaseException:
            print(f"seed {self.seed}, key {self.key}, {dict(self.did)}\n{self.script()}", flush=True)
            raise
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
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
            self.follow,
        ]
        chosen = steps[self.chance.below(len(steps))]
        self.did[chosen.__name__] += 1
        chosen()

    def fault(self) -> None:
        """Make storage calls or temporary files fail until the next transaction commits."""
        rate, kind = (0.02, 0.1, 0.3)[self.chance.below(3)], self.chance.below(4)
        self.rate = rate if kind else 0.0
        self.scratch_rate = rate if kind < 2 else 0.0

    def transaction(self) -> None:
        self.commit(self._changes())
        self._follow()
        self.compare()

    def checkpoint(self) -> None:
        with self._tolerating():
            self.p.checkpoint()

    def maintain(self) -> None:
        with self._tolerating():
            for shard in self.p._runner.members.open_all().values():
                shard.compact(self.p._writer)
                shard.collect_garbage(self.p._writer, self.p._context.checkpoints.find_pins)

    def follow(self) -> None:
        """Let the follower make one step, also while storage or temporary files fail."""
        with self._tolerating():
            if self.follower is not None:
                self.follower.advance()

    def change_script(self) -> None:
        """Close or crash the pipeline, with or without storage faults, and open it with another script."""
        self._end_process(self.follower)
        self._end_process(self.p)
        for _ in range(1 + self.chance.below(2)):
            self._change_views()
        self.p = self.open()
        self._end_faults()
        self.burst(4 + self.chance.below(6))

    def _end_process(self, process: Pipeline | None) -> None:
        if process is None:
            return
        if self.chance.below(2):
            crash(process)
        else:
            with self._tolerating():
                process.close()
            if not process._is_closed:
                crash(process)
        process.storage.close()

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
        self._end_faults()
        bad_t = [row for row in self.model["t"].values() if row["s"] == BAD or row["j"] == NO_JSON]
        bad_u = [row for row in self.model["u"].values() if row["v"] == 0] if self.tables["u"] else []
        self.commit({"t": ([], bad_t), "u": ([], bad_u)})
        self._wait(lambda: not self._list_away(), lambda: f"views do not recover: {self._list_away()}")
        if self.tables["m"]:
            self._wait(
                lambda: self._find_files() == self.files.keys(),
                lambda: f"files were not read: {self.files.keys() - self._find_files()}",
            )
        assert self.compare() == set(self.views), "not all views were compared"
        if self.sink:
            self._wait(self._has_delivered, lambda: f"the sink is behind: {self.p.status().sinks}")
            self._compare_sink()

    def _wait(self, is_reached: Callable[[], bool], describe: Callable[[], str]) -> None:
        deadline_s = self.runtime.monotonic_s() + LIMIT_S
        while not is_reached():
            assert self.runtime.monotonic_s() < deadline_s, describe()
            self.p.wait_until_hydrated(5.0)
            self.p.advance()  # the pipeline's loop also retries failed views here
            self.runtime.sleep_s(0.02)

    def _follow(self) -> None:
        """Let the follower replay everything: no view of it may differ from the leader's."""
        if self.follower is None:
            return
        deadline_s = self.runtime.monotonic_s() + LIMIT_S
        while self.follower.time < self.p.time:
            assert self.runtime.monotonic_s() < deadline_s, "the follower does not catch up"
            self.follower.advance()
        assert not self.follower._runner.lost, "views of the follower differ"
        self.did["followed"] += 1

    def _list_away(self) -> list[str]:
        found = self.p.status().collections
        return [f"{one.name}: {one.why}" for one in found if one.kind == "view" and one.state != "running"]

    def _has_delivered(self) -> bool:
        if not self.threads:
            deliver_once(self.p)
        return all(sink.behind == 0 and sink.problem is None for sink in self.p.status().sinks)

    def _compare_sink(self) -> None:
        """The changes in the sink's files add up to the content of its view."""
        files = sorted((self.directory / f"lake{self.sink}").glob("*.parquet"))
        found = consolidate_delta(pa.concat_tables([pq.read_table(file).drop_columns([TIME]) for file in files]))
        compare(expand(found), self.p.view("sums").to_arrow(), where=f"sink {self.sink} of the view sums")
        self.did["sinks compared"] += 1

    # Inside

    def _choose(self, operation: str, key: str) -> Fault:
        if self.fault_chance.random() >= self.rate:
            return Fault.DONE
        return (Fault.DONE_LOST, Fault.LOST, Fault.REFUSED)[self.fault_chance.below(3)]

    def _choose_read(self, operation: str, key: str) -> Fault:
        return Fault.REFUSED if self.fault_chance.random() < self.rate else Fault.DONE

    @contextmanager
    def _failing_scratch(self) -> Iterator[None]:
        """Let files in the temporary directory fail at `scratch_rate`: it is full, or a call fails once."""

        def failing(call: Callable[..., Any]) -> Callable[..., Any]:
            def make(*given: Any, **named: Any) -> Any:
                if self.fault_chance.random() < self.scratch_rate:
                    self.did["no scratch"] += 1
                    number = (errno.ENOSPC, errno.EIO)[self.fault_chance.below(2)]
                    raise OSError(number, os.strerror(number))
                return call(*given, **named)

            return make

        with pytest.MonkeyPatch.context() as patch:
            for name in ("mkstemp", "TemporaryFile"):
                patch.setattr(tempfile, name, failing(getattr(tempfile, name)))
            yield

    @contextmanager
    def _no_faults(self) -> Iterator[None]:
        rates = self.rate, self.scratch_rate
        self._end_faults()
        try:
            yield
        finally:
            self.rate, self.scratch_rate = rates

    @property
    def _is_failing(self) -> bool:
        return self.rate > 0 or self.scratch_rate > 0

    @contextmanager
    def _tolerating(self) -> Iterator[None]:
        """Allow a step to fail only because of an injected fault."""
        try:
            yield
        except (Unavailable, OutcomeUnknown):
            assert self._is_failing, "a step failed although storage was available"
            self.did["refused"] += 1

    def _row_of_u(self, *, zero: bool = False) -> dict[str, Any]:
        return {
            "g": (*TEXTS, *map(str, range(90)))[self.chance.below(98)],
            "v": 0 if zero else self.chance.below(9) + 1,
        }

    def _changes(self) -> dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
        """Return, by table, the rows to write and the rows to delete."""
        pick = self.chance.below
        written = [make_row(self.key, pick(16), self.chance) for _ in range((1, 3, 8, 40)[pick(4)])]
        held = [*self.model["t"].values()]
        gone = [held[pick(len(held))] for _ in range(pick(4))] if held else []
        changes = {"t": (written, gone)}
        if pick(4) == 0:
            self._write_file()
        if self.tables["u"]:
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
                assert self._is_failing, "a push failed although storage was available"
                assert self.runtime.monotonic_s() < deadline_s, "the transaction does not commit"
                self.did["given again"] += 1
                self.rate *= 0.7 if self.rate > 0.01 else 0.0
                self.scratch_rate *= 0.7 if self.scratch_rate > 0.01 else 0.0
        self._end_faults()
        self._apply(changes)

    def _write_file(self) -> None:
        """Add a file to those of `m`, at once; it has its number in each row."""
        at = len(self.files) + 1
        rows = [(self.chance.below(9), at) for _ in range(1 + self.chance.below(30))]
        self.files[at] = Counter(rows)
        new = self.directory / "new"
        new.write_text("k,n\n" + "".join(f"{k},{n}\n" for k, n in rows))
        new.rename(self.directory / "files" / f"{at:06}.csv")

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
        kind, table = pick(4), "um"[pick(2)]
        if kind == 0 and self.tables[table]:
            self.tables[table] = False
            self.views = {view: version for view, version in self.views.items() if READS.get(view) != table}
            self.did["undeclared"] += 1
        elif kind == 0:
            self.tables[table] = True
        elif name in self.views and kind == 1:
            self.views.pop(name)
        elif self.tables.get(READS.get(name, ""), True):
            self.views[name] = pick(len(VIEWS[name]))
        if "sums" not in self.views:
            self.views.pop("above", None)
        if "sums" not in self.views or (self.sink and pick(4) == 0):
            self.sink = 0
        elif not self.sink:
            self.sink = self.sinks_made = self.sinks_made + 1
        order = [view for view in VIEWS if view in self.views]
        self.views = {view: self.views[view] for view in order}

    def compare(self, time: int | None = None) -> set[str]:
        """Compare the tables and every readable member view at the time; return the names of the views compared."""
        status = self.p.status()
        assert status.state in ("running", "stalled"), status
        states = {one.name: one.state for one in status.collections}
        has_m = self.tables["m"] and self._take_files(time)
        reference = self._reference()
        for table in ("t", "u") if self.tables["u"] else ("t",):
            if (found := self._read(table, time)) is not None:
                compare(found, reference.rows(table), where=f"table {table}, as of {time}")
        compared = set()
        for view, version in self.views.items():
            if READS.get(view) == "m" and not has_m:
                continue
            if states[view] == "running" and (found := self._read(view, time)) is not None:
                expected = reference.by_spark(VIEWS[view][version])
                where = f"view {view}, version {version}, as of {time}, after push {self.number}"
                compare(found, expected, where=where)
                compared.add(view)
        return compared

    def _take_files(self, time: int | None) -> bool:
        """Check that the table has whole files, each once, and take it as the model. False if it cannot be read."""
        found = self._read("m", time)
        if found is None:
            return False
        rows = found.to_pylist()
        by_file: dict[int, Counter[tuple[int, int]]] = {}
        for row in rows:
            by_file.setdefault(row["n"], Counter())[row["k"], row["n"]] += 1
        assert by_file == {at: self.files[at] for at in by_file}, f"table m, as of {time}"
        if time is None:
            assert self.files_read <= by_file.keys(), "rows of files have disappeared"
            self.files_read = set(by_file)
        self.model["m"] = dict(enumerate(rows))
        return True

    def _find_files(self) -> set[int]:
        return {row["n"] for row in self.p.view("m").to_pylist()}

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
            rows = [{**row, "__diff": 1} for row in self.model.get(name, {}).values()]
            full = pa.schema([*schema, pa.field("__diff", pa.int64(), nullable=False)])
            reference.apply({name: pa.Table.from_pylist(rows, full)})
        return reference


def _same(key: Any) -> Any:
    """Treat 0.0 and -0.0 as one key, and all NaN as one key."""
    if isinstance(key, dict):
        return tuple(map(_same, key.values()))
    return "NaN" if key != key else key + 0.0 if isinstance(key, float) else key  # noqa: PLR0124
