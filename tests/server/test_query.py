"""Queries over HTTP that DuckDB answers: results, refused statements, and limits."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evertide.errors import InvalidInput, LimitExceeded
from evertide.media import PARQUET
from evertide.pipeline.engine import DeclaredTable
from evertide.rows.frames import make_names_unique
from evertide.server.endpoints.formats import encode_rows
from evertide.server.query.duck import Duck, DuckDeclined
from evertide.settings import Settings
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import open_pipeline
from tests.server.kit import Answer, Client, order, served, shop, stored
from tests.server.test_rows import FULL, TYPES

ROWS = "/v1/tables/orders/rows"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a shop with three orders from two transactions."""
    with shop(stored(tmp_path_factory.mktemp("query"))) as (_, client):
        client.post(ROWS, [order(1), order(2, "bob", 5)])
        client.post(ROWS, [order(3, "bob", 7)])
        yield client


def ask(client: Client, sql: str, **more: Any) -> Answer:
    return client.post("/v1/query", {"sql": sql, **more})


def test_a_query_is_answered_with_time_types_and_engine(client: Client) -> None:
    found = ask(client, "SELECT customer, sum(amount) AS total, count(*) AS n FROM orders GROUP BY 1 ORDER BY 1").body
    assert (found["time"], found["engine"], found["is_truncated"]) == (2, "duckdb", False)
    assert [(one["name"], one["type"]) for one in found["columns"]] == [
        ("customer", "STRING"),
        ("total", "BIGINT"),
        ("n", "BIGINT"),
    ]
    assert found["rows"] == [["ann", 10, 1], ["bob", 12, 2]]
    one = ask(client, "SELECT id FROM Orders WHERE customer = ? AND amount > ?", parameters=["bob", 5])
    assert one.body["rows"] == [[3]]
    both = "SELECT o.id FROM orders o JOIN revenue r USING (customer) WHERE r.amount > 10 ORDER BY 1 DESC NULLS LAST"
    assert ask(client, both).body["rows"] == [[3], [2]]
    own = "WITH big AS (SELECT * FROM orders WHERE amount > 6) SELECT count(*) FROM big"
    same = "WITH orders AS (SELECT * FROM orders WHERE amount > 6) SELECT count(*) FROM orders"
    assert ask(client, same, engine="duckdb").body["rows"] == ask(client, own).body["rows"]
    assert ask(client, own).body["rows"] == [[2]]
    assert ask(client, "SELECT id, id FROM orders LIMIT 1").body["columns"][1]["name"] == "id_2"


def test_answers_are_available_in_every_format(client: Client) -> None:
    body = b'{"sql": "SELECT id, customer FROM orders ORDER BY id LIMIT 2"}'
    headers = {"Content-Type": "application/json"}
    raw = client.raw("POST", "/v1/query?format=csv", body, headers)
    assert list(csv.reader(io.StringIO(raw.content.decode()))) == [["id", "customer"], ["1", "ann"], ["2", "bob"]]
    assert "engine=duckdb" in raw.headers["evertide-query"]
    raw = client.raw("POST", "/v1/query", body, {**headers, "Accept": "application/vnd.apache.arrow.stream"})
    with pa.ipc.open_stream(raw.content) as stream:
        assert stream.read_all().to_pylist()[1] == {"id": 2, "customer": "bob"}


@pytest.mark.parametrize("value", ["MAP {}", "{'a': MAP {}}", "[MAP {}]"])
def test_an_empty_map_comes_as_parquet(value: str) -> None:
    """Its keys have no type, which Parquet does not have. Fails with status 500."""
    rows, _ = Duck(Settings()).answer(f"SELECT {value} AS m", {}, [], 10)
    content = b"".join(encode_rows(PARQUET, rows.schema, [rows]))
    assert pq.read_table(io.BytesIO(content)).to_pylist() == rows.to_pylist()


def test_equal_names_of_columns_become_different() -> None:
    """Takes years if each name is compared with all before it, once for each number that it tries."""
    rows = pa.Table.from_arrays([pa.array([1])] * 50_000, names=["a", "a_2", *["a"] * 49_998])
    assert make_names_unique(rows).schema.names == ["a", "a_2", *(f"a_{at}" for at in range(3, 50_001))]


def test_a_body_with_a_name_twice_is_refused(client: Client) -> None:
    """Fails if one of the two counts: a proxy that checks the body may use the other."""
    body = rb'{"sql": "SELECT 1 AS n", "\u0073ql": "SELECT 2 AS n"}'
    raw = client.raw("POST", "/v1/query", body, {"Content-Type": "application/json"})
    assert (raw.status, b"repeats the name 'sql'" in raw.content) == (400, True)


def test_a_query_at_an_earlier_time_and_with_a_limit_of_rows(client: Client) -> None:
    assert ask(client, "SELECT count(*) FROM orders", as_of=1).body["rows"] == [[2]]
    assert ask(client, "SELECT count(*) FROM orders", as_of=3).body["error_code"] == "invalid_input"
    found = ask(client, "SELECT * FROM range(100) ORDER BY 1", limit=3).body
    assert (found["rows"], found["is_truncated"]) == ([[0], [1], [2]], True)
    assert ask(client, "SELECT * FROM range(3)", limit=3).body["is_truncated"] is False
    assert len(ask(client, "SELECT * FROM range(20000)").body["rows"]) == 10_000, "people read JSON"


def test_values_of_all_types_equal_those_of_the_table(tmp_path: Path) -> None:
    """Except a VARIANT, which DuckDB does not have. Fails if a sum of BIGINT is a text."""
    schema = pa.schema([field for field in TYPES if field.name not in ("v", "mi")])
    row = {name: value for name, value in FULL.items() if name in schema.names}
    types = SmallEngine((DeclaredTable("types", schema, key=("id",)),), [])
    with open_pipeline(stored(tmp_path), types) as p, served(p) as c:
        c.post("/v1/tables/types/rows", [row, {"id": 2, "d": "NaN", "f": "Infinity"}, {"id": 3}])
        told = c.get("/v1/tables/types/rows").body
        found = ask(c, "SELECT * FROM types ORDER BY id").body
        assert found["rows"] == told["rows"]
        assert [one["type"] for one in found["columns"]] == [one["type"] for one in told["columns"]]
        sums = ask(
            c, "SELECT sum(id), sum(id) * 4611686018427387904, 1::UBIGINT, INTERVAL 2 DAY, max(ts) FROM types"
        ).body
        assert sums["rows"][0][:2] == [6, "27670116110564327424"]
        assert sums["rows"][0][3] == "2 00:00:00.000000"
        order_by = ask(c, "SELECT d FROM types ORDER BY d").body["rows"]
        assert order_by == [[None], [0.1], ["nan"]], "NULL first, NaN last, as in Spark"


def test_a_query_reads_all_collections_at_one_time_while_transactions_run(tmp_path: Path) -> None:
    """Each transaction moves an amount from one customer to another, and adds a note. Fails if collections are read one
    after the other at different times."""
    with shop(stored(tmp_path)) as (_, client), ThreadPoolExecutor(1) as threads:
        client.post(ROWS, [order(1, "ann", 500), order(2, "bob", 500)])
        is_over = threading.Event()

        def moving() -> int:
            made = 0
            while not is_over.is_set():
                made += 1
                rows = [order(1, "ann", 500 - made), order(2, "bob", 500 + made)]
                tables = {"orders": rows, "notes": [{"text": f"n{made}"}]}
                assert client.post("/v1/transactions", {"tables": tables}).status == 200
            return made

        moved = threads.submit(moving)
        sql = "SELECT (SELECT sum(amount) FROM revenue), (SELECT count(*) FROM notes), (SELECT notes FROM counts)"
        sql += ", (SELECT amount FROM orders WHERE id = 2), (SELECT amount FROM revenue WHERE customer = 'bob')"
        times = []
        try:
            for _ in range(25):
                found = ask(client, sql).body
                total, notes, counted, bob, revenue = found["rows"][0]
                assert (total, notes, bob) == (1000, counted, revenue), found
                assert bob == 500 + notes == 500 + found["time"] - 1
                times.append(found["time"])
        finally:
            is_over.set()
        assert moved.result() > 0 < times[-1]
        assert times == sorted(times)


HOSTILE = [
    "SELECT * FROM read_csv('{0}')",
    "SELECT * FROM read_csv_auto('{0}')",
    "SELECT * FROM read_text('{0}')",
    "SELECT * FROM read_blob('{0}')",
    "SELECT * FROM read_json('{0}')",
    "SELECT * FROM read_json_objects('{0}')",
    "SELECT * FROM read_parquet('{0}')",
    "SELECT * FROM parquet_metadata('{0}')",
    "SELECT * FROM parquet_schema('{0}')",
    "SELECT * FROM sniff_csv('{0}')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM '{0}'",
    'SELECT * FROM "{0}"',
    "FROM '{0}'",
    "SELECT * FROM 'http://127.0.0.1:1/x.parquet'",
    "SELECT * FROM orders WHERE id IN (SELECT 1 FROM read_text('{0}'))",
    "WITH x AS (SELECT * FROM read_text('{0}')) SELECT * FROM x",
    "SELECT (SELECT content FROM read_text('{0}'))",
    "SELECT * FROM query('SELECT * FROM read_text(''{0}'')')",
    "SELECT * FROM query_table('{0}')",
    "SELECT getenv('HOME')",
    "SELECT current_setting('secret_directory')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_tables()",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM sqlite_scan('{0}', 't')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM python_map_function()",
    "SELECT * FROM secret_of_python",
    "COPY orders TO '{0}.out'",
    "COPY (SELECT 1) TO '{0}.out'",
    "EXPORT DATABASE '{0}.out'",
    "ATTACH '{0}.db' AS x",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "SET VARIABLE x = 1",
    "CREATE TABLE x AS SELECT 1",
    "CREATE VIEW v AS SELECT 1",
    "CREATE MACRO m() AS 1",
    "CREATE SECRET (TYPE s3)",
    "INSERT INTO orders VALUES (1, 'x', 1)",
    "WITH x AS (SELECT 1) INSERT INTO orders SELECT 9, 'x', 1",
    "UPDATE orders SET amount = 0",
    "DELETE FROM orders",
    "DROP VIEW orders",
    "ALTER TABLE orders ADD COLUMN x INT",
    "TRUNCATE orders",
    "VACUUM",
    "CHECKPOINT",
    "BEGIN",
    "USE memory",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "EXPLAIN ANALYZE SELECT 1",
    "DESCRIBE orders",
    "SHOW TABLES",
    "SUMMARIZE orders",
    'WITH "pg_catalog.pg_settings" AS (SELECT 1) SELECT name, setting FROM pg_catalog.pg_settings',
    'WITH "information_schema.tables" AS (SELECT 1) SELECT * FROM information_schema.tables',
    "SELECT name, setting FROM pg_settings, (WITH pg_settings AS (SELECT 1) SELECT * FROM pg_settings) x",
    "SELECT * FROM duckdb_databases WHERE EXISTS (WITH duckdb_databases AS (SELECT 1) SELECT * FROM duckdb_databases)",
    'SELECT * FROM \'{0}\', (WITH "{0}" AS (SELECT 1) SELECT * FROM "{0}") x',
    "WITH sqlite_master AS (SELECT * FROM sqlite_master) SELECT * FROM sqlite_master",
    "SELECT json_serialize_plan('SELECT current_setting(''secret_directory'')', optimize := true)",
    "SELECT " + "1+" * 3000 + "1",
    "SELECT 340282366920938463463374607431768211455::UHUGEINT",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW orders",
    "",
    ";",
    "-- nothing",
]


def test_statements_that_do_more_than_read_collections_are_refused(client: Client, tmp_path: Path) -> None:
    """Each is refused on its own; nothing but collections is read, written or returned."""
    secret_of_python = pa.table({"x": ["python-secret"]})
    kept = tmp_path / "secret.csv"
    kept.write_text("file-secret\n")
    for text in HOSTILE:
        answer = ask(client, text.format(kept))
        assert (answer.status, answer.body["error_code"]) == (400, "invalid_input"), (text, answer.body)
        assert "secret\n" not in str(answer.body)
        assert "file-secret" not in str(answer.body)
        assert "python-secret" not in str(answer.body)
    assert ask(client, "SELECT count(*) FROM orders").body["rows"] == [[3]]
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]
    assert secret_of_python.num_rows == 1


@pytest.mark.parametrize("sql", [text for text in HOSTILE if "FROM" in text or "COPY" in text][:34])
def test_the_engine_refuses_files_without_the_check_of_the_plan(sql: str, tmp_path: Path) -> None:
    """Two checks refuse a file; here the check of the plan is off, and the engine still refuses."""
    kept = tmp_path / "secret.csv"
    kept.write_text("file-secret\n")
    duck = Duck(Settings())
    try:
        rows, _ = duck.answer(sql.format(kept), {"orders": pa.table({"id": [1]})}, [], 10)
    except InvalidInput:
        return
    assert "file-secret" not in str(rows.to_pylist())
    assert not list(tmp_path.glob("*.out*"))


def test_the_engine_does_not_see_the_variables_of_this_process() -> None:
    """By default DuckDB resolves an unknown name as a Python variable of its caller."""
    duck = Duck(Settings())
    with pytest.raises(InvalidInput, match="rows does not exist"):
        duck.answer("SELECT * FROM rows", {"orders": pa.table({"id": [1]})}, [], 10)


def test_an_error_after_the_first_rows_is_reported_like_an_error_at_once() -> None:
    """Later rows and their errors come through Arrow, the errors as a bare OSError, which was a 500 without a retry on
    Spark. Fails if it is not caught."""
    last = pa.array(np.append(np.zeros(3_000_000, np.int64), 1 << 40))
    with pytest.raises(DuckDeclined, match="out of range"):
        Duck(Settings()).answer("SELECT CAST(l AS INTEGER) FROM t", {"t": pa.table({"l": last})}, [], 1 << 30)
    many = pa.table({"l": np.arange(3_000_000)})
    ordered = "SELECT row_number() OVER (ORDER BY l DESC, l::VARCHAR || repeat('x', 20)) AS n FROM t"
    sql = f"SELECT l FROM t UNION ALL (SELECT n FROM ({ordered}) WHERE n = 3)"
    with pytest.raises(LimitExceeded, match="bytes of memory"):
        Duck(Settings(query_memory_bytes=64 << 20)).answer(sql, {"t": many}, [], 1 << 30)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, "body"),
        ({"sql": 1}, "body, field 'sql'"),
        ({"sql": ""}, "body, field 'sql'"),
        ({"sql": "SELECT 1", "engine": "oracle"}, "body, field 'engine'"),
        ({"sql": "SELECT 1", "limit": -1}, "body, field 'limit'"),
        ({"sql": "SELECT 1", "as_of": "x"}, "body, field 'as_of'"),
        ({"sql": "SELECT 1", "what": 1}, "body, field"),
        ({"sql": "SELECT ?"}, "query"),
        ({"sql": "SELECT 1", "parameters": [1]}, "query"),
        ({"sql": "SELECT 1", "engine": "spark"}, "engine 'spark'"),
        ({"sql": "SELECT 1/0::INT + 'x'"}, "query"),
        ([], "body"),
    ],
)
def test_texts_that_are_no_query_are_refused(client: Client, body: Any, where: str) -> None:
    answer = client.post("/v1/query", body)
    assert (answer.status, answer.body["error_code"]) == (400, "invalid_input")
    assert answer.body["where"].startswith(where)


def test_a_misspelled_table_is_refused_with_a_suggestion(client: Client) -> None:
    answer = ask(client, "SELECT date_format(id, 'yyyy') FROM ordrs")
    assert (answer.status, answer.body["error_code"], answer.body["where"]) == (400, "invalid_input", "query:1:37")
    assert answer.body["why"] == "no table or view 'ordrs'; did you mean 'orders'?"


def test_a_statement_that_is_no_select_is_refused_without_spark() -> None:
    """Text that DuckDB cannot parse may be valid in Spark. Fails if a DELETE is passed on to Spark, which would be
    started for it."""
    duck = Duck(Settings())
    for sql in ("DELETE FROM orders", "SELECT 1; DROP VIEW orders", "EXPLAIN SELECT 1"):
        with pytest.raises(InvalidInput) as refused:
            duck.parse(sql)
        assert not isinstance(refused.value, DuckDeclined)
    for sql in ("SELEKT", "FROM orders |> LIMIT 1"):
        with pytest.raises(DuckDeclined):
            duck.parse(sql)


def test_a_query_of_a_storage_in_memory_is_refused() -> None:
    """Worker processes cannot read it: the error comes at once, before a worker is started."""
    with shop() as (_, client):
        answer = ask(client, "SELECT 1")
        assert (answer.status, answer.body["error_code"]) == (400, "invalid_input")
        assert "cannot read a storage in memory" in answer.body["why"]
