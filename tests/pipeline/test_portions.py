"""T7: a transaction that does not fit into memory is computed in portions, with the same result."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from evertide.errors import StorageFull, Unavailable
from evertide.journal.journal import Journal
from evertide.journal.records import Committed
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.reading.reader import StorageReader
from evertide.pipeline.state.machine import Machine
from evertide.pipeline.transaction.portions import InputPortions
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.sources.contract import Rows
from evertide.store.memory import MemoryBlob
from evertide.store.open import Storage
from tests.pipeline.kit import SETTINGS, Row, crash, engine, open_pipeline, rows_of, storage
from tests.pipeline.large import VIEWS, make_rows

WHOLE = replace(SETTINGS, inline_bytes_max=256)
SMALL = replace(WHOLE, push_buffer_bytes=1, portion_rows_max=3)
"""Every push is a separate fragment, and a portion holds few of them."""
AHEAD = replace(SMALL, store_ahead_rows=1)
"""Parts of tables are stored while views are computed."""


def order(number: int, amount: int | None = None) -> Row:
    return {"id": number, "customer": f"c{number % 3}", "amount": number if amount is None else amount}


def push_random(p: Pipeline, chance: np.random.Generator) -> None:
    """Push a transaction that changes the same keys several times, and deletes rows that it added."""
    for _ in range(chance.integers(2, 12)):
        numbers, amounts = chance.integers(8, size=(2, chance.integers(4)))
        p.push("orders", [order(int(number), int(amount)) for number, amount in zip(numbers, amounts, strict=True)])
        p.push("notes", [{"text": "abc"[at]} for at in chance.integers(3, size=chance.integers(4))])
        p.push("orders", deletes=[int(chance.integers(8))])
        p.push("notes", deletes=[{"text": "abcd"[chance.integers(4)]}])
    p.commit()


def read_outcome(p: Pipeline) -> Committed:
    found = p._context.journal.read_outcome(p.time)
    assert found is not None
    return found


def digests(p: Pipeline) -> dict[str, str]:
    """Return the digests of the last transaction, by collection."""
    names = {table.shard: name for name, table in p.definition.tables.items()}
    names |= {view.shard: name for name, view in p.definition.views.items()}
    return {names.get(shard, shard): content.digest for shard, content in read_outcome(p).shards.items()}


def contents(p: Pipeline) -> dict[str, Any]:
    return {name: rows_of(p, name) for name in ("orders", "notes", "revenue", "counts")}


@pytest.mark.parametrize("seed", range(4))
def test_t7_portions_have_the_same_result_as_the_whole(seed: int) -> None:
    """If the second portion did not see the result of the first, its changes would apply to the old rows."""
    one, many = np.random.default_rng(seed), np.random.default_rng(seed)
    kept, small = storage(), (SMALL, AHEAD)[seed % 2]
    whole, parted = open_pipeline(storage(), settings=WHOLE), open_pipeline(kept, settings=small)
    for number in range(6):
        push_random(whole, one)
        push_random(parted, many)
        assert contents(whole) == contents(parted)
        assert read_outcome(whole).portions == 1 < read_outcome(parted).portions
        assert digests(whole) == digests(parted)
        if number == 3:
            parted.checkpoint()
    crash(parted)
    parted = open_pipeline(kept, settings=replace(small, portion_rows_max=5))  # replays what the checkpoint lacks
    assert contents(whole) == contents(parted)
    push_random(whole, one)
    push_random(parted, many)
    assert contents(whole) == contents(parted)
    check_no_orphans(parted)


def check_no_orphans(p: Pipeline) -> None:
    """Check that a shard names each stored part: no portion left an orphan."""
    blob = p.storage.blob
    assert isinstance(blob, MemoryBlob)
    named = {part.key for shard in p._runner.members.open_all().values() for part in shard.log.read().state.parts}
    there = {entry.key for entry in blob.list("parts/")}
    assert there == {key for key in named if key}


@pytest.mark.parametrize("settings", [SMALL, AHEAD])
def test_t7_an_outage_between_two_portions_applies_each_portion_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If committed portions were applied again, rows would be there twice; if they were skipped, not at all."""
    with open_pipeline(storage(), settings=settings) as p:
        for number in range(12):
            p.push("notes", [{"text": f"n{number}"}])
            p.push("orders", [order(number)])
        for broken in ("put", "get"):
            calls = Away(p.storage.blob, broken, after=9)
            with calls.installed(monkeypatch):
                if p.time < 1:
                    with pytest.raises(Unavailable):
                        p.commit()
        while p.advance() is not None:
            pass
        assert rows_of(p, "counts") == [(12, 12)]
        assert read_outcome(p).portions > 1
        check_no_orphans(p)


def test_parts_of_tables_are_stored_while_views_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the table's part is stored after the views: then this test never ends."""
    with open_pipeline(storage(), settings=replace(WHOLE, inline_bytes_max=1, store_ahead_rows=5)) as p:
        put, step = p.storage.blob.put, Machine.step
        is_there = threading.Event()

        def note_put(key: str, data: bytes) -> None:
            put(key, data)
            if key.startswith("parts/orders"):
                is_there.set()

        def waiting(self: Machine, *args: Any, **options: Any) -> Any:
            assert is_there.wait(60)
            return step(self, *args, **options)

        monkeypatch.setattr(p.storage.blob, "put", note_put)
        monkeypatch.setattr(Machine, "step", waiting)
        p.push("orders", [order(number) for number in range(9)])
        p.commit()
        assert rows_of(p, "counts") == [(9, 0)]
        check_no_orphans(p)


def test_a_part_that_could_not_be_stored_ahead_is_stored_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage was full for a moment. Fails if the error is kept, or if parts of the failed attempt are."""
    with open_pipeline(storage(), settings=replace(WHOLE, inline_bytes_max=1, store_ahead_rows=1)) as p:
        put = p.storage.blob.put

        def full(key: str, data: bytes) -> None:
            if threading.current_thread().name.startswith("evertide-store"):
                raise StorageFull(path=key, why="no space left")
            put(key, data)

        monkeypatch.setattr(p.storage.blob, "put", full)
        p.push("orders", [order(number) for number in range(9)])
        p.commit()
        assert rows_of(p, "orders") == [tuple(order(number).values()) for number in range(9)]
        check_no_orphans(p)


def test_a_repeated_step_does_not_store_parts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if parts that the first attempt stored ahead are counted as well, or are left as orphans."""
    with open_pipeline(storage(), settings=replace(WHOLE, inline_bytes_max=1, store_ahead_rows=1)) as p:
        step, tries = Machine.step, 0

        def away(self: Machine, *args: Any, **options: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise Unavailable(path="there", why="once")
            return step(self, *args, **options)

        monkeypatch.setattr(Machine, "step", away)
        p.push("orders", [order(number) for number in range(9)])
        with pytest.raises(Unavailable):
            p.commit()
        while p.advance() is not None:
            pass
        assert tries > 1
        assert rows_of(p, "counts") == [(9, 0)]
        assert len(rows_of(p, "orders")) == 9
        check_no_orphans(p)


def test_t7_a_checkpoint_never_contains_half_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state holds some of its portions: the transaction is completed first, or the checkpoint waits."""
    kept = storage()
    p = open_pipeline(kept, settings=SMALL)
    for number in range(12):
        p.push("notes", [{"text": f"n{number}"}])
    with Away(p.storage.blob, "put", after=4).installed(monkeypatch):
        with pytest.raises(Unavailable):
            p.commit()
        with pytest.raises(Unavailable):
            p.checkpoint()
    assert p.checkpoint().time == 2
    assert rows_of(p, "counts") == [(0, 12)]
    crash(p)
    with open_pipeline(kept, settings=SMALL) as p:
        assert rows_of(p, "counts") == [(0, 12)]


class Away:
    """A blob store that stops answering after some calls."""

    def __init__(self, blob: Any, call: str, *, after: int) -> None:
        self._blob, self._call, self._left = blob, call, after

    @contextmanager
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        real = getattr(self._blob, self._call)

        def called(*args: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise Unavailable(path="blob", why="it is away")
            return real(*args)

        with monkeypatch.context() as patched:
            patched.setattr(self._blob, self._call, called)
            yield


@pytest.mark.parametrize("at", range(1, 6))
def test_t7_a_kill_between_two_portions_leaves_no_part_of_the_transaction(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = storage()
    p = open_pipeline(kept, settings=(SMALL, AHEAD)[at % 2])
    steps = 0
    real = Machine.step

    def step(self: Machine, *args: Any, **options: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > at:
            raise KeyboardInterrupt
        return real(self, *args, **options)

    for number in range(14):
        p.push("orders", [order(number)])
        p.push("notes", [{"text": "x"}])
    with monkeypatch.context() as patched:
        patched.setattr(Machine, "step", step)
        with pytest.raises(KeyboardInterrupt):
            p.commit()
    assert committed_upper(kept) == 1  # no part of the transaction is visible
    crash(p)
    with open_pipeline(kept, settings=SMALL) as p:
        assert rows_of(p, "counts") == [(14, 14)]
        assert p.time == 1


def committed_upper(kept: Storage) -> int:
    """Return the committed upper as any process reads it."""
    return Journal(kept.blob, kept.meta, runtime=SystemRuntime(), settings=SETTINGS).committed_upper


def test_t7_a_view_that_fails_in_the_second_portion_leaves_nothing_of_the_first() -> None:
    with open_pipeline(storage(), engine("revenue", "share"), settings=SMALL) as p:
        p.push("orders", [order(100, 2)])
        p.commit()
        for number in range(1, 9):
            p.push("orders", [order(number, 0 if number == 7 else 5)])
        p.commit()
        assert read_outcome(p).portions > 2
        assert rows_of(p, "share") == [(100, 50)]
        assert len(rows_of(p, "revenue")) == 3
        p.push("orders", [order(7, 50)])
        p.commit()
        assert len(rows_of(p, "share")) == 9


def test_a_portion_is_read_again_if_reading_it_fails() -> None:
    batches = [("s", Rows("t", pa.table({"a": [number]}))) for number in range(5)]
    fail = {3}

    def read() -> Iterator[tuple[str, Rows]]:
        for number, batch in enumerate(batches):
            if number in fail:
                fail.clear()
                raise Unavailable(path="there", why="once")
            yield batch

    portions = InputPortions(read, replace(SETTINGS, portion_rows_max=2))
    found, fails = [], 0
    while True:
        try:
            found += portions.read_current()
        except Unavailable:
            fails += 1
            continue
        is_last = portions.is_last
        portions.finish()
        if is_last:
            break
    assert [batch for _, batch in found] == [batch for _, batch in batches]
    assert fails == 1


def large_transaction(path: Path, mib: int, portion_mib: int, heap_mib: int = 0) -> tuple[int, int, int]:
    """Return the rows in the table, the number of portions, and the growth of the process's memory in MiB."""
    command = [sys.executable, "-m", "tests.pipeline.large", path / "s", mib, portion_mib, heap_mib]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows, portions, grown_mib = (int(word) for word in done.stdout.split())
    return rows, portions, grown_mib


def check_views(path: Path, mib: int) -> None:
    """Compare the views of the large transaction with DuckDB over the rows that were pushed."""
    pushed = pa.concat_tables([make_rows(number) for number in range(mib)])
    with duckdb.connect() as database, StorageReader.open(str(path / "s")) as reader:
        database.register("log", pushed)
        for name, query in VIEWS.items():
            database.register("found", reader.collections.view(name).to_arrow())
            for left, right in (("found", f"({query})"), (f"({query})", "found")):
                differing = f"SELECT count(*) FROM (FROM {left} EXCEPT ALL FROM {right})"
                assert database.execute(differing).fetchall() == [(0,)], name


def test_t7_memory_follows_the_portion_not_the_transaction(tmp_path: Path) -> None:
    """96 MiB of rows in one transaction, in portions of 4 MiB: in one piece they would be in memory several times."""
    rows, portions, grown_mib = large_transaction(tmp_path, 96, 4)
    assert rows == 96 * 1024
    assert portions >= 20
    assert grown_mib < 96


def test_t7_spark_computes_a_large_transaction_in_a_small_heap(tmp_path: Path) -> None:
    """In one portion, 200 MiB end a JVM with a heap of 512 MiB."""
    rows, portions, grown_mib = large_transaction(tmp_path, 200, 24, 512)
    assert rows == 200 * 1024
    assert portions >= 8
    assert grown_mib < 200
    check_views(tmp_path, 200)
