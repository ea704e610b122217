"""A target in memory, and pipelines that write to it, shared by the tests of delivery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from evertide.errors import SinkFailed
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.sinks.delivery_threads import DeliveryThreads
from evertide.plan.program.properties import SinkProperties
from evertide.rows.changes import DIFF
from evertide.settings import Settings
from evertide.sinks.contract import Changes, Prepared, SinkDeclaration
from evertide.store.open import Storage
from tests.kit.small_engine import SmallEngine, SmallView
from tests.pipeline.kit import NOTES, ORDERS, SETTINGS, VIEWS, Row, open_pipeline, rows_of


def delivery_threads_of(pipeline: Pipeline) -> DeliveryThreads:
    """Return the delivery threads of a leader."""
    found = pipeline._leader_tasks.delivery_threads
    assert found is not None
    return found


class Killed(BaseException):
    """Raised at the point where the process is killed."""


@dataclass
class Points:
    """Counts the points at which a process may be killed, and kills it at the chosen one."""

    chosen: int = -1
    passed: int = 0

    def tick(self) -> None:
        self.passed += 1
        if self.passed == self.chosen:
            raise Killed

    @contextmanager
    def around(self, *methods: str) -> Iterator[None]:
        """Count a point before and after each call of these methods: `module.Class.method`."""
        with pytest.MonkeyPatch.context() as patch:
            for method in methods:
                place, _, name = method.rpartition(".")
                module, _, owner = place.rpartition(".")
                patch.setattr(method, self._ticking(getattr(getattr(import_module(module), owner), name)))
            yield

    def _ticking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            self.tick()
            found = call(*given, **named)
            self.tick()
            return found

        return called


@dataclass
class Bucket:
    """A target that stores every write. Tests make it fail, and read its content."""

    is_failing: bool = False
    is_probe_failing: bool = False
    keeps_number: bool = True
    request_rows: int = 0
    token: str = ""
    got: list[tuple[int, Counter[tuple[Any, ...]]]] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    opened: int = 0
    rows_max: int = 0
    """The rows of the largest piece received."""
    declaration: SinkDeclaration | None = None
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None

    @property
    def numbers(self) -> list[int]:
        return [time for time, _ in self.got]

    def content(self) -> list[tuple[Any, ...]]:
        total: Counter[tuple[Any, ...]] = Counter()
        for _, delta in self.got:
            for row, diff in delta.items():
                total[row] += diff
        assert min(total.values(), default=0) >= 0
        return sorted(total.elements(), key=repr)

    def probe(self) -> None:
        if self.is_probe_failing:
            raise SinkFailed(sink="lake", where="bucket", why="it does not answer")

    def open(self, token: str) -> _Opened:
        if self.is_failing:
            raise SinkFailed(sink="lake", where="bucket", why="it does not answer")
        assert self.token in ("", token), "another sink's target"
        self.token = token
        self.opened += 1
        return _Opened(self, self.keeps_number)


@dataclass
class _Opened:
    bucket: Bucket
    keeps_number: bool
    name: str = "lake"

    def last(self) -> int | None:
        return max(self.bucket.numbers, default=None)

    def write(self, time: int, changes: Changes) -> None:
        bucket = self.bucket
        if bucket.is_failing:
            raise SinkFailed(sink="lake", where="bucket", why="it does not answer")
        bucket.before()
        assert not changes.is_empty, "a write of an empty transaction"
        if time <= max(bucket.numbers, default=-1):
            bucket.skipped.append(time)
            return
        got: Counter[tuple[Any, ...]] = Counter()
        for piece in changes:
            bucket.rows_max = max(bucket.rows_max, piece.num_rows)
            for each in piece.to_pylist():
                diff = each.pop(DIFF)
                assert tuple(each.values()) not in got, "a row in two pieces"
                got[tuple(each.values())] = diff
        bucket.got.append((time, got))
        bucket.after()

    def close(self) -> None:
        pass


@contextmanager
def into(**buckets: Bucket) -> Iterator[None]:
    """Make pipelines that are opened in the block write to these buckets, by the name of the sink."""

    def prepare(declarations: Sequence[SinkDeclaration]) -> dict[str, Prepared]:
        for one in declarations:
            buckets[one.name].declaration = one
        return {
            one.name: Prepared(buckets[one.name].open, buckets[one.name].probe, buckets[one.name].request_rows)
            for one in declarations
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evertide.pipeline.sinks.delivery_threads.prepare_sinks", prepare)
        yield


def sink(name: str = "lake", connector: str = "files", **options: str) -> SinkProperties:
    return SinkProperties(name, connector, options, "shop.sql, line 3")


def with_sink(view: SmallView, *sinks: SinkProperties, version: int = 1) -> SmallView:
    return replace(view, sinks=sinks or (sink(),), version=version)


def shop(
    store: Storage,
    *views: SmallView,
    base: Path = Path(),
    settings: Settings = SETTINGS,
    threads: bool = False,
    **options: Any,
) -> Pipeline:
    made = SmallEngine(options.pop("tables", (ORDERS, NOTES)), views or (with_sink(VIEWS["revenue"]),))
    return open_pipeline(store, made, base=base, settings=settings, threads=threads, **options)


def order(number: int, customer: str | None = "ann", amount: int | None = 10) -> Row:
    return {"id": number, "customer": customer, "amount": amount}


def push_orders(pipeline: Pipeline, rows: list[Row] | None = None, deletes: list[Row] | None = None) -> int:
    """Commit one transaction of orders; without rows, one that does not change the orders."""
    if rows or deletes:
        pipeline.push("orders", rows or [], deletes=deletes or [])
    else:
        pipeline.push("notes", [{"text": "x"}])
    return pipeline.commit()


def die(pipeline: Pipeline) -> None:
    """End the process as `kill -9` does, and deregister its writer; nothing more is recorded."""
    pipeline._writer.unregister()
    pipeline._is_closed = True


def is_right(pipeline: Pipeline, bucket: Bucket, view: str = "revenue") -> bool:
    return bucket.content() == rows_of(pipeline, view)
