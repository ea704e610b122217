"""Changes upstream are applied to the table: inserts, updates, deletes, truncates; in whole transactions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from evertide.pipeline.engine import DeclaredTable
from evertide.sources.postgres.partitions import TablePartition, compare_partitions
from evertide.sources.postgres.session import Replication
from tests.sources.postgres.kit import ID, ORDERS_SQL, Feeding, bound_lsn, check_confirmed, table
from tests.sources.postgres.server import Database

BODY = pa.schema([ID, ("body", pa.string()), ("note", pa.string())])
LARGE = "string_agg(md5(i::text), '') FROM generate_series(1, 400) i"


def test_the_snapshot_is_followed_by_changes(db: Database) -> None:
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'ann', 10), (2, NULL, 20), (3, '', 30)")
    with Feeding(db) as f:
        f.until_equal()
        db.run("INSERT INTO orders VALUES (4, 'dan', 1)", "UPDATE orders SET amount = 11 WHERE id = 1")
        db.run("DELETE FROM orders WHERE id = 2", "UPDATE orders SET id = 30 WHERE id = 3")
        f.until_equal()
        assert [row[0] for row in f.rows()] == [1, 30, 4]
        assert f.rows()[1] == (30, "", 30)


def test_u5_the_last_change_of_a_key_wins(db: Database) -> None:
    """In one upstream transaction. Without the order, a deleted row would stay, or a key occur twice."""
    db.run(ORDERS_SQL)
    with Feeding(db) as f, db.connection.transaction():
        db.run("INSERT INTO orders VALUES (1, 'a', 1)", "UPDATE orders SET amount = 2", "DELETE FROM orders")
        db.run("INSERT INTO orders VALUES (1, 'b', 3), (2, NULL, NULL)", "UPDATE orders SET id = 5 WHERE id = 2")
        db.run("INSERT INTO orders VALUES (2, 'c', 4)", "DELETE FROM orders WHERE id = 99")
    with Feeding(db, table(db, slot=f"{db.slot}_b")) as f:
        f.until_equal()
        with db.connection.transaction():
            db.run("DELETE FROM orders WHERE id = 1", "INSERT INTO orders VALUES (1, 'd', 9)")
            db.run("UPDATE orders SET id = 7 WHERE id = 2", "UPDATE orders SET id = 2 WHERE id = 5")
        f.until_equal()
        assert [row[0] for row in f.rows()] == [1, 2, 7]


def test_truncate_empties_the_table_in_the_middle_of_a_transaction(db: Database) -> None:
    db.run(ORDERS_SQL, "CREATE TABLE other (id bigint PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    db.run("INSERT INTO orders SELECT i, 'x', i FROM generate_series(1, 10) i")
    other = table(db, pa.schema([ID]), "other")
    with Feeding(db, table(db), other) as f:
        f.until_equal()
        with db.connection.transaction():
            db.run("INSERT INTO orders VALUES (11, 'y', 1)", "TRUNCATE orders, other")
            db.run("INSERT INTO orders VALUES (3, 'z', 2)")
        f.until_equal()
        f.until(lambda: f.rows("other") == [])
        db.run("TRUNCATE orders")
        f.until(lambda: f.rows() == [])


def test_large_values_that_an_update_does_not_change_are_kept(db: Database) -> None:
    """The stream does not repeat them. Without a lookup, each such update would make them NULL."""
    db.run("CREATE TABLE orders (id bigint PRIMARY KEY, body text, note text)")
    db.run("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    db.run(*(f"INSERT INTO orders SELECT {key}, {LARGE}" for key in (1, 2, 3)))
    query = "SELECT id, body, note FROM orders"
    with Feeding(db, table(db, BODY)) as f:
        f.until_equal(query)
        db.run("UPDATE orders SET note = 'one' WHERE id = 1", "UPDATE orders SET id = 20 WHERE id = 2")
        f.until_equal(query)
        with db.connection.transaction():
            db.run(f"INSERT INTO orders SELECT 4, {LARGE}", "UPDATE orders SET note = 'four' WHERE id = 4")
            db.run("UPDATE orders SET note = 'three' WHERE id = 3", "UPDATE orders SET note = 'more' WHERE id = 3")
            db.run("UPDATE orders SET id = 40 WHERE id = 4", "UPDATE orders SET id = 30, note = 'm' WHERE id = 3")
            db.run("UPDATE orders SET note = 'last' WHERE id = 30")
        f.until_equal(query)
        assert all(len(row[1]) == 400 * 32 for row in f.rows())


def test_large_values_are_taken_from_the_whole_old_row(db: Database) -> None:
    db.run("CREATE TABLE orders (id bigint PRIMARY KEY, body text, note text)")
    db.run("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL", "ALTER TABLE orders REPLICA IDENTITY FULL")
    db.run(f"INSERT INTO orders SELECT 1, {LARGE}")
    with Feeding(db, table(db, BODY)) as f:
        f.until_equal("SELECT id, body, note FROM orders")
        db.run("UPDATE orders SET note = 'one'", "UPDATE orders SET id = 2")
        f.until_equal("SELECT id, body, note FROM orders")


def test_a_table_without_a_key_follows_changes(db: Database) -> None:
    db.run("CREATE TABLE notes (text text)", "ALTER TABLE notes REPLICA IDENTITY FULL")
    db.run("INSERT INTO notes VALUES ('a'), ('a'), ('b'), (NULL)")
    notes = table(db, pa.schema([("text", pa.string())]), "notes", key=())
    with Feeding(db, notes) as f:
        f.until_equal("SELECT text FROM notes", "notes")
        db.run(
            "DELETE FROM notes WHERE ctid = (SELECT min(ctid) FROM notes)",
            "UPDATE notes SET text = 'c' WHERE text = 'b'",
        )
        f.until_equal("SELECT text FROM notes", "notes")
        db.run("TRUNCATE notes", "INSERT INTO notes VALUES ('z')")
        f.until_equal("SELECT text FROM notes", "notes")


def test_tables_of_one_slot_are_one_source_and_see_whole_transactions(db: Database) -> None:
    db.run(ORDERS_SQL, "CREATE TABLE lines (id bigint PRIMARY KEY, customer text, amount bigint)")
    with Feeding(db, table(db), table(db, name="lines")) as f:
        assert [*f.pipeline._runner.sources] == ["push", db.slot]
        f.until(lambda: f.position.at == "stream")
        for number in range(20):
            with db.connection.transaction():
                db.run(f"INSERT INTO orders VALUES ({number}, 'x', 1)", f"INSERT INTO lines VALUES ({number}, 'x', 1)")
            f.pipeline.advance()
            assert len(f.rows("orders")) == len(f.rows("lines"))
        f.until(lambda: len(f.rows("lines")) == 20)


def test_partitions_and_a_subset_of_columns_in_any_case(db: Database) -> None:
    db.run('CREATE TABLE orders (id bigint, "Customer" text, hidden int, PRIMARY KEY (id)) PARTITION BY RANGE (id)')
    db.run(
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF orders DEFAULT",
    )
    db.run("INSERT INTO orders VALUES (1, 'a', 1), (11, 'b', 2)")
    with Feeding(db, table(db, pa.schema([ID, ("customer", pa.string())]))) as f:
        f.until_equal('SELECT id, "Customer" FROM orders')
        db.run("UPDATE orders SET id = 12 WHERE id = 1", "INSERT INTO orders VALUES (2, 'c', 3)")
        f.until_equal('SELECT id, "Customer" FROM orders')


def test_x19_changes_of_a_single_partition_are_reported(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream does not report it. A TRUNCATE is a warning, a missing partition stalls the source, also after a
    restart.
    """
    monkeypatch.setattr("evertide.sources.postgres.session._CHECK_S", 0.1)
    db.run("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount bigint) PARTITION BY RANGE (id)")
    for number in range(3):
        db.run(f"CREATE TABLE part_{number} PARTITION OF orders FOR VALUES {bounds(number)}")
    db.run("INSERT INTO orders SELECT n, 'x', n FROM generate_series(0, 29) n")
    with Feeding(db) as f:
        f.until_equal()
        db.run("CREATE TABLE part_3 PARTITION OF orders FOR VALUES FROM (30) TO (40)")
        db.run(
            "INSERT INTO orders VALUES (31, 'x', 1)",
            "TRUNCATE orders",
            "INSERT INTO orders VALUES (1, 'y', 1), (11, 'y', 1)",
        )
        f.until_equal()
        f.until(lambda: "part_3" in f.source._receiver._partition_names.values())
        f.until(lambda: not f.source_status.problems)  # the catalog may have the TRUNCATE before the stream
        db.run("TRUNCATE part_1")
        f.until(lambda: bool(f.source_status.problems))
        [problem] = f.source_status.problems
        assert (problem.state, problem.error_code) == ("warning", "partition_rewritten")
        assert "part_1 of public.orders was truncated or rewritten" in problem.why
        db.run("INSERT INTO orders VALUES (2, 'z', 2)")
        f.until(lambda: (2, "z", 2) in f.rows())
        f.restart()
        f.until(lambda: bool(f.source_status.problems))
        f.crash()
        db.run("ALTER TABLE orders DETACH PARTITION part_2")
        f.pipeline = f._open()
        f.until_stalled("was detached or dropped upstream", "with the oid", "partitions 'keep'")
        f.restart(table(db, partitions="keep"))
        db.run("INSERT INTO orders VALUES (3, 'z', 3)")
        f.until(lambda: (3, "z", 3) in f.rows())
        assert not f.source_status.problems
        f.restart(table(db))
        f.until_streaming()
        assert not f.source_status.problems
        db.run("DROP TABLE part_3")
        f.until_stalled("partition part_3 was detached or dropped")


def partitioned(db: Database, *parts: int) -> None:
    db.run("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount bigint) PARTITION BY RANGE (id)")
    for number in parts:
        db.run(f"CREATE TABLE part_{number} PARTITION OF orders FOR VALUES {bounds(number)}")


def bounds(number: int) -> str:
    return f"FROM ({number * 10}) TO ({number * 10 + 10})"


def warnings_of(f: Feeding) -> list[str]:
    return [problem.error_code for problem in f.source_status.problems]


@pytest.mark.parametrize("statements", [["TRUNCATE part_1"], ["TRUNCATE part_0", "TRUNCATE part_1"]])
@pytest.mark.parametrize("is_away", [False, True])
def test_x19_a_truncate_between_that_of_the_table_and_the_next_check_is_reported(
    db: Database, monkeypatch: pytest.MonkeyPatch, statements: list[str], is_away: bool
) -> None:
    monkeypatch.setattr("evertide.sources.postgres.session._CHECK_S", 1e9)
    partitioned(db, 0, 1)
    with Feeding(db) as f:
        f.until_streaming()
        if is_away:
            f.crash()
        db.run("TRUNCATE orders", "INSERT INTO orders VALUES (1, 'y', 1), (11, 'y', 1)", *statements)
        if is_away:
            f.pipeline = f._open()
        f.until(lambda: f.rows() == [(1, "y", 1), (11, "y", 1)])
        f.restart()  # the first check compares with what the position records
        f.until(lambda: warnings_of(f) == ["partition_rewritten"])
        f.restart()
        f.until(lambda: warnings_of(f) == ["partition_rewritten"])
        db.run("TRUNCATE orders")
        f.until(lambda: not f.rows())
        f.restart()
        f.until_streaming()
        assert not warnings_of(f)


def test_x19_a_truncate_of_the_table_in_a_subtransaction_is_no_warning(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertide.sources.postgres.session._CHECK_S", 0.1)
    partitioned(db, 0, 1)
    with Feeding(db) as f:
        f.until_streaming()
        with db.connection.transaction():
            db.run("INSERT INTO orders VALUES (1, 'y', 1)", "SAVEPOINT s", "TRUNCATE orders", "RELEASE s")
            db.run("INSERT INTO orders VALUES (2, 'y', 2)")
        f.until(lambda: f.rows() == [(2, "y", 2)])
        f.restart()
        f.until_streaming()
        assert not warnings_of(f)


def test_x19_a_new_partition_that_is_truncated_before_the_first_check_is_reported(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertide.sources.postgres.session._CHECK_S", 1e9)
    partitioned(db, 0)
    with Feeding(db) as f:
        f.until_streaming()
        db.run(f"CREATE TABLE part_1 PARTITION OF orders FOR VALUES {bounds(1)}")
        db.run(f"CREATE TABLE part_2 PARTITION OF orders FOR VALUES {bounds(2)}")
        db.run("INSERT INTO orders VALUES (11, 'y', 1), (21, 'y', 1)", "TRUNCATE part_1")
        f.until(lambda: f.rows() == [(11, "y", 1), (21, "y", 1)])
        f.restart()
        f.until(lambda: warnings_of(f) == ["partition_rewritten"])
        assert "partition part_1 of public.orders was truncated" in f.source_status.problems[0].why


def test_x19_transaction_numbers_of_partitions_wrap_around() -> None:
    before, after = 2**32 - 5, 7
    kept = TablePartition(1, 90, "kept", attached=before - 9, changed=before)
    alone = TablePartition(2, 91, "alone", attached=before - 9, changed=after)
    new = TablePartition(3, 3, "new", attached=after, changed=after + 2)
    replaced = TablePartition(4, 92, "replaced", attached=after, changed=after + 2)
    found = compare_partitions({}, [kept, alone, new, replaced], truncated=before)
    assert found.rewritten == ("alone", "replaced")
    assert compare_partitions(found.known, [kept, alone, new, replaced]).rewritten == ("alone", "replaced")


@pytest.mark.parametrize("parts", [1, 2])
def test_x19_truncates_of_all_partitions_one_by_one_are_reported(
    db: Database, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """A TRUNCATE of the table changes all files as well, and is in the stream."""
    monkeypatch.setattr("evertide.sources.postgres.session._CHECK_S", 0.1)
    partitioned(db, *range(parts))
    db.run("INSERT INTO orders VALUES (1, 'x', 1)")
    with Feeding(db) as f:
        f.until_equal()
        f.until_streaming()
        db.run("TRUNCATE orders", "INSERT INTO orders VALUES (2, 'y', 2)")
        f.until_equal()
        f.until(lambda: bool(f.source._receiver._partitions) and not warnings_of(f))
        db.run("INSERT INTO orders VALUES (3, 'z', 3)")
        f.until_equal()
        assert f.position.partitions
        f.restart()
        f.until_streaming()
        assert not warnings_of(f)
        db.run(*(f"TRUNCATE part_{number}" for number in range(parts)))
        f.until(lambda: warnings_of(f) == ["partition_rewritten"])
        assert f.rows() == [(2, "y", 2), (3, "z", 3)]
        f.restart()
        f.until(lambda: warnings_of(f) == ["partition_rewritten"])
        db.run("TRUNCATE orders")
        f.until(lambda: not f.rows() and not warnings_of(f))


def test_x19_a_partition_attached_with_rows_is_reported(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not send these rows. Rows that are written through the table are sent, also in the transaction
    that creates it.
    """
    monkeypatch.setattr("evertide.sources.postgres.session._CHECK_S", 0.1)
    partitioned(db, 0)
    new = "CREATE TABLE {} (LIKE orders INCLUDING ALL)"
    attach = "ALTER TABLE orders ATTACH PARTITION {} FOR VALUES {}"
    with Feeding(db) as f:
        f.until_streaming()
        with db.connection.transaction():
            db.run(f"CREATE TABLE part_1 PARTITION OF orders FOR VALUES {bounds(1)}")
            db.run("INSERT INTO orders VALUES (1, 'a', 1), (10, 'b', 2)")
        db.run(new.format("part_2"), attach.format("part_2", bounds(2)), "INSERT INTO orders VALUES (20, 'c', 3)")
        f.until_equal()
        f.until(lambda: {"part_1", "part_2"} <= {*f.source._receiver._partition_names.values()})
        assert not warnings_of(f)
        db.run(new.format("old"), "INSERT INTO old VALUES (30, 'd', 4)", attach.format("old", bounds(3)))
        f.until(lambda: warnings_of(f) == ["partition_attached"])
        assert "old of public.orders was attached upstream with rows" in f.source_status.problems[0].why
        f.restart()
        f.until(lambda: warnings_of(f) == ["partition_attached"])
        db.run("DELETE FROM orders WHERE id = 30")
        f.until(lambda: not warnings_of(f))
        with db.connection.transaction():
            db.run(new.format("bulk"), "INSERT INTO bulk VALUES (40, 'e', 5)", attach.format("bulk", bounds(4)))
        f.until(lambda: warnings_of(f) == ["partition_attached"])
        f.restart(table(db, partitions="keep"))
        db.run("INSERT INTO orders VALUES (2, 'f', 6)")
        f.until(lambda: (2, "f", 6) in f.rows())
        f.restart(table(db))
        f.until_streaming()
        assert not warnings_of(f)
        db.run("ALTER TABLE orders DETACH PARTITION part_1")
        f.until_stalled("partition part_1 was detached")
        db.run("UPDATE part_1 SET amount = 7", attach.format("part_1", bounds(1)))
        f.until(lambda: warnings_of(f) == ["partition_attached"])


def test_x11_a_table_continues_when_its_slot_is_declared_again(db: Database) -> None:
    """The slot kept the changes of the meantime; without its position, the source would be refused."""
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)")
    with Feeding(db) as f:
        f.until_equal()
        declared = f.declared
        f.restart(DeclaredTable("notes", pa.schema([("text", pa.string())])))
        f.pipeline.push("notes", [{"text": "x"}])
        f.pipeline.commit()
        db.run("DELETE FROM orders WHERE id = 1", "INSERT INTO orders VALUES (3, 'c', 3)")
        f.pipeline.close()
        f.declared, f.pipeline = declared, None  # type: ignore[assignment]
        f.pipeline = f._open()
        f.until_equal()


def test_t5_an_idle_slot_advances_but_never_past_the_bound_position(db: Database) -> None:
    """Upstream writes to other tables. Without offers of the server's position, the slot would keep the whole log."""
    db.run(ORDERS_SQL, "CREATE TABLE elsewhere (id int)")
    with Feeding(db) as f:
        f.until(lambda: f.position.at == "stream")
        for _ in range(3):
            db.run("INSERT INTO elsewhere SELECT generate_series(1, 1000)")
            wanted = db.value("SELECT pg_current_wal_flush_lsn()::text")
            f.until(lambda wanted=wanted: db.value(f"SELECT '{db.confirmed()}'::pg_lsn >= '{wanted}'::pg_lsn"))  # type: ignore[misc]
            check_confirmed(db, lambda: bound_lsn(f.pipeline._context.journal, db.slot))
        f.until(lambda: f.source._queue.is_empty)
        before = db.value("SELECT pg_current_wal_flush_lsn()::text")
        db.run("INSERT INTO orders VALUES (1, 'a', 1)")
        f.wait(lambda: not f.source._queue.is_empty)
        db.run("INSERT INTO elsewhere SELECT generate_series(1, 1000)")
        f.runtime.sleep_s(1.5)  # received, but not bound: the pipeline makes no transactions
        assert f.rows() == []
        assert db.value(f"SELECT '{db.confirmed()}'::pg_lsn <= '{before}'::pg_lsn")
        assert (f.source.lag.bytes or 0) > 0
        assert (f.source.lag.seconds or 0) >= 1.0
        f.until_equal()
        f.until(lambda: f.source.lag.seconds == 0)


def test_j10_a_bound_transaction_that_is_sent_again_is_dropped(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The crash came between bind and acknowledgement, and the server continues at the last confirmed position.

    Without the comparison with the bound position the rows, which have no key, would be doubled.
    """
    db.run("CREATE TABLE notes (text text)", "ALTER TABLE notes REPLICA IDENTITY FULL")
    notes = table(db, pa.schema([("text", pa.string())]), "notes", key=(), idle_interval="100")
    with Feeding(db, notes) as f:
        f.until(lambda: f.position.at == "stream")
        f.until_streaming()
        monkeypatch.setattr("evertide.sources.postgres.session.Replication.send_status", lambda *_, **__: None)
        told = db.confirmed()
        for number in range(5):
            db.run(f"INSERT INTO notes VALUES ('{number}')")
        f.until_equal("SELECT text FROM notes", "notes")
        assert db.confirmed() == told
        monkeypatch.undo()
        started = "evertide.sources.postgres.receiver.Replication"
        monkeypatch.setattr(started, lambda server, slot, publication, _: Replication(server, slot, publication, 0))
        f.restart()
        db.run("INSERT INTO notes VALUES ('new')")
        f.until_equal("SELECT text FROM notes", "notes")
