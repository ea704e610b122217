"""`txids`: a client that wrote to the upstream database waits here for its transaction's number."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evertide.journal import garbage as collection
from evertide.journal.records import Committed, Content
from evertide.journal.xids import Xids, make_own_number
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.input import push_numbers
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.runtime import SystemRuntime
from evertide.shapes.log.numbers import TransactionNumbers, VisibleNumbers
from evertide.sources.postgres.snapshot import _last_xids as last_xids
from evertide.store import MemoryMeta
from evertide.store.meta import Write, seal
from evertide.store.open import Storage, open_storage
from evertide.store.paths import COMMITTED
from evertide.types import Time
from tests.pipeline.kit import NOTES, SETTINGS, crash, open_pipeline, storage
from tests.server.kit import Client, numbered
from tests.shapes.kit import VIEWS, Follower, engine, order, shop
from tests.shapes.replica import REPLICA, declared, following, stored
from tests.shapes.test_processes import serving
from tests.sources.postgres.server import Database, running_logical


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    with running_logical() as server:
        database = Database(server, "shapes")
        yield database
        database.close()


def run_statements(db: Database, *statements: str) -> int:
    """Run statements in one transaction; returns its number as applications get it."""
    with db.connection.transaction():
        for statement in statements:
            db.run(statement)
        return int(db.value("SELECT pg_current_xact_id()::xid::text"))


def create_table(db: Database, table: str) -> DeclaredTable:
    db.run(f"CREATE TABLE {table} (id int8 PRIMARY KEY, customer text, amount int8)")
    return declared(db.dsn, table)


def advance_until(pipeline: Pipeline, is_there: Callable[[], bool]) -> None:
    """Advance the pipeline until `is_there`."""
    runtime = SystemRuntime()
    deadline_s = runtime.monotonic_s() + 60
    while not is_there():
        assert runtime.monotonic_s() < deadline_s
        pipeline.advance()
        runtime.sleep_s(0.01)


def streams(pipeline: Pipeline) -> Callable[[], bool]:
    """Whether the initial snapshot was read and changes are streamed."""
    return lambda: '"at":"stream"' in str(pipeline._context.journal.positions())


def count(pipeline: Pipeline, rows: int) -> Callable[[], bool]:
    return lambda: pipeline.view("orders").to_arrow().num_rows == rows


def read_txids(answer: Any) -> dict[int, list[int]]:
    return {int(one["value"]["id"]): one["headers"]["txids"] for one in answer.changes}


def end_of(answer: Any) -> dict[str, Any]:
    """The headers of `snapshot-end` in an answer."""
    found: dict[str, Any] = answer.body[-1]["headers"]
    assert found["control"] == "snapshot-end"
    return found


def is_visible(xid: int, end: dict[str, Any]) -> bool:
    """Whether a number is in a snapshot, by the clients' rule."""
    is_before = xid < int(end["xmax"]) and str(xid) not in end["xip_list"]
    return xid < int(end["xmin"]) or is_before


@contextmanager
def opened(store: Storage, table: DeclaredTable) -> Iterator[Pipeline]:
    pipeline = open_pipeline(store, engine(*VIEWS, tables=(table, NOTES)))
    try:
        yield pipeline
    finally:
        if not pipeline._is_closed:
            pipeline.close(checkpoint=False)


def test_a_change_has_the_number_of_its_upstream_transaction(db: Database) -> None:
    table = create_table(db, "one")
    first = run_statements(db, "INSERT INTO one VALUES (1, 'ann', 5)")
    with shop(made=engine(*VIEWS, tables=(table, NOTES))) as s:
        advance_until(s.pipeline, count(s.pipeline, 1))
        advance_until(s.pipeline, streams(s.pipeline))
        begun = s.get()
        end = end_of(begun)
        assert is_visible(first, end), "the first snapshot contains it"
        assert not is_visible(first + 100, end)
        view = s.get("revenue")
        second = run_statements(db, "INSERT INTO one VALUES (2, 'ann', 1)", "INSERT INTO one VALUES (3, 'bob', 1)")
        advance_until(s.pipeline, count(s.pipeline, 3))
        answer = s.get(offset="0_0", handle=begun.handle)
        assert read_txids(answer) == {2: [second], 3: [second]}
        assert {tuple(one["headers"]["txids"]) for one in s.get("revenue", "0_0", handle=view.handle).changes} == {
            (second,)
        }
        assert is_visible(second, end_of(s.get(columns="id"))), "of a later shape"

        client = Client(s.host, s.port)
        pushed = client.post("/v1/tables/notes/rows", [{"text": "not from there"}], numbered("till", 1)).body
        notes = s.get("notes")
        assert end_of(notes)["txids"] == [pushed["txid"]], "the snapshot contains it"
        second_push = client.post("/v1/tables/notes/rows", [{"text": "nor this"}]).body
        [note] = s.get("notes", "0_0", handle=notes.handle).changes
        assert note["headers"]["txids"][0] == second_push["txid"] == second_push["time"] + 1 + 2**32
        again = client.post("/v1/tables/notes/rows", [{"text": "not from there"}], numbered("till", 1)).body
        assert again == {**pushed, "is_repeated": True}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(push_numbers, "LISTED_PUSHES_MAX", 1)
            again = client.post("/v1/tables/notes/rows", [{"text": "not from there"}], numbered("till", 1)).body
            assert again["txid"] is None, "a new snapshot would not list it"


def wait_for_input(pipeline: Pipeline, source: str) -> None:
    """Wait until input is ready to be bound."""
    feed: Any = pipeline._runner.sources[source]
    runtime = SystemRuntime()
    deadline_s = runtime.monotonic_s() + 60
    while feed._queue.is_empty:
        assert runtime.monotonic_s() < deadline_s
        runtime.sleep_s(0.01)


def test_all_upstream_transactions_of_one_transaction_are_listed(db: Database) -> None:
    table = create_table(db, "several")
    with shop(made=engine(*VIEWS, tables=(table, NOTES))) as s:
        run_statements(db, "INSERT INTO several VALUES (1, 'ann', 1)")
        advance_until(s.pipeline, count(s.pipeline, 1))
        advance_until(s.pipeline, streams(s.pipeline))
        client = Follower(s, {"table": "orders"}).caught_up()
        # While the first waits to be bound, the others collect behind it.
        xids = [run_statements(db, f"INSERT INTO several VALUES ({at}, 'ann', 1)") for at in range(10, 60)]
        wait_for_input(s.pipeline, "several")
        advance_until(s.pipeline, count(s.pipeline, 51))
        changes = client.step().changes
        by_transaction: dict[str, list[Any]] = {}
        for one in changes:
            by_transaction.setdefault(one["headers"]["lsn"], []).append(one["headers"])
        assert len(changes) == 50
        assert len(by_transaction) < 50
        assert [xid for several in by_transaction.values() for xid in several[-1]["txids"]] == xids
        for several in by_transaction.values():
            early = several[-1]["txids"] if len(several) <= 8 else []
            assert [one["txids"] for one in several[:-1]] == [early] * (len(several) - 1), "a long list is sent once"
            assert several[-1]["last"]


def test_numbers_survive_crashes_and_checkpoints_and_are_equal_in_every_process(db: Database, tmp_path: Path) -> None:
    table = create_table(db, "lasting")
    where = tmp_path / "s"

    def store() -> Storage:
        return open_storage(where, runtime=SystemRuntime(), settings=SETTINGS)

    xids = {1: run_statements(db, "INSERT INTO lasting VALUES (1, 'ann', 1)")}
    with opened(store(), table) as pipeline:
        advance_until(pipeline, count(pipeline, 1))
        advance_until(pipeline, streams(pipeline))
        with serving(where, pipeline) as (_, s):
            begun = s.get()
            for at in range(2, 5):
                xids[at] = run_statements(db, f"INSERT INTO lasting VALUES ({at}, 'ann', 1)")
                advance_until(pipeline, count(pipeline, at))
            first = s.get(offset="0_0", handle=begun.handle)
            assert read_txids(first) == {at: [xids[at]] for at in range(2, 5)}
        xids[5] = run_statements(db, "INSERT INTO lasting VALUES (5, 'ann', 1)")
        wait_for_input(pipeline, "lasting")
        inputs, read = pipeline._input_reader.read(pipeline.definition)
        pipeline._runner.bind(inputs)  # bound, and not committed
        del read
        pipeline._runner.sources["lasting"].close()  # as its connection would be
        crash(pipeline)
    with opened(store(), table) as pipeline:
        advance_until(pipeline, count(pipeline, 5))
        for at in range(6, 9):
            xids[at] = run_statements(db, f"INSERT INTO lasting VALUES ({at}, 'ann', 1)")
            advance_until(pipeline, count(pipeline, at))
            pipeline.checkpoint()
        assert pipeline._context.journal.read_from(pipeline.time)[0].time > 5, "the journal has dropped most"
        for _ in range(2):
            with serving(where, pipeline) as (_, s):
                answer = s.get(offset="0_0", handle=begun.handle)
                assert read_txids(answer) == {at: [xids[at]] for at in range(2, 9)}
                assert answer.changes[:3] == first.changes


@contextmanager
def leading(path: Path, db: Database, table: str, moment: str) -> Iterator[subprocess.Popen[str]]:
    """A replica in a separate process, which dies at a moment of a transaction."""
    command = [sys.executable, "-m", "tests.shapes.replica", str(path), db.dsn, table, moment]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert read_line(process) == "opened"
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", ["staged", "bound", "committed"])
def test_u1_another_replica_sends_the_same_numbers_after_the_leader_is_killed(
    db: Database, tmp_path: Path, moment: str
) -> None:
    """Covers transactions that the leader committed or left unfinished, and later ones."""
    name = f"led_{moment}"
    table = create_table(db, name)

    def insert(number: int) -> int:
        return run_statements(db, f"INSERT INTO {name} VALUES ({number}, 'ann', 1)")

    xids = {1: insert(1)}
    with (
        leading(tmp_path / "s", db, name, moment) as leader,
        shop(stored(tmp_path / "s"), settings=REPLICA, made=following(table), role=ProcessRole.REPLICA) as s,
    ):
        advance_until(s.pipeline, streams(s.pipeline))
        xids[2] = insert(2)
        advance_until(s.pipeline, count(s.pipeline, 2))
        begun, view = s.get(), s.get("revenue")
        assert is_visible(xids[1], end_of(begun))
        assert is_visible(xids[2], end_of(begun))
        xids[3] = insert(3)
        advance_until(s.pipeline, count(s.pipeline, 3))
        assert [s.pipeline.leads] == [False]
        first = s.get(offset="0_0", handle=begun.handle)
        assert read_txids(first) == {3: [xids[3]]}
        (tmp_path / "armed").touch()
        assert read_line(leader) == "armed"
        xids[4] = insert(4)
        assert leader.wait(120) == -signal.SIGKILL
        advance_until(s.pipeline, count(s.pipeline, 4))
        xids[5] = insert(5)
        advance_until(s.pipeline, count(s.pipeline, 5))
        assert s.pipeline.leads
        answer = s.get(offset="0_0", handle=begun.handle)
        assert read_txids(answer) == {number: [xids[number]] for number in (3, 4, 5)}
        assert answer.changes[:1] == first.changes
        views = [one["headers"]["txids"] for one in s.get("revenue", "0_0", handle=view.handle).changes]
        assert views == [[xids[number]] for number in (3, 4, 5)]
        assert is_visible(xids[5], end_of(s.get(columns="id")))


def commit_record(meta: MemoryMeta, time: int, *, pushed: int = 0, **given: Any) -> None:
    head = meta.head(COMMITTED)
    sources = {"db": Content(1, "0" * 32), "push": Content(pushed, "0" * 32)}
    record = Committed(Time(time), sources, {}, "w", **given)
    assert meta.commit([Write(COMMITTED, head.seqno if head else 0, seal(record))]) is None


def numbers(meta: MemoryMeta) -> TransactionNumbers:
    return TransactionNumbers(Xids(meta, SystemRuntime(), SETTINGS))


def test_without_a_database_upstream_a_transaction_has_its_own_number() -> None:
    meta = MemoryMeta()
    found = numbers(meta)
    commit_record(meta, 0)
    commit_record(meta, 1)
    assert ([*found.txids(0)], [*found.txids(1)]) == ([1], [2])
    assert found.find_visible(1) == VisibleNumbers(3, 3)
    with shop(storage()) as s:
        s.push(rows=[order(1)])
        begun = s.get()
        time = s.push(rows=[order(2)])
        [one] = s.get(offset="0_0", handle=begun.handle).changes
        assert one["headers"]["txids"] == [time + 1]
        assert not is_visible(time + 1, end_of(begun))
        assert is_visible(time, end_of(begun))


def find_latest(txids: list[int], xmax: int) -> int:
    """The latest number, compared with a subset's `xmax` as Electric's client does."""
    return max(xmax + (xid - xmax + 2**31) % 2**32 - 2**31 for xid in txids)


def test_a_push_beside_a_database_resolves_when_it_is_visible() -> None:
    """Fails if a push has no number, or one that a snapshot of the database's numbers seems to contain."""
    meta = MemoryMeta()
    found = numbers(meta)
    commit_record(meta, 0, xids=(1000,))
    commit_record(meta, 1, xids=(), pushed=3)
    commit_record(meta, 2, xids=(1001,), pushed=1)
    commit_record(meta, 3, xids=())
    own = {time: make_own_number(time, has_upstream=True) for time in range(4)}
    firsts = [found.txids(time)[:2] for time in range(4)]
    assert firsts == [(1000,), (own[1], own[1] + 2**52 + 2**31), (1001, own[2]), ()]
    assert all(not is_visible(number, found.find_visible(3).json_fields) for number in own.values())
    assert (found.list_push_numbers(0), found.list_push_numbers(1), found.list_push_numbers(3)) == (
        (),
        (own[1],),
        (own[1], own[2]),
    )
    assert max(max(found.txids(time), default=0) for time in range(4)) < 2**53
    for xmax in (1, 5, 1001, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32):
        assert find_latest([*found.txids(1)], xmax) >= xmax, "the client would drop it"


def test_missing_transactions_count_as_open_across_wraparound() -> None:
    meta = MemoryMeta()
    found = numbers(meta)
    commit_record(meta, 0, xids=())
    assert (found.txids(0), found.find_visible(0)) == ((), VisibleNumbers(0, 0)), (
        "without information, no number counts as contained"
    )
    commit_record(meta, 1, xids=(1000, 1003))
    commit_record(meta, 2, xids=(1001,))
    missing = (*range(939, 1000), 1002)
    assert found.find_visible(2) == VisibleNumbers(939, 1004, missing)
    assert found.find_visible(1) == VisibleNumbers(939, 1004, (*range(939, 1000), 1001, 1002)), "as of that time"
    assert numbers(meta).find_visible(2) == found.find_visible(2)
    meta = MemoryMeta()
    commit_record(meta, 0, xids=(2**32 - 2, 2**32 - 1, 5, 6))
    assert numbers(meta).find_visible(0) == VisibleNumbers(3, 7, (3, 4))


def test_the_first_snapshot_contains_transactions_that_were_not_open() -> None:
    assert last_xids("5:9:5,7") == (0, 1, 2, 3, 4, 6, 8)
    assert last_xids(f"{2**32 + 1}:{2**32 + 2}:") == (*range(2**32 - 62, 2**32), 0, 1)


def test_outcomes_with_upstream_transactions_are_kept_longer(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "_XID_OUTCOMES_KEPT", 4)
    table = create_table(db, "kept")
    with opened(storage(), table) as pipeline:
        run_statements(db, "INSERT INTO kept VALUES (0, 'ann', 1)")
        advance_until(pipeline, count(pipeline, 1))
        for at in range(1, 9):
            run_statements(db, f"INSERT INTO kept VALUES ({at}, 'ann', 1)")
            advance_until(pipeline, count(pipeline, at + 1))
            pipeline.checkpoint()
        kept = [one.value.time for one in pipeline._context.journal._committed.read_all()]
        assert len(kept) == 4
        assert kept[0] < pipeline._context.journal._bound.read_all()[0].value.time
