"""A small shop on an engine without Spark, shared by the tests of pipelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import SourceFailed
from evertide.journal.records import Fragment, Place
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.process_context import OnProgress
from evertide.pipeline.records.ownership import ProcessRole
from evertide.problem import Problem
from evertide.runtime import Runtime, SystemRuntime
from evertide.settings import Settings
from evertide.sources.contract import DELETE, OP, UPSERT, Fault, Lag, Limit, Offer, Rows
from evertide.store.blob import Blob
from evertide.store.memory import MemoryBlob, MemoryMeta
from evertide.store.meta import Meta
from evertide.store.open import Storage
from tests.kit.small_engine import SmallEngine, SmallView

Row = dict[str, Any]
SETTINGS = Settings(retry_limit_s=0.5, retry_wait_s=0.01, retry_wait_max_s=0.05, retry_view_s=1e-6)

ORDERS = DeclaredTable(
    "orders",
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("customer", pa.string()), ("amount", pa.int64())]),
    key=("id",),
)
NOTES = DeclaredTable("notes", pa.schema([("text", pa.string())]))


def by_customer(tables: Mapping[str, list[Row]]) -> list[Row]:
    total: Counter[str | None] = Counter()
    for row in tables["orders"]:
        total[row["customer"]] += row["amount"] or 0
    return [{"customer": customer, "amount": amount} for customer, amount in total.items()]


def counted(tables: Mapping[str, list[Row]]) -> list[Row]:
    return [{"orders": len(tables["orders"]), "notes": len(tables["notes"])}]


def shares(tables: Mapping[str, list[Row]]) -> list[Row]:
    return [{"id": row["id"], "share": 100 // row["amount"]} for row in tables["orders"] if row["amount"] is not None]


VIEWS = {
    "revenue": SmallView(
        "revenue", pa.schema([("customer", pa.string()), ("amount", pa.int64())]), ("orders",), by_customer
    ),
    "counts": SmallView(
        "counts", pa.schema([("orders", pa.int64()), ("notes", pa.int64())]), ("orders", "notes"), counted
    ),
    "share": SmallView("share", pa.schema([("id", pa.int64()), ("share", pa.int64())]), ("orders",), shares),
}


def engine(*views: str, tables: tuple[DeclaredTable, ...] = (ORDERS, NOTES)) -> SmallEngine:
    return SmallEngine(tables, [VIEWS[name] for name in views or ("revenue", "counts")])


def storage(blob: Blob | None = None, meta: Meta | None = None) -> Storage:
    return Storage(blob or MemoryBlob(), meta or MemoryMeta(SystemRuntime()), "memory")


def open_pipeline(
    store: Storage,
    made: SmallEngine | None = None,
    *,
    runtime: Runtime | None = None,
    settings: Settings = SETTINGS,
    base: Path = Path(),
    threads: bool = False,
    role: ProcessRole = ProcessRole.ALONE,
    progress: OnProgress | None = None,
) -> Pipeline:
    return Pipeline(
        made or engine(),
        store,
        base=base,
        runtime=runtime or SystemRuntime(),
        settings=settings,
        threads=threads,
        role=role,
        progress=progress,
    )


def rows_of(pipeline: Pipeline, name: str) -> list[tuple[Any, ...]]:
    found = pipeline.view(name).to_arrow()
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def without_shard(table: DeclaredTable) -> DeclaredTable:
    return replace(table, is_kept=False)


def crash(pipeline: Pipeline) -> None:
    """End the process without an orderly close, and deregister its writer; only durable state is left."""
    for thread in pipeline._threads:
        thread.stop()
    pipeline._writer.unregister()
    pipeline._is_closed = True


@dataclass
class ScriptedSource:
    """Offers the batches that a test added, one per fragment, as often as the pipeline reads them."""

    name: str
    tables: tuple[str, ...]
    batches: list[Rows] = field(default_factory=list)
    error: SourceFailed | None = None
    acknowledged: list[str] = field(default_factory=list)
    start: str = "0"

    def offer(self, position: str, limit: Limit) -> Offer | None:
        if self.error is not None:
            raise self.error
        at = int(position)
        if at >= len(self.batches):
            return None
        return Offer(str(at + 1), (Place(str(at)),), self.batches[at].rows.num_rows)

    def read(self, fragment: Fragment) -> Iterator[Rows]:
        assert isinstance(fragment, Place)
        yield self.batches[int(fragment.where)]

    def acknowledge(self, position: str) -> None:
        self.acknowledged.append(position)

    def close(self) -> None:
        pass


@dataclass
class CandidSource(ScriptedSource):
    """A source that reports the status that a test sets."""

    lag: Lag = field(default_factory=Lag)
    problems: tuple[Problem, ...] = ()


def batch(table: DeclaredTable, rows: list[Row], faults: Sequence[Fault] = (), deletes: Sequence[Row] = ()) -> Rows:
    schema = pa.schema([*(pa.field(each.name, each.type) for each in table.schema), (OP, pa.int8())])
    said = [{**row, OP: UPSERT} for row in rows] + [{**row, OP: DELETE} for row in deletes]
    return Rows(table.name, pa.Table.from_pylist(said, schema), faults)


@contextmanager
def with_sources(*sources: ScriptedSource) -> Iterator[None]:
    """Give pipelines that are opened in the block these sources."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evertide.pipeline.input.open_sources.open_sources", lambda *_, **__: list(sources))
        yield
