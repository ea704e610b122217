"""The PostgreSQL sink, on a real server: its table has the content of the collection after every transaction."""

from __future__ import annotations

import datetime as dt
import subprocess
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from evertide.errors import SinkFailed
from evertide.rows.changes import consolidate_delta
from tests.servers.postgres import BINARIES
from tests.sinks.kit import SCHEMA, TEXTS, changes, has_content, next_changes, split_into_pieces, text_changes
from tests.sinks.postgres.kit import ITEMS, Place, content, items


@pytest.mark.parametrize(
    ("small_rows", "pieces"), [(1000, 1), (0, 1), (1000, 4)], ids=["one statement", "copied", "in pieces"]
)
@pytest.mark.parametrize("key", [(), ("id",)], ids=["multiset", "key"])
@pytest.mark.parametrize("seed", range(4))
def test_the_table_has_the_content_of_the_collection(  # noqa: PLR0917
    place: Place, key: tuple[str, ...], seed: int, small_rows: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inserts, deletes, updates, duplicates, NULLs, NaN and -0.0, in all types; the sink is reopened now and then."""
    monkeypatch.setattr("evertide.sinks.postgres.sink._SMALL_ROWS", small_rows)
    random, held = np.random.default_rng(seed), changes()
    sink = place.open(SCHEMA, key)
    for time in range(0, 45, 3):
        delta = next_changes(held, random, is_keyed=bool(key))
        if delta.num_rows == 0:
            continue
        sink.write(time, delta if pieces == 1 else split_into_pieces(delta, pieces, key))
        held = consolidate_delta(pa.concat_tables([held, delta]))
        assert has_content(content(place), held), time
        assert place.mark()[0] == time
        if random.random() < 0.3:
            sink.close()
            sink = place.open(SCHEMA, key)
            assert sink.last() == time


def test_j7_a_number_that_the_table_has_is_skipped(place: Place) -> None:
    """By its number alone, also after the sink was reopened. A second write would double the row."""
    sink = place.open()
    assert sink.last() is None
    sink.write(3, items((1, "a", 1.0, 1)))
    sink.write(3, items((1, "a", 1.0, 1)))
    again = place.open()
    assert (sink.last(), again.last()) == (3, 3)
    again.write(2, items((2, "b", 1.0, 1)))
    again.write(3, items((1, "a", 1.0, 1)))
    assert place.rows("SELECT id FROM target") == [(1,)]
    again.write(7, items((2, "b", 1.0, 1)))  # gaps are transactions without changes
    assert place.rows("SELECT id FROM target ORDER BY id") == [(1,), (2,)]
    assert place.mark() == (7, 2)


@pytest.mark.parametrize("small_rows", [1000, 0])
@pytest.mark.parametrize("key", [(), ("id",)])
def test_i9_rows_and_number_are_one_transaction_of_the_server(
    place: Place, key: tuple[str, ...], small_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two transactions would leave, after a crash in between, rows without their number, or a number without
    its rows.
    """
    monkeypatch.setattr("evertide.sinks.postgres.sink._SMALL_ROWS", small_rows)
    sink = place.open(key=key)
    sink.write(0, items((1, "a", 1.0, 1), (2, "b", None, 1)))
    sink.write(1, items((1, "a", 1.0, -1), (1, "c", 1.0, 1), (3, "d", None, 1)))
    written = place.value("SELECT xmin::text FROM evertide_sinks")
    assert place.rows(f"SELECT id FROM target WHERE xmin::text = '{written}' ORDER BY id") == [(1,), (3,)]


def test_a_tiny_transaction_is_one_round_trip(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.open(key=("id",))
    waits = 0
    wait = psycopg.Connection.wait

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal waits
        waits += self is sink._connection
        return wait(self, *given, **named)

    monkeypatch.setattr(psycopg.Connection, "wait", counted)
    sink.write(0, items((1, "a", 1.0, 1), (2, "b", 1.0, 1)))
    sink.write(1, items((1, "a", 1.0, -1), (1, "c", 1.0, 1), (2, "b", 1.0, -1)))
    assert waits == 2
    assert place.rows("SELECT id, name FROM target") == [(1, "c")]


def test_with_a_key_updates_are_updates(place: Place) -> None:
    """Keys with NULL columns are keys like any other."""
    place.run(
        "CREATE TABLE target (id bigint, name text, amount float8, UNIQUE NULLS NOT DISTINCT (id, name))",
        "CREATE TABLE told (op text, id bigint)",
        f"CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" INSERT INTO {place.schema}.told VALUES (tg_op, coalesce(new.id, old.id)); RETURN new; END $$",
        "CREATE TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON target FOR EACH ROW EXECUTE FUNCTION tell()",
    )
    sink = place.open(key=("id", "name"))
    keys: list[tuple[int | None, str | None]] = [(1, "a"), (2, None), (None, "a"), (None, None), (3, None), (4, "b")]
    sink.write(0, items(*((*key, 1.0, 1) for key in keys)))
    sink.write(1, items(*((*key, 1.0, -1) for key in keys), *((*key, 2.0, 1) for key in keys[:4])))
    assert place.rows("SELECT op, count(*) FROM told GROUP BY op ORDER BY op") == [
        ("DELETE", 2),
        ("INSERT", 6),
        ("UPDATE", 4),
    ]
    found = place.rows("SELECT id, name, amount FROM target")
    assert sorted(found, key=repr) == sorted([(*key, 2.0) for key in keys[:4]], key=repr)
    sink.write(2, items(*((*key, 2.0, -1) for key in keys[:4])))
    assert place.rows("SELECT * FROM target") == []


@pytest.mark.parametrize("small_rows", [5000, 100])
def test_removals_of_equal_rows_delete_exactly_as_many(
    place: Place, small_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly the removed number of equal rows is deleted, NULLs and NaN included."""
    monkeypatch.setattr("evertide.sinks.postgres.sink._SMALL_ROWS", small_rows)
    nan = float("nan")
    many = [(number, "x", 0.5, 2) for number in range(500)]
    sink = place.open()
    sink.write(0, items((1, None, nan, 3), (None, None, None, 4), (1, "", 0.0, 2), (1, "", -0.0, 2), *many))
    gone = [(number, "x", 0.5, -1) for number in range(500)]
    sink.write(1, items((1, None, nan, -2), (None, None, None, -3), (1, "", -0.0, -2), (1, "", 0.0, 1), *gone))
    found = place.rows(
        "SELECT id, name, amount::text, count(*) FROM target WHERE name IS DISTINCT FROM 'x' GROUP BY 1, 2, 3"
    )
    assert sorted(found, key=repr) == [(1, "", "0", 3), (1, None, "NaN", 1), (None, None, None, 1)]
    assert place.rows("SELECT count(*), count(DISTINCT id) FROM target WHERE name = 'x'") == [(500, 500)]


UTC = dt.UTC
KINDS: list[tuple[Any, str, list[tuple[Any, str]]]] = [
    (pa.decimal128(38, 10), "numeric(38,10)", [(Decimal("1e-10"), "0.0000000001"), (Decimal(-5), "-5.0000000000")]),
    (pa.float32(), "real", [(0.1, "0.1"), (float("-inf"), "-Infinity")]),
    (pa.float64(), "double precision", [(0.1 + 0.2, "0.30000000000000004"), (-0.0, "-0"), (float("nan"), "NaN")]),
    (pa.int8(), "smallint", [(-128, "-128")]),
    (pa.int32(), "integer", [(-(2**31), "-2147483648")]),
    (pa.bool_(), "boolean", [(True, "true"), (False, "false")]),
    (pa.string(), "text", [("a\"b\\n\\.\n\\.\r\n,\t'", "a\"b\\n\\.\n\\.\r\n,\t'"), ("", ""), ("\\N", "\\N")]),
    (pa.binary(), "bytea", [(b"", "\\x"), (b"\x00\\\xff", "\\x005cff")]),
    (pa.date32(), "date", [(-1_000_000, "0769-02-04 BC"), (3_000_000, "10183-09-21"), (-719162, "0001-01-01")]),
    (pa.timestamp("us"), "timestamp without time zone", [(-62135596800000001, "0001-12-31 23:59:59.999999 BC")]),
    (pa.timestamp("us", "UTC"), "timestamp with time zone", [(300000000000000000, "11476-08-15 05:20:00+00")]),
    (pa.time64("ns"), "time without time zone", [(86_399_999_999_000, "23:59:59.999999")]),
    (pa.duration("us"), "interval", [(-93_784_000_001, "-26:03:04.000001"), (5, "00:00:00.000005")]),
    (
        pa.list_(pa.string()),
        "text[]",
        [(["a", None, "", 'q"\\,{}', "NULL"], '{a,NULL,"","q\\"\\\\,{}","NULL"}'), ([], "{}")],
    ),
    (pa.list_(pa.binary()), "bytea[]", [([b"\x01"], '{"\\\\x01"}')]),
    (pa.list_(pa.list_(pa.int64())), "jsonb", [([[1], [2, None], None], "[[1], [2, null], null]")]),
    (pa.map_(pa.string(), pa.float64()), "jsonb", [([("k", float("nan"))], '{"k": "nan"}')]),
    (pa.map_(pa.int64(), pa.string()), "jsonb", [([(1, "a")], '[[1, "a"]]')]),
    (
        pa.struct([("d", pa.decimal128(5, 2)), ("t", pa.timestamp("us", "UTC"))]),
        "jsonb",
        [
            (
                {"d": Decimal("1.50"), "t": dt.datetime(2024, 1, 2, tzinfo=UTC)},
                '{"d": "1.50", "t": "2024-01-02T00:00:00+00:00"}',
            )
        ],
    ),
]


@pytest.mark.parametrize("small_rows", [1000, 0], ids=["one statement", "copied"])
def test_values_of_all_types_arrive_as_they_are(place: Place, small_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also values that Python and Arrow cannot write, or that a text form could confuse with others."""
    monkeypatch.setattr("evertide.sinks.postgres.sink._SMALL_ROWS", small_rows)
    place.run("SET timezone = 'UTC'")
    for at, (kind, shown, values) in enumerate(KINDS):
        schema = pa.schema([("n", pa.int64()), ("v", kind)])
        sink = place.open(schema, token=f"token {at}", table=f"{place.schema}.t{at}")
        numbers = [*range(len(values)), len(values)]
        column = pa.array([*(value for value, _ in values), None], kind)
        rows = pa.table({"n": numbers, "v": column, "__diff": [1] * len(numbers)})
        sink.write(0, rows)
        sink.write(1, pa.table({"n": numbers[:1], "v": column[:1], "__diff": [1]}))
        found = place.rows(f"SELECT pg_typeof(v)::text, v::text FROM t{at} ORDER BY n")
        told = [(shown.split("(")[0], text) for _, text in [values[0], *values]]
        assert found == [*told, (told[0][0], None)], kind
        sink.write(2, pa.table({"n": numbers, "v": column, "__diff": [-1] * len(numbers)}))
        assert place.rows(f"SELECT n FROM t{at}") == [(0,)], kind
        sink.close()


def test_a_variant_is_json(place: Place) -> None:
    from pyspark.sql.types import VariantVal  # noqa: PLC0415 - slow to import

    marked = pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"})
    kind = pa.struct([pa.field("value", pa.binary(), nullable=False), marked])
    made = VariantVal.parseJson('{"a": [1, "x", null]}')
    value = {"value": bytes(made.value), "metadata": bytes(made.metadata)}
    sink = place.open(pa.schema([("v", kind)]))
    sink.write(0, pa.table({"v": pa.array([value, None], kind), "__diff": [1, 1]}))
    assert place.rows("SELECT v->'a' FROM target ORDER BY v") == [([1, "x", None],), (None,)]


@pytest.mark.parametrize("small_rows", [1000, 0])
def test_names_with_special_characters_are_quoted(
    place: Place, small_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertide.sinks.postgres.sink._SMALL_ROWS", small_rows)
    schema = pa.schema(
        [("a%b %s", pa.int64()), ('say "x"', pa.string()), ("select", pa.string()), ("Größe", pa.int64())]
    )
    sink = place.open(schema, ("a%b %s",), table=f'{place.schema}."odd.%s ""T"""')
    sink.write(0, pa.table([[1, 2], ["p", "q"], ["%", None], [5, 6], [1, 1]], [*schema.names, "__diff"]))
    sink.write(1, pa.table([[1, 1], ["p", "r"], ["%", "%"], [5, 6], [-1, 1]], [*schema.names, "__diff"]))
    assert place.rows('SELECT * FROM "odd.%s ""T""" ORDER BY 1') == [(1, "r", "%", 6), (2, "q", None, 6)]


def test_a_key_that_is_not_unique_is_an_error(place: Place) -> None:
    """Within a transaction, and between two of them: an upsert would lose a row silently."""
    sink = place.open(key=("name",))
    sink.write(0, items((1, "a", 1.0, 1)))
    for rows in [(2, "b", 1.0, 1), (3, "b", 1.0, 1)], [(1, "a", 1.0, -1), (4, "c", 1.0, 2)]:
        with pytest.raises(SinkFailed, match=r"the key \(name\) has several rows"):
            sink.write(1, items(*rows))
    with pytest.raises(SinkFailed, match=r"duplicate key.*the key \(name\) has several rows"):
        sink.write(1, items((2, "a", 1.0, 1)))
    assert place.rows("SELECT id, name FROM target") == [(1, "a")]
    assert place.mark()[0] == 0


@pytest.mark.parametrize("small_rows", [1000, 0])
@pytest.mark.parametrize("key", [(), ("id",)])
def test_a_table_that_another_writer_changed_fails_the_sink(
    place: Place, key: tuple[str, ...], small_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row to delete or update must exist: the transaction is refused as a whole, with its number."""
    monkeypatch.setattr("evertide.sinks.postgres.sink._SMALL_ROWS", small_rows)
    sink = place.open(key=key)
    sink.write(0, items((1, "a", 1.0, 1), (2, "b", 1.0, 1)))
    place.run("DELETE FROM target WHERE id = 1")
    for delta in [(1, "a", 1.0, -1)], [(1, "a", 1.0, -1), (1, "c", 1.0, 1)]:
        with pytest.raises(SinkFailed, match="another writer changed it"):
            sink.write(1, items(*delta, (3, "d", 1.0, 1)))
    assert place.rows("SELECT id FROM target") == [(2,)]
    assert place.mark()[0] == 0


def test_a_new_column_is_added_and_other_changes_are_refused(place: Place) -> None:
    sink = place.open()
    sink.write(0, items((1, "a", 1.0, 1)))
    wider = ITEMS.append(pa.field("more", pa.list_(pa.int64())))
    sink = place.open(wider)
    assert sink.last() == 0
    old, new = {"id": 1, "name": "a", "amount": 1.0, "more": None}, {"id": 2, "name": "b", "amount": None, "more": [7]}
    sink.write(1, changes((old, -1), (new, 1), schema=wider))
    assert place.rows("SELECT * FROM target") == [(2, "b", None, [7])]
    other = ITEMS.set(1, pa.field("name", pa.int64()))
    with pytest.raises(SinkFailed, match=r"'name'.*is text, which cannot hold every value of int64.*bigint"):
        place.open(other)
    assert place.open(wider).last() == 1


def test_maintenance_and_columns_of_others_do_not_affect_the_sink(place: Place) -> None:
    place.run(
        "CREATE TABLE target (note text DEFAULT 'x', amount float8, id bigint,"
        " serial bigint GENERATED ALWAYS AS IDENTITY, name varchar(5), later text)",
        "CREATE INDEX ON target (id)",
    )
    sink = place.open()
    assert sink._columns.index == 0
    sink.write(0, items((1, "a", 1.0, 2), (2, "b", None, 1)))
    place.run("VACUUM FULL target", "UPDATE target SET later = 'y'")
    sink.write(1, items((1, "a", 1.0, -1), (2, "b", None, -1), (3, "c", 1.0, 1)))
    assert place.rows("SELECT id, name, note, later FROM target ORDER BY id") == [
        (1, "a", "x", "y"),
        (3, "c", "x", None),
    ]
    with pytest.raises(SinkFailed, match="value too long"):
        sink.write(2, items((4, "too long", 1.0, 1)))
    with pytest.raises(SinkFailed, match=r"NUL"):
        sink.write(2, items((4, "a\x00", 1.0, 1)))


def test_acknowledged_transactions_are_on_disk(place: Place) -> None:
    """Otherwise a crash of the server would lose transactions that are recorded as written."""
    with place.role(
        "lazy", "GRANT ALL ON SCHEMA {schema} TO {user}", "ALTER ROLE {user} SET synchronous_commit = off"
    ) as url:
        sink = place.open(url=url)
        assert sink._connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


@pytest.mark.parametrize("small_rows", [1000, 0])
def test_a_partitioned_table_with_a_key(place: Place, small_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evertide.sinks.postgres.sink._SMALL_ROWS", small_rows)
    place.run("CREATE TABLE target (id bigint PRIMARY KEY, name text, amount float8) PARTITION BY HASH (id)")
    for at in range(2):
        place.run(f"CREATE TABLE part{at} PARTITION OF target FOR VALUES WITH (MODULUS 2, REMAINDER {at})")
    sink = place.open(key=("id",))
    sink.write(0, items(*((number, "a", 1.0, 1) for number in range(20))))
    changed = [(number, "b", 1.0, 1) for number in range(10)]
    sink.write(1, items(*((number, "a", 1.0, -1) for number in range(15)), *changed))
    assert place.rows("SELECT name, count(*) FROM target GROUP BY name ORDER BY name") == [("a", 5), ("b", 10)]


def test_a_restored_dump_has_the_table_with_its_number(place: Place) -> None:
    """To the server it is a different table, but the sink accepts it."""
    place.open(key=("id",)).write(3, items((1, "a", 1.0, 1)))
    dump = [str(BINARIES / "pg_dump"), "-d", place.dsn, "-n", place.schema]
    script = subprocess.run(dump, check=True, capture_output=True).stdout
    place.sinks[0].close()
    place.run(f"DROP SCHEMA {place.schema} CASCADE")
    subprocess.run([BINARIES / "psql", "-q", "-d", place.dsn], input=script, check=True, capture_output=True)
    sink = place.open(key=("id",))
    assert sink.last() == 3
    sink.write(4, items((1, "a", 1.0, -1), (2, "b", 1.0, 1)))
    assert place.rows("SELECT id FROM target") == [(2,)]


@pytest.mark.parametrize("small_rows", [1000, 0], ids=["one statement", "copied"])
def test_v7_texts_that_are_not_valid_utf8_are_replaced(
    place: Place, small_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that become equal are copies of one row."""
    monkeypatch.setattr("evertide.sinks.postgres.sink._SMALL_ROWS", small_rows)
    sink = place.open(TEXTS)
    sink.write(0, text_changes((1, b"\xff\xfeabc", 1), (1, b"\xfe\xfeabc", 2), (2, b"ok", 1)))
    sink.write(1, text_changes((1, b"\xff\xfeabc", -1), (1, b"\xfe\xfeabc", -1)))
    assert place.rows("SELECT id, s FROM target ORDER BY id") == [(1, "\ufffd\ufffdabc"), (2, "ok")]


@pytest.mark.parametrize("small_rows", [1000, 0], ids=["one statement", "copied"])
def test_v7_keys_that_become_equal_are_refused(place: Place, small_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evertide.sinks.postgres.sink._SMALL_ROWS", small_rows)
    sink = place.open(TEXTS, ("s",))
    sink.write(0, text_changes((1, b"\xff", 1)))
    sink.write(1, text_changes((1, b"\xff", -1), (2, b"\xfe", 1)))
    assert place.rows("SELECT id, s FROM target") == [(2, "\ufffd")]
    with pytest.raises(SinkFailed, match=r"the key \(s\) has several rows"):
        sink.write(2, text_changes((3, b"\xfd", 1)))
    with pytest.raises(SinkFailed, match=r"the key \(s\) has several rows"):
        sink.write(2, text_changes((3, b"a\xfd", 1), (4, b"a\xfe", 1)))
    assert place.rows("SELECT id, s FROM target") == [(2, "\ufffd")]
