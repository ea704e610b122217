"""What the sink refuses before the pipeline starts, with the remedy, and its errors if its table was changed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput, SetupIncomplete, SinkFailed
from evertide.sinks.registry import prepare_sinks
from tests.sinks.postgres.kit import ITEMS, Place, items
from tests.sources.postgres.server import LOCKED, running_logical

TWO = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"table": ""}, "'table' is missing"),
        ({"table": "a.b.c"}, r"'table' is 'a.b.c': expected a table, for example 'public.revenue'"),
        ({"table": "public.evertide_sinks"}, "'table' is 'public.evertide_sinks'"),
        ({"tabel": "x"}, "connector 'postgres' has no option 'tabel'"),
        ({"create": "maybe"}, "'create' is 'maybe'"),
        ({"url": "postgresql://u:p%zz@h/d"}, "the server's address is invalid"),
        ({"port": "many"}, "the port in the server's address is not a number"),
        ({"password": "${ENV:GONE}"}, "the environment has no variable 'GONE'"),
    ],
)
def test_invalid_options_are_refused(place: Place, options: dict[str, str], why: str) -> None:
    declared = place.declare()
    with pytest.raises(InvalidInput, match=f"shop.sql, line 3.*{why}"):
        prepare_sinks([replace(declared, options={**declared.options, **options})])


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (pa.field("x" * 64, pa.int64()), "a PostgreSQL table cannot have a column named"),
        (pa.field("ctid", pa.int64()), "a PostgreSQL table cannot have a column named"),
        (pa.field("a", pa.list_(pa.month_day_nano_interval())), "which a PostgreSQL table cannot store"),
    ],
)
def test_unsupported_columns_are_refused(place: Place, field: pa.Field, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"shop.sql, line 3.*{why}"):
        place.prepare(pa.schema([field]))


def test_a_package_that_is_not_installed_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "evertide.sinks.postgres.sink", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SetupIncomplete, match=r"the package 'psycopg' is missing: pip install 'evertide\[postgres\]'"):
        prepare_sinks([place.declare()])


def check_refused(place: Place, why: str, schema: pa.Schema = TWO, key: tuple[str, ...] = (), **options: str) -> None:
    """The sink refuses before the pipeline starts, and changes nothing."""
    before = place.rows("SELECT relname FROM pg_class ORDER BY oid")
    with pytest.raises(InvalidInput, match=f"(?s)shop.sql, line 3.*PostgreSQL.*{why}"):
        place.prepare(schema, key, **options).probe()
    assert place.rows("SELECT relname FROM pg_class ORDER BY oid") == before


@pytest.mark.parametrize(
    ("table", "key", "why"),
    [
        ("(id bigint)", (), "has no column .*name.*; it has id; run ALTER TABLE .* ADD COLUMN .*name.* text"),
        ("(id integer, name text)", (), "'id' of .* is integer, which cannot hold every value of int64.*bigint"),
        ("(id bigint, name varchar(5)[])", (), "'name' of .* is character varying"),
        ("(id bigint, name text, more int NOT NULL)", (), "'more' of .* requires a value.*give it a default"),
        ("(id bigint GENERATED ALWAYS AS IDENTITY, name text)", (), "'id' of .* is computed by the server"),
        ("(id bigint, name text)", ("id",), r"no primary key or unique index on \(id\).*CREATE UNIQUE INDEX"),
        ("(id bigint, name text, UNIQUE (id, name))", ("id",), r"no primary key or unique index on \(id\)"),
        ("(id bigint, name text) PARTITION BY HASH (id)", (), "partitioned, and the collection has no key"),
    ],
)
def test_tables_with_other_columns_are_refused(place: Place, table: str, key: tuple[str, ...], why: str) -> None:
    place.run(f"CREATE TABLE target {table}")
    check_refused(place, why, key=key)
    with pytest.raises(SinkFailed, match=f"(?s){why}" if "ALTER" not in why else "has no column|is int"):
        place.open(TWO, key, create="false")


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.decimal128(10, 2), "numeric(10,1)"),
        (pa.decimal128(10, 2), "numeric(9,2)"),
        (pa.decimal128(10, 2), "bigint"),
        (pa.int64(), "numeric(10,2)"),
        (pa.float64(), "real"),
        (pa.float64(), "numeric"),
        (pa.timestamp("us"), "timestamptz"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("us"), "timestamp(3)"),
        (pa.string(), "char(5)"),
        (pa.list_(pa.int64()), "integer[]"),
        (pa.list_(pa.list_(pa.int64())), "bigint[]"),
        (pa.struct([("x", pa.int64())]), "text"),
    ],
)
def test_a_column_that_would_change_a_value_is_refused(place: Place, kind: Any, column: str) -> None:
    place.run(f"CREATE TABLE target (v {column})")
    check_refused(place, "cannot hold every value of", pa.schema([("v", kind)]))


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        (pa.decimal128(10, 2), "numeric(12,3)", "1.50"),
        (pa.int8(), "bigint", "1"),
        (pa.int64(), "numeric", "1"),
        (pa.string(), "uuid", "c0ffee00-0000-0000-0000-000000000000"),
        (pa.string(), "jsonb", '{"b": 1, "a": 2}'),
        (pa.list_(pa.int16()), "bigint[]", "[1]"),
        (pa.struct([("x", pa.int64())]), "json", '{"x":1}'),
    ],
)
def test_a_column_that_can_store_the_values_is_accepted(place: Place, kind: Any, column: str, value: str) -> None:
    """A written row is found again, whatever the column's type does to its values."""
    place.run(f"CREATE TABLE target (v {column})")
    schema = pa.schema([("v", kind)])
    place.prepare(schema).probe()
    sink = place.open(schema)
    nested: dict[Any, Any] = {"[1]": [1], '{"x":1}': {"x": 1}}
    given = pa.array([nested.get(value, value) if pa.types.is_nested(kind) else value])
    rows = pa.table({"v": given.cast(kind), "__diff": [2]})
    sink.write(0, rows)
    sink.write(1, rows.set_column(1, "__diff", pa.array([-1])))
    assert len(place.rows("SELECT v FROM target")) == 1


def test_a_table_with_rows_is_refused(place: Place) -> None:
    place.run("CREATE TABLE target (id bigint, name text)", "INSERT INTO target VALUES (1, 'a')")
    check_refused(place, "has rows that this sink did not write")
    with pytest.raises(SinkFailed, match="has rows that this sink did not write"):
        place.open(TWO)
    place.run("DELETE FROM target")
    place.prepare(TWO).probe()
    assert place.open(TWO).last() is None


def test_the_table_of_another_sink_is_refused(place: Place) -> None:
    """Its numbers belong to another history: continuing would skip new transactions, or add to old content."""
    place.open().write(3, items((1, "a", 1.0, 1)))
    check_refused(place, "already the target of another sink, 'lake of orders'", ITEMS)
    with pytest.raises(SinkFailed, match=r"of another sink.*name another table"):
        place.open(token="another")
    assert place.rows("SELECT id FROM target") == [(1,)]


def test_views_unlogged_and_missing_tables_are_refused(place: Place) -> None:
    place.run(
        "CREATE VIEW target AS SELECT 1::bigint AS id, ''::text AS name", "CREATE UNLOGGED TABLE fast (id bigint)"
    )
    check_refused(place, "is a view, or a foreign, temporary or unlogged table")
    check_refused(place, "is a view, or a foreign, temporary or unlogged table", table=f"{place.schema}.fast")
    check_refused(place, "schema nowhere does not exist; run CREATE SCHEMA nowhere", table="nowhere.t")
    check_refused(
        place,
        "table .* does not exist; create it, or set the option 'create'",
        table=f"{place.schema}.t",
        create="false",
    )


def test_missing_permissions_are_named(place: Place) -> None:
    """Each missing permission is named, with the statement that grants it. The sink works with no more than these."""
    schema = place.schema
    place.run("CREATE TABLE target (id bigint, name text)")
    with place.role("clerk", "ALTER ROLE {user} SET search_path = {schema}") as url:
        user = f"{schema}_clerk"
        check_refused(
            place, f"may not create {schema}.evertide_sinks.*GRANT CREATE ON SCHEMA {schema} TO {user}", url=url
        )
        place.run(f"GRANT CREATE ON SCHEMA {schema} TO {user}")
        check_refused(place, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.target TO {user}", url=url)
        place.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON target TO {user}")
        place.prepare(TWO, url=url).probe()
        sink = place.open(TWO, url=url)
        sink.write(0, pa.table([[1], ["a"], [1]], ["id", "name", "__diff"]))
        wider = TWO.append(pa.field("more", pa.int64()))
        with pytest.raises(
            SinkFailed, match=f'the user may not add them; run ALTER TABLE {schema}.target ADD COLUMN "more"'
        ):
            place.open(wider, url=url)
        place.run(f"REVOKE UPDATE, DELETE ON target FROM {user}")
        with pytest.raises(SinkFailed, match=r"permission denied.*GRANT"):
            sink.write(1, pa.table([[1], ["a"], [-1]], ["id", "name", "__diff"]))


def test_an_unusable_server_is_refused_without_showing_secrets(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong password, an unreachable server, a missing database: refused at the start; while it runs, the sink
    stalls.
    """
    monkeypatch.setenv("PG_SECRET", "hunter2")
    with running_logical() as server:
        admin = Place(server.dsn(), "shop")
        admin.run(f"CREATE ROLE {LOCKED} LOGIN PASSWORD 'other'", f"GRANT ALL ON SCHEMA shop TO {LOCKED}")
        for url in server.dsn(user=LOCKED), server.dsn(user=f"{LOCKED}:hunter2"):
            with pytest.raises(InvalidInput, match="password authentication failed") as refusal:
                admin.prepare(url=url, password="${ENV:PG_SECRET}").probe()
            with pytest.raises(SinkFailed, match="password authentication failed") as failure:
                admin.prepare(url=url, password="${ENV:PG_SECRET}").open("token")
            told = f"{refusal.value!r} {failure.value!r} {refusal.value.__cause__!r}"
            assert "hunter2" not in told
        with pytest.raises(InvalidInput, match=r'database "\*\*\*" does not exist'):
            admin.prepare(url=server.dsn(), dbname="${ENV:PG_SECRET}").probe()
        with pytest.raises(SinkFailed, match=r'database "\*\*\*" does not exist') as failure:
            admin.prepare(url=server.dsn(), dbname="${ENV:PG_SECRET}").open("token")
        assert "hunter2" not in failure.value.where
        assert failure.value.__cause__ is None
        monkeypatch.setenv("PG_SECRET", "other")
        admin.prepare(url=server.dsn(user=LOCKED), password="${ENV:PG_SECRET}").probe()
        for grant, why in (
            ("REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC", f"GRANT TEMPORARY ON DATABASE .* TO {LOCKED}"),
            (f"ALTER ROLE {LOCKED} SET default_transaction_read_only = on", "the server accepts no writes"),
        ):
            admin.run(grant)
            with pytest.raises(InvalidInput, match=why):
                admin.prepare(url=server.dsn(user=LOCKED), password="${ENV:PG_SECRET}").probe()
        with pytest.raises(InvalidInput, match='database "none" does not exist'):
            admin.prepare(url=server.dsn("none")).probe()
        admin.close()
    with pytest.raises(InvalidInput, match=r"connection.*failed"):
        place.prepare(url=server.dsn()).probe()


def test_a_replaced_table_fails_the_sink(place: Place) -> None:
    """The number would continue, over rows that are missing."""
    place.open().write(3, items((1, "a", 1.0, 1)))
    place.run("ALTER TABLE target RENAME TO away")
    with pytest.raises(SinkFailed, match=r"target does not exist any more; restore it"):
        place.open()
    place.run("CREATE TABLE target (LIKE away)")
    with pytest.raises(SinkFailed, match="is not the table that the sink wrote to"):
        place.open()
    place.run("DROP TABLE target", "ALTER TABLE away RENAME TO target")
    sink = place.open()
    assert sink.last() == 3
    place.run("DELETE FROM evertide_sinks")
    with pytest.raises(SinkFailed, match=r"the sink's row in .* is missing"):
        sink.write(4, items((1, "a", 1.0, -1)))
    assert place.rows("SELECT id FROM target") == [(1,)]


def test_a_key_matches_the_tables_columns_in_any_case(place: Place) -> None:
    """Column names match in any case, as long as they are unambiguous."""
    place.run('CREATE TABLE target ("ID" bigint PRIMARY KEY, "Name" text)')
    sink = place.open(TWO, ("id",))
    sink.write(0, pa.table([[1], ["a"], [1]], ["id", "name", "__diff"]))
    sink.write(1, pa.table([[1, 1], ["a", "b"], [-1, 1]], ["id", "name", "__diff"]))
    assert place.rows("SELECT * FROM target") == [(1, "b")]
    both = TWO.append(pa.field("ID", pa.int64()))
    with pytest.raises(SinkFailed, match="one column for two of the collection"):
        prepare_sinks([replace(place.declare(both), key=("id",))])["lake"].open("token")
