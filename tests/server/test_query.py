"""Queries by HTTP, answered by DuckDB: what they say, what they may not do, and what they may take."""

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
import pytest

from evertide.errors import InvalidInput, LimitExceeded
from evertide.pipeline.engine import DeclaredTable
from evertide.server.query.duck import Duck, NotUnderstood
from evertide.settings import Settings
from evertide.testing.small_engine import SmallEngine
from tests.pipeline.kit import open_pipeline
from tests.server.kit import Answer, Client, order, served, shop, stored
from tests.server.test_rows import FULL, TYPES

ROWS = "/v1/tables/orders/rows"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of a shop with three orders, which came at two times."""
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


def test_answers_come_as_arrow_csv_and_the_rest_too(client: Client) -> None:
    body = b'{"sql": "SELECT id, customer FROM orders ORDER BY id LIMIT 2"}'
    headers = {"Content-Type": "application/json"}
    raw = client.raw("POST", "/v1/query?format=csv", body, headers)
    assert list(csv.reader(io.StringIO(raw.content.decode()))) == [["id", "customer"], ["1", "ann"], ["2", "bob"]]
    assert "engine=duckdb" in raw.headers["evertide-query"]
    raw = client.raw("POST", "/v1/query", body, {**headers, "Accept": "application/vnd.apache.arrow.stream"})
    with pa.ipc.open_stream(raw.content) as stream:
        assert stream.read_all().to_pylist()[1] == {"id": 2, "customer": "bob"}


def test_a_body_with_a_name_twice_is_refused(client: Client) -> None:
    """Fails if one of the two counts: a proxy that looks at the body may take the other."""
    body = rb'{"sql": "SELECT 1 AS n", "\u0073ql": "SELECT 2 AS n"}'
    raw = client.raw("POST", "/v1/query", body, {"Content-Type": "application/json"})
    assert (raw.status, b"repeats the name 'sql'" in raw.content) == (400, True)


def test_a_time_that_was_and_the_limit_of_rows(client: Client) -> None:
    assert ask(client, "SELECT count(*) FROM orders", as_of=1).body["rows"] == [[2]]
    assert ask(client, "SELECT count(*) FROM orders", as_of=3).body["error_code"] == "invalid_input"
    found = ask(client, "SELECT * FROM range(100) ORDER BY 1", limit=3).body
    assert (found["rows"], found["is_truncated"]) == ([[0], [1], [2]], True)
    assert ask(client, "SELECT * FROM range(3)", limit=3).body["is_truncated"] is False
    assert len(ask(client, "SELECT * FROM range(20000)").body["rows"]) == 10_000, "people read JSON"


def test_values_of_all_types_are_as_the_table_tells_them(tmp_path: Path) -> None:
    """But for a VARIANT, which DuckDB does not have. Fails if a sum of BIGINT comes as a text."""
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
        assert order_by == [[None], [0.1], ["nan"]], "NULL first, NaN last, as Spark has it"


def test_one_time_for_all_collections_while_transactions_run(tmp_path: Path) -> None:
    """Each transaction moves an amount from one customer to another, and adds a note. Fails if collections are read one
    after the other as they are."""
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


def test_queries_do_nothing_but_read_collections(client: Client, tmp_path: Path) -> None:
    """Each is refused, by its own right; nothing is read, written or said that is no collection."""
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
def test_the_engine_itself_reads_no_files_also_if_the_parser_let_one_through(sql: str, tmp_path: Path) -> None:
    """What is refused twice stays refused if one of them fails: here the plan is not looked at."""
    kept = tmp_path / "secret.csv"
    kept.write_text("file-secret\n")
    duck = Duck(Settings())
    try:
        rows, _ = duck.answered(sql.format(kept), {"orders": pa.table({"id": [1]})}, [], 10)
    except InvalidInput:
        return
    assert "file-secret" not in str(rows.to_pylist())
    assert not list(tmp_path.glob("*.out*"))


def test_the_engine_does_not_see_the_variables_of_this_process() -> None:
    """By default DuckDB takes a name that it does not know for a variable of whoever calls it."""
    duck = Duck(Settings())
    with pytest.raises(InvalidInput, match="rows does not exist"):
        duck.answered("SELECT * FROM rows", {"orders": pa.table({"id": [1]})}, [], 10)


def test_what_fails_after_the_first_rows_is_told_like_what_fails_at_once() -> None:
    """Later rows come through Arrow, and so do their errors: as a bare OSError, which was a 500 and no answer of Spark
    instead. Fails if it is not caught."""
    last = pa.array(np.append(np.zeros(3_000_000, np.int64), 1 << 40))
    with pytest.raises(NotUnderstood, match="out of range"):
        Duck(Settings()).answered("SELECT CAST(l AS INTEGER) FROM t", {"t": pa.table({"l": last})}, [], 1 << 30)
    many = pa.table({"l": np.arange(3_000_000)})
    ordered = "SELECT row_number() OVER (ORDER BY l DESC, l::VARCHAR || repeat('x', 20)) AS n FROM t"
    sql = f"SELECT l FROM t UNION ALL (SELECT n FROM ({ordered}) WHERE n = 3)"
    with pytest.raises(LimitExceeded, match="bytes of memory"):
        Duck(Settings(query_memory_bytes=64 << 20)).answered(sql, {"t": many}, [], 1 << 30)


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
def test_questions_that_are_none(client: Client, body: Any, where: str) -> None:
    answer = client.post("/v1/query", body)
    assert (answer.status, answer.body["error_code"]) == (400, "invalid_input")
    assert answer.body["where"].startswith(where)


def test_what_is_no_select_is_not_for_another_engine_to_refuse() -> None:
    """What DuckDB cannot read may be Spark's own. Fails if a DELETE goes on to Spark, which would be started for it."""
    duck = Duck(Settings())
    for sql in ("DELETE FROM orders", "SELECT 1; DROP VIEW orders", "EXPLAIN SELECT 1"):
        with pytest.raises(InvalidInput) as refused:
            duck.parse(sql)
        assert not isinstance(refused.value, NotUnderstood)
    for sql in ("SELEKT", "FROM orders |> LIMIT 1"):
        with pytest.raises(NotUnderstood):
            duck.parse(sql)


def test_a_storage_in_memory_cannot_be_asked() -> None:
    """Other processes answer, and cannot read it: said at once, and before one is started."""
    with shop() as (_, client):
        answer = ask(client, "SELECT 1")
        assert (answer.status, answer.body["error_code"]) == (400, "invalid_input")
        assert "in the memory of one process" in answer.body["why"]
