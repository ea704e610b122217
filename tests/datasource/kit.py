"""A pipeline on disk with a known history, for the tests of the data source. Needs no Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.datasource.planning import ReadTask, choose_read_point, plan_tasks
from evertide.datasource.request import Request
from evertide.datasource.task import read_task
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.settings import Settings
from evertide.shard.shard import Shard
from evertide.store.open import open_storage
from tests.kit.small_engine import SmallEngine, SmallView
from tests.pipeline.kit import open_pipeline

Row = dict[str, Any]
Content = Counter[tuple[str, ...]]

BLOBS = Settings(
    inline_bytes_max=1, part_rows_max=4, compaction_fan_in=3, retry_limit_s=5.0, retry_wait_s=0.01, poll_interval_s=0.01
)
"""Every batch is blobs of four rows: many parts from the first rows on."""

THINGS = DeclaredTable(
    "things",
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("name", pa.string()),
            ("weight", pa.float64()),
            ("price", pa.decimal128(10, 2)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.list_(pa.string())),
            ("place", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ]
    ),
    key=("id",),
)
WEIGHTS = [float("nan"), float("inf"), -0.0, 0.0, 1.5, None]
NAMES = ("things", "bag", "loose", "counts")
LOOSE = DeclaredTable("loose", pa.schema([("x", pa.float64())]))
"""Its rows cannot be split into ranges."""
BAG = DeclaredTable("bag", pa.schema([("word", pa.string()), ("n", pa.int32())]))


def _count_things(tables: Mapping[str, list[Row]]) -> list[Row]:
    found = Counter(row["name"] for row in tables["things"])
    return [{"name": name, "n": n} for name, n in found.items()]


COUNTS = SmallView("counts", pa.schema([("name", pa.string()), ("n", pa.int64())]), ("things",), _count_things)


@contextmanager
def opened(where: str | Path, meta: str | None = None, *, settings: Settings = BLOBS) -> Iterator[Pipeline]:
    from evertide.runtime import SystemRuntime  # noqa: PLC0415

    storage = open_storage(where, meta, runtime=SystemRuntime(), settings=settings)
    try:
        with open_pipeline(storage, SmallEngine((THINGS, BAG, LOOSE), [COUNTS]), settings=settings) as p:
            yield p
    finally:
        storage.close()


def make_comparable(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the row in comparable form: NaN equals itself, -0.0 is not 0.0."""
    return tuple(value.isoformat() if isinstance(value, datetime) else repr(value) for value in row.values())


def content(rows: Iterable[Mapping[str, Any]]) -> Content:
    return Counter(make_comparable(row) for row in rows)


@dataclass
class History:
    """The content of each collection at each time, as pushed."""

    pipeline: Pipeline
    seed: int
    things: dict[int, Row] = field(default_factory=dict)
    bag: list[Row] = field(default_factory=list)
    loose: list[Row] = field(default_factory=list)
    at: dict[int, dict[str, list[Row]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._chance = np.random.default_rng(self.seed)

    @property
    def root(self) -> str:
        return self.pipeline.storage.root

    def shard(self, name: str) -> Shard:
        return self.pipeline.collections.members().open_collection(name)

    def step(self) -> int:
        changed = [self._thing(key) for key in self._some(range(30), self._number(0, 8))]
        gone = self._some(sorted(self.things) or [0], min(len(self.things), self._number(0, 3)))
        gone = [key for key in gone if key not in {row["id"] for row in changed}]
        self.pipeline.push("things", changed, deletes=[{"id": key} for key in gone])
        taken = [
            self.bag.pop(self._number(0, len(self.bag) - 1)) for _ in range(min(len(self.bag), self._number(0, 2)))
        ]
        added = [{"word": self._one(["a", "b", None]), "n": self._number(0, 1)} for _ in range(self._number(0, 4))]
        self.pipeline.push("bag", added, deletes=taken)
        lost = [self.loose.pop(0) for _ in range(min(len(self.loose), self._number(0, 2)))]
        found = [{"x": self._one(WEIGHTS)} for _ in range(self._number(0, 4))]
        self.pipeline.push("loose", found, deletes=lost)
        time = self.pipeline.commit()
        self.bag += added
        self.loose += found
        self.things = {key: row for key, row in self.things.items() if key not in gone}
        self.things |= {row["id"]: row for row in changed}
        counts = _count_things({"things": list(self.things.values())})
        self.at[time] = {
            "things": list(self.things.values()),
            "bag": list(self.bag),
            "loose": list(self.loose),
            "counts": counts,
        }
        return time

    def compact(self) -> None:
        for name in NAMES:
            self.shard(name).compact(self.pipeline._writer)

    def collect_garbage(self) -> int:
        pinned = self.pipeline._context.checkpoints.find_pins
        return sum(len(self.shard(name).collect_garbage(self.pipeline._writer, pinned).parts) for name in NAMES)

    def forget(self, time: int) -> None:
        """Advance since as checkpoints do, but faster."""
        for name in NAMES:
            self.shard(name).advance_since(time, self.pipeline._writer)

    def _number(self, least: int, most: int) -> int:
        return int(self._chance.integers(least, most, endpoint=True))

    def _one(self, choices: Sequence[Any]) -> Any:
        return choices[self._number(0, len(choices) - 1)]

    def _some(self, choices: Sequence[int], count: int) -> list[int]:
        return [int(one) for one in self._chance.choice(choices, count, replace=False)]

    def _thing(self, key: int) -> Row:
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._number(0, 10**12))
        return {
            "id": key,
            "name": self._one(["ann", "bob", "Zoë", "", None]),
            "weight": self._one(WEIGHTS),
            "price": self._one([None, Decimal("0.00"), Decimal("-7.25"), Decimal("99999999.99")]),
            "day": self._one([None, date(1969, 12, 31), date(2026, 11, 15)]),
            "at": self._one([None, moment]),
            "tags": self._one([None, [], ["x"], ["x", None]]),
            "place": self._one([None, {"x": 1, "y": None}, {"x": None, "y": "q"}]),
        }


def grow(pipeline: Pipeline, seed: int, steps: int) -> History:
    """Run a random history with occasional compaction, and times that are no longer readable."""
    history = History(pipeline, seed)
    for number in range(steps):
        time = history.step()
        if number == steps // 3:
            history.forget(time - 1)
        if number % 4 == 3:
            history.compact()
    return history


def make_request(storage: str | Path, collection: str, **options: Any) -> Request:
    """Return the request that Spark would pass."""
    return Request.of(
        {"storage": str(storage), "collection": collection} | {name: str(one) for name, one in options.items()}
    )


def rows_of(request: Request, tasks: Sequence[ReadTask] | None = None) -> list[Row]:
    """Return all rows of all tasks, as executors read them."""
    tasks = plan_tasks(request, choose_read_point(request)) if tasks is None else tasks
    return [row for task in tasks for batch in read_task(request, task) for row in batch.to_pylist()]
