"""What is refused before the pipeline starts, with the remedy; and what a sink says that finds its table changed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput, SinkFailed
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
def test_options_that_mean_nothing(place: Place, options: dict[str, str], why: str) -> None:
    declared = place.declared()
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
def test_columns_that_a_table_cannot_have(place: Place, field: pa.Field, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"shop.sql, line 3.*{why}"):
        place.prepared(pa.schema([field]))


def test_a_package_that_is_not_installed_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "evertide.sinks.postgres.sink", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidInput, match=r"needs the package 'psycopg': pip install 'evertide\[postgres\]'"):
        prepare_sinks([place.declared()])


def refused(place: Place, why: str, schema: pa.Schema = TWO, key: tuple[str, ...] = (), **options: str) -> None:
    """Before the pipeline starts, and without having changed anything."""
    before = place.rows("SELECT relname FROM pg_class ORDER BY oid")
    with pytest.raises(InvalidInput, match=f"(?s)shop.sql, line 3.*PostgreSQL.*{why}"):
        place.prepared(schema, key, **options).probe()
    assert place.rows("SELECT relname FROM pg_class ORDER BY oid") == before


@pytest.mark.parametrize(
    ("table", "key", "why"),
    [
        ("(id bigint)", (), "has no column .*name.*; it has id: ALTER TABLE .* ADD COLUMN .*name.* text"),
        ("(id integer, name text)", (), "'id' of .* is integer, which cannot hold every value of int64.*bigint"),
        ("(id bigint, name varchar(5)[])", (), "'name' of .* is character varying"),
        ("(id bigint, name text, more int NOT NULL)", (), "'more' of .* needs a value.*give it a default"),
        ("(id bigint GENERATED ALWAYS AS IDENTITY, name text)", (), "'id' of .* is computed by the server"),
        ("(id bigint, name text)", ("id",), r"no primary key or unique index on \(id\).*CREATE UNIQUE INDEX"),
        ("(id bigint, name text, UNIQUE (id, name))", ("id",), r"no primary key or unique index on \(id\)"),
        ("(id bigint, name text) PARTITION BY HASH (id)", (), "partitioned, and the collection has no key"),
    ],
)
def test_tables_that_do_not_fit(place: Place, table: str, key: tuple[str, ...], why: str) -> None:
    place.run(f"CREATE TABLE target {table}")
    refused(place, why, key=key)
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
def test_a_column_that_would_round_cut_or_mistake_a_value(place: Place, kind: Any, column: str) -> None:
    place.run(f"CREATE TABLE target (v {column})")
    refused(place, "cannot hold every value of", pa.schema([("v", kind)]))


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
def test_a_column_that_can_hold_the_values(place: Place, kind: Any, column: str, value: str) -> None:
    """A row that was written is found again, whatever the column makes of it."""
    place.run(f"CREATE TABLE target (v {column})")
    schema = pa.schema([("v", kind)])
    place.prepared(schema).probe()
    sink = place.open(schema)
    nested: dict[Any, Any] = {"[1]": [1], '{"x":1}': {"x": 1}}
    given = pa.array([nested.get(value, value) if pa.types.is_nested(kind) else value])
    rows = pa.table({"v": given.cast(kind), "__diff": [2]})
    sink.write(0, rows)
    sink.write(1, rows.set_column(1, "__diff", pa.array([-1])))
    assert len(place.rows("SELECT v FROM target")) == 1


def test_a_table_that_holds_something_is_not_taken(place: Place) -> None:
    place.run("CREATE TABLE target (id bigint, name text)", "INSERT INTO target VALUES (1, 'a')")
    refused(place, "holds rows that this sink did not write")
    with pytest.raises(SinkFailed, match="holds rows that this sink did not write"):
        place.open(TWO)
    place.run("DELETE FROM target")
    place.prepared(TWO).probe()
    assert place.open(TWO).last() is None


def test_the_table_of_another_sink_is_not_gone_on_with(place: Place) -> None:
    """Its numbers mean something else: going on would skip what is new, or add to what is old."""
    place.open().write(3, items((1, "a", 1.0, 1)))
    refused(place, "the target of another sink already, 'lake of orders'", ITEMS)
    with pytest.raises(SinkFailed, match=r"of another sink already.*name a table of its own"):
        place.open(token="another")
    assert place.rows("SELECT id FROM target") == [(1,)]


def test_what_is_no_table(place: Place) -> None:
    place.run(
        "CREATE VIEW target AS SELECT 1::bigint AS id, ''::text AS name", "CREATE UNLOGGED TABLE fast (id bigint)"
    )
    refused(place, "is not an ordinary table")
    refused(place, "is not an ordinary table", table=f"{place.schema}.fast")
    refused(place, "there is no schema nowhere: CREATE SCHEMA nowhere", table="nowhere.t")
    refused(
        place, "there is no table .*: create it, or set the option 'create'", table=f"{place.schema}.t", create="false"
    )


def test_rights_that_are_missing(place: Place) -> None:
    """Each is named, with what gives it; then the sink works with no more than these."""
    schema = place.schema
    place.run("CREATE TABLE target (id bigint, name text)")
    with place.role("clerk", "ALTER ROLE {user} SET search_path = {schema}") as url:
        user = f"{schema}_clerk"
        refused(place, f"may not make {schema}.evertide_sinks.*GRANT CREATE ON SCHEMA {schema} TO {user}", url=url)
        place.run(f"GRANT CREATE ON SCHEMA {schema} TO {user}")
        refused(place, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.target TO {user}", url=url)
        place.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON target TO {user}")
        place.prepared(TWO, url=url).probe()
        sink = place.open(TWO, url=url)
        sink.write(0, pa.table([[1], ["a"], [1]], ["id", "name", "__diff"]))
        wider = TWO.append(pa.field("more", pa.int64()))
        with pytest.raises(
            SinkFailed, match=f'the user may not add them: ALTER TABLE {schema}.target ADD COLUMN "more"'
        ):
            place.open(wider, url=url)
        place.run(f"REVOKE UPDATE, DELETE ON target FROM {user}")
        with pytest.raises(SinkFailed, match=r"permission denied.*GRANT"):
            sink.write(1, pa.table([[1], ["a"], [-1]], ["id", "name", "__diff"]))


def test_a_server_that_cannot_be_used_and_no_secret_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong password, a server that is not there, a database that is not: refused; once it runs, it stalls."""
    monkeypatch.setenv("PG_SECRET", "hunter2")
    with running_logical() as server:
        admin = Place(server.dsn(), "shop")
        admin.run(f"CREATE ROLE {LOCKED} LOGIN PASSWORD 'other'", f"GRANT ALL ON SCHEMA shop TO {LOCKED}")
        for url in server.dsn(user=LOCKED), server.dsn(user=f"{LOCKED}:hunter2"):
            with pytest.raises(InvalidInput, match="password authentication failed") as refusal:
                admin.prepared(url=url, password="${ENV:PG_SECRET}").probe()
            with pytest.raises(SinkFailed, match="password authentication failed") as failure:
                admin.prepared(url=url, password="${ENV:PG_SECRET}").open("token")
            told = f"{refusal.value!r} {failure.value!r} {refusal.value.__cause__!r}"
            assert "hunter2" not in told
        with pytest.raises(InvalidInput, match=r'database "\*\*\*" does not exist'):
            admin.prepared(url=server.dsn(), dbname="${ENV:PG_SECRET}").probe()
        with pytest.raises(SinkFailed, match=r'database "\*\*\*" does not exist') as failure:
            admin.prepared(url=server.dsn(), dbname="${ENV:PG_SECRET}").open("token")
        assert "hunter2" not in failure.value.where
        assert failure.value.__cause__ is None
        monkeypatch.setenv("PG_SECRET", "other")
        admin.prepared(url=server.dsn(user=LOCKED), password="${ENV:PG_SECRET}").probe()
        for grant, why in (
            ("REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC", f"GRANT TEMPORARY ON DATABASE .* TO {LOCKED}"),
            (f"ALTER ROLE {LOCKED} SET default_transaction_read_only = on", "nothing can be written there"),
        ):
            admin.run(grant)
            with pytest.raises(InvalidInput, match=why):
                admin.prepared(url=server.dsn(user=LOCKED), password="${ENV:PG_SECRET}").probe()
        with pytest.raises(InvalidInput, match='database "none" does not exist'):
            admin.prepared(url=server.dsn("none")).probe()
        admin.close()
    with pytest.raises(InvalidInput, match=r"connection.*failed"):
        place.prepared(url=server.dsn()).probe()


def test_a_table_that_was_replaced_is_told(place: Place) -> None:
    """The number would go on, over rows that are not there."""
    place.open().write(3, items((1, "a", 1.0, 1)))
    place.run("ALTER TABLE target RENAME TO away")
    with pytest.raises(SinkFailed, match=r"target is gone: bring it back"):
        place.open()
    place.run("CREATE TABLE target (LIKE away)")
    with pytest.raises(SinkFailed, match="another table than the one that was written to"):
        place.open()
    place.run("DROP TABLE target", "ALTER TABLE away RENAME TO target")
    sink = place.open()
    assert sink.last() == 3
    place.run("DELETE FROM evertide_sinks")
    with pytest.raises(SinkFailed, match=r"the sink's row in .* is missing"):
        sink.write(4, items((1, "a", 1.0, -1)))
    assert place.rows("SELECT id FROM target") == [(1,)]


def test_a_key_must_be_known_to_the_table_in_its_own_spelling(place: Place) -> None:
    """Columns are found whatever their case, as long as that is clear."""
    place.run('CREATE TABLE target ("ID" bigint PRIMARY KEY, "Name" text)')
    sink = place.open(TWO, ("id",))
    sink.write(0, pa.table([[1], ["a"], [1]], ["id", "name", "__diff"]))
    sink.write(1, pa.table([[1, 1], ["a", "b"], [-1, 1]], ["id", "name", "__diff"]))
    assert place.rows("SELECT * FROM target") == [(1, "b")]
    both = TWO.append(pa.field("ID", pa.int64()))
    with pytest.raises(SinkFailed, match="one column for two of the collection"):
        prepare_sinks([replace(place.declared(both), key=("id",))])["lake"].open("token")
