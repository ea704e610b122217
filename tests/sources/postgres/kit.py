"""Tables fed from PostgreSQL, in a pipeline without Spark: what the tests of the source share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pytest

from evertide.journal.journal import Journal
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.state.table_deltas import ERRORS
from evertide.pipeline.status.status import SourceStatus
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.sources.postgres.messages import parse_lsn
from evertide.sources.postgres.positions import PostgresPosition
from evertide.sources.postgres.receiver import Receiver
from evertide.sources.postgres.source import PostgresSource
from evertide.store.open import Storage
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import SETTINGS, crash, open_pipeline, rows_of, storage
from tests.processes import Worker, running
from tests.sources.postgres.server import Database

WAIT_S = 20.0
ID = pa.field("id", pa.int64(), nullable=False)
ORDERS = pa.schema([ID, ("customer", pa.string()), ("amount", pa.int64())])
ORDERS_SQL = "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount bigint)"


def table(
    db: Database,
    schema: pa.Schema = ORDERS,
    name: str = "orders",
    key: tuple[str, ...] = ("id",),
    **options: str,
) -> DeclaredTable:
    given = {"url": db.dsn, "slot": db.slot, "idle_interval": "0.3", **options}
    return DeclaredTable(name, schema, key, "postgres", given, where="shop.sql:1")


class Feeding:
    """A pipeline whose transactions the test makes."""

    def __init__(
        self,
        db: Database,
        *tables: DeclaredTable,
        store: Storage | None = None,
        settings: Settings = SETTINGS,
        base: Path = Path(),
    ) -> None:
        self.db = db
        self.declared = tables or (table(db),)
        self.store = store or storage()
        self.runtime = SystemRuntime()
        self.settings = settings
        self.base = base
        self.pipeline: Pipeline = self._open()

    def _open(self) -> Pipeline:
        return open_pipeline(self.store, SmallEngine(self.declared, []), settings=self.settings, base=self.base)

    @property
    def source(self) -> PostgresSource:
        return next(one for one in self.pipeline._runner.sources.values() if isinstance(one, PostgresSource))

    @property
    def position(self) -> PostgresPosition:
        return PostgresPosition.of(self.pipeline._context.journal.positions()[self.source.name], self.source.name)

    @property
    def source_status(self) -> SourceStatus:
        """The status of the source."""
        return next(one for one in self.pipeline.status().sources if one.name == self.source.name)

    def rows(self, name: str = "orders") -> list[tuple[Any, ...]]:
        return rows_of(self.pipeline, name)

    def letters(self) -> list[tuple[Any, ...]]:
        """Table, key and reason of the dead letters."""
        return [(row[0], row[1], row[5]) for row in rows_of(self.pipeline, ERRORS)]

    def until(self, is_so: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Make transactions until the condition is true; fail after `wait_s`."""
        deadline_s = self.runtime.monotonic_s() + wait_s
        while not is_so():
            assert self.runtime.monotonic_s() < deadline_s, f"{self.pipeline.status()}"
            if self.pipeline.advance() is None:
                self.runtime.sleep_s(0.01)

    def wait(self, is_so: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Wait for the condition without making transactions."""
        deadline_s = self.runtime.monotonic_s() + wait_s
        while not is_so():
            assert self.runtime.monotonic_s() < deadline_s
            self.runtime.sleep_s(0.01)

    def until_streaming(self) -> None:
        """Wait until the journal has a stream position: before that, a restart creates the slot again."""
        query = "SELECT 1 FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid"
        slot = self.source.name
        self.until(lambda: bool(self.db.rows(f"{query} WHERE s.slot_name = '{slot}' AND r.state = 'streaming'")))
        self.until(lambda: self.position.at == "stream")

    def until_equal(self, query: str = "SELECT id, customer, amount FROM orders", name: str = "orders") -> None:
        self.until(lambda: self.rows(name) == sorted(self.db.rows(query), key=repr))

    def until_stalled(self, *words: str, state: str = "stalled") -> str:
        """Wait until the source stalls, with these words in the reason."""
        self.until(lambda: self.source.name in self.pipeline._input_reader.stalled)
        self.until(lambda: all(word in self.pipeline.status().why for word in words))
        status = self.pipeline.status()
        assert status.state == state
        return status.why

    def crash(self) -> None:
        """End the process: its thread and its connections, too. It acknowledges nothing."""
        source = self.source
        source._queue.close()
        source._receiver.stop()
        crash(self.pipeline)
        in_use = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{source.name}' AND active"
        self.wait(lambda: not self.db.rows(in_use))  # the server notices a little later

    def restart(self, *tables: DeclaredTable) -> None:
        """Crash, and open the same storage."""
        self.crash()
        self.declared = tables or self.declared
        self.pipeline = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.pipeline._is_closed:
            self.pipeline.close(checkpoint=False)


def worker(storage: Path, db: Database, tables: str, *moment: str) -> AbstractContextManager[Worker]:
    return running("tests.sources.postgres.worker", storage, db.dsn, db.slot, tables, *moment)


def count_sessions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that gets an entry for each stream that begins from now on."""
    sessions: list[str] = []
    follow = Receiver._follow

    def counted(self: Receiver) -> None:
        sessions.append(self._options.slot)
        follow(self)

    monkeypatch.setattr(Receiver, "_follow", counted)
    return sessions


def bound_lsn(journal: Journal, source: str) -> int:
    """The position that the journal has as bound; 0 while there is no stream."""
    positions = journal.positions()
    return PostgresPosition.of(positions[source], source).confirmed if source in positions else 0


def check_confirmed(db: Database, read_bound: Callable[[], int]) -> int:
    """Check that the slot's position is not past what the journal has (I10), and return it.

    The slot is read first: both positions may advance meanwhile.
    """
    slots = db.rows(f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{db.slot}'")
    bound = read_bound()
    if not slots or not bound:
        return 0
    confirmed = parse_lsn(slots[0][0])
    assert confirmed <= bound, "the slot was confirmed past the bound position"
    return confirmed
