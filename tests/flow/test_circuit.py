"""The circuit as a whole: failed transactions, saved and restored state, and the ways of computing a stage."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from evertide.errors import (
    BlobDamaged,
    BlobMissing,
    InvalidInput,
    StateInconsistent,
    StorageFull,
    SystemRefused,
    Unexpected,
    ViewFailed,
)
from evertide.flow import Circuit, CircuitState, collection, explain
from evertide.flow.aggregates.top import Top
from evertide.flow.circuit import make_name_source
from evertide.flow.state.arrangement import Arrangement
from evertide.plan.algebra import algebra
from evertide.plan.fragment import fragment
from evertide.rows.changes import DIFF
from evertide.store.memory import MemoryBlob
from tests.kit.merging import BackgroundMerging
from tests.kit.oracle import Reference, drive
from tests.kit.transactions import random_transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = """
CREATE TABLE r (a BIGINT, b BIGINT, c STRING, x DOUBLE);
CREATE TABLE s (id BIGINT NOT NULL, b BIGINT, e STRING, PRIMARY KEY (id));
"""
QUERIES = {
    "joined": "SELECT r.a, s.e FROM r JOIN s ON r.b = s.b",
    "outer_joined": "SELECT r.a, r.c, s.id FROM r FULL JOIN s ON r.b = s.b AND r.a > 1",
    "summed": "SELECT b, count(*) n, sum(a) sa, min(c) mc, max(a) ma, sum(x) sx FROM r WHERE x < 9 GROUP BY b",
    "counted": "SELECT count(*) n, count(DISTINCT c) nc FROM r",
    "ranked": "SELECT id, b, row_number() OVER (PARTITION BY b ORDER BY id) n FROM s",
    "first_ones": "SELECT a, b, c FROM r ORDER BY a DESC NULLS LAST, b, c LIMIT 3",
    "sessions": "SELECT b, collect_set(e) es FROM s GROUP BY b",
}
SCRIPT = TABLES + "".join(f"CREATE MATERIALIZED VIEW {name} AS {query};\n" for name, query in QUERIES.items())


def delta(schema: pa.Schema, *rows: tuple[Any, ...]) -> pa.Table:
    """Rows with their diffs at the end."""
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    diffs = pa.array([row[-1] for row in rows], pa.int64())
    return pa.Table.from_arrays([*columns, diffs], schema=pa.schema([*schema, pa.field(DIFF, pa.int64(), False)]))


def transactions(circuit: Circuit, seed: int, count: int = 8) -> Iterator[dict[str, pa.Table]]:
    keys = {"s": ("id",)}
    return iter(random_transactions(circuit.tables, seed, keys=keys, count=count, rows_each=6, rows_huge=40))


def test_a_saved_circuit_is_restored_between_any_two_transactions(spark: SparkSession) -> None:
    """Through JSON and another circuit, after each transaction: the deltas equal those of a circuit that was never
    restored.
    """
    blob = MemoryBlob()
    circuit, other = Circuit(spark, SCRIPT, blob=blob), Circuit(spark, SCRIPT)
    for at, transaction in enumerate(transactions(circuit, 1, 5)):
        found, expected = circuit.step(transaction), other.step(transaction)
        assert all(found[view].equals(expected[view]) for view in QUERIES)
        saved = msgspec.json.encode(circuit.save())
        state = msgspec.json.decode(saved, type=CircuitState)
        circuit = Circuit(spark, SCRIPT, blob=blob, new_name=make_name_source(f"w{at}"), state=state)


def make_saved_circuit(spark: SparkSession, blob: MemoryBlob) -> CircuitState:
    circuit = Circuit(spark, SCRIPT, blob=blob)
    for transaction in transactions(circuit, 2, 2):
        circuit.step(transaction)
    return circuit.save()


def test_a_missing_part_is_named(spark: SparkSession) -> None:
    blob = MemoryBlob()
    state = make_saved_circuit(spark, blob)
    key = next(entry.key for kept in state.arrangements.values() for entry in kept.list_entries())
    blob.delete(key)
    circuit = Circuit(spark, SCRIPT, blob=blob, state=state)
    with pytest.raises(BlobMissing, match=key):
        read_all_state(circuit)


def test_a_damaged_part_is_named(spark: SparkSession) -> None:
    blob = MemoryBlob()
    state = make_saved_circuit(spark, blob)
    key = next(entry.key for kept in state.arrangements.values() for entry in kept.list_entries())
    content = bytearray(blob.get(key))
    content[len(content) // 2] ^= 0xFF
    blob.delete(key)
    blob.put(key, bytes(content))
    circuit = Circuit(spark, SCRIPT, blob=blob, state=state)
    with pytest.raises(BlobDamaged, match=key):
        read_all_state(circuit)


def read_all_state(circuit: Circuit) -> None:
    for arrangement in circuit.arrangements.values():
        arrangement.scan()


def test_a_missing_arrangement_is_damage(spark: SparkSession) -> None:
    blob = MemoryBlob()
    state = make_saved_circuit(spark, blob)
    name, *_ = state.arrangements
    left = {other: kept for other, kept in state.arrangements.items() if other != name}
    with pytest.raises(Unexpected, match=name):
        Circuit(spark, SCRIPT, blob=blob, state=CircuitState(left, is_first=False))


def test_a_transaction_that_cannot_be_computed_changes_nothing(spark: SparkSession) -> None:
    script = TABLES + "CREATE MATERIALIZED VIEW v AS SELECT b, sum(10 / a) q FROM r GROUP BY b;"
    circuit = Circuit(spark, script)
    schema = circuit.tables["r"]
    circuit.step({"r": delta(schema, (5, 1, "x", 1.0, 1))})
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        circuit.step({"r": delta(schema, (0, 1, "x", 1.0, 1), (2, 2, "x", 1.0, 1))})
    found = circuit.step({"r": delta(schema, (2, 1, "x", 1.0, 1))})["v"]
    assert found.to_pylist() == [{"b": 1, "q": 2.0, DIFF: -1}, {"b": 1, "q": 7.0, DIFF: 1}]


def test_bad_deltas_are_refused_and_change_nothing(spark: SparkSession) -> None:
    circuit = Circuit(spark, TABLES + "CREATE MATERIALIZED VIEW v AS SELECT count(*) n FROM r;")
    good = delta(circuit.tables["r"], (5, 1, "x", 1.0, 1))
    circuit.step({})
    with pytest.raises(InvalidInput, match="no such table; it has"):
        circuit.step({"r": good, "unknown": good})
    with pytest.raises(InvalidInput, match="columns"):
        circuit.step({"r": good.drop_columns(["x"])})
    with pytest.raises(InvalidInput, match=r"column 'id'.*row 1 .* no NULL"):
        circuit.step({"r": good, "s": delta(circuit.tables["s"], (1, 1, "x", 1), (None, 1, "x", 1))})
    with pytest.raises(InvalidInput, match=r"column 'a'.*string"):
        circuit.step({"r": good.set_column(0, "a", pa.array(["x"]))})
    assert circuit.step({"r": good})["v"].to_pylist() == [{"n": 0, DIFF: -1}, {"n": 1, DIFF: 1}]


def test_state_with_half_a_transaction_is_not_used_again(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    circuit = Circuit(spark, SCRIPT)
    kept = list(circuit.arrangements.values())[-1]

    def fails() -> None:
        raise StorageFull(path="here", why="no room")

    monkeypatch.setattr(kept, "prepare", lambda _: fails)
    first, second = list(transactions(circuit, 3, 2))
    with pytest.raises(StorageFull):
        circuit.step(first)
    monkeypatch.undo()
    with pytest.raises(StateInconsistent, match="applied only in part"):
        circuit.step(second)


def test_a_transaction_that_the_system_refuses_at_first_is_applied_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At another arrangement each time. Fails if the arrangements before it have applied the transaction already."""
    circuit, other = Circuit(spark, SCRIPT), Circuit(spark, SCRIPT)
    prepare, left, refused = Arrangement.prepare, [-1], 0

    def prepared(self: Arrangement, change: pa.Table) -> Callable[[], None]:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return prepare(self, change)

    monkeypatch.setattr(Arrangement, "prepare", prepared)
    for at, transaction in enumerate(transactions(circuit, 3, 8), 1):
        left[0] = -1
        expected = other.step(transaction)
        left[0] = at
        try:
            found = circuit.step(transaction)
        except SystemRefused:
            refused += 1
            found = circuit.step(transaction)
        assert all(found[view].equals(expected[view]) for view in QUERIES)
    assert refused > 4


def test_small_large_and_recomputed_steps_are_counted(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    circuit = Circuit(spark, f"{TABLES} CREATE MATERIALIZED VIEW v AS {QUERIES['joined']};")
    row = delta(circuit.tables["r"], (1, 1, "x", 1.0, 1))
    circuit.step({"r": row, "s": delta(circuit.tables["s"], (1, 1, "x", 1))})
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 0)
    circuit.step({"r": row})
    monkeypatch.setattr(collection, "_KEYS_FEW", 0)
    monkeypatch.setattr(Arrangement, "rows", property(lambda _: 0))
    circuit.step({"r": row})
    ways = explain(circuit).views[0].run_counts
    assert (ways.small, ways.large, ways.recompute) == (1, 1, 1)


@pytest.mark.parametrize("seed", [4, 5])
def test_the_large_way_has_the_same_result(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Bit for bit, and equal to the oracle's."""
    small, large = Circuit(spark, SCRIPT), Circuit(spark, SCRIPT)
    reference = Reference(spark, small.tables)
    queries = {name: query for name, query in QUERIES.items() if name != "sessions"}
    queries["sessions"] = QUERIES["sessions"].replace("collect_set(e)", "sort_array(collect_set(e))")
    contents = [small.step(transaction) for transaction in transactions(small, seed, 4)]
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 0)
    again = transactions(large, seed, 4)
    drive(large, reference, queries, again, spark_every=2)
    monkeypatch.undo()
    third = Circuit(spark, SCRIPT)
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 0)
    for transaction, expected in zip(transactions(third, seed, 4), contents, strict=True):
        found = third.step(transaction)
        assert all(found[view].equals(expected[view]) for view in QUERIES)


def test_the_first_rows_are_found_again_when_the_reserve_is_used_up(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algebra, "_TOP_FACTOR", 1)
    monkeypatch.setattr(algebra, "_TOP_MORE", 1)
    refill, refills = Top._refill, Counter[str]()

    def count_refill(top: Top, delta: pa.Table) -> pa.Table:
        refills[top.name] += 1
        return refill(top, delta)

    monkeypatch.setattr(Top, "_refill", count_refill)
    query = "SELECT a, b FROM r ORDER BY a, b LIMIT 2 OFFSET 1"
    circuit = Circuit(spark, f"{TABLES} CREATE MATERIALIZED VIEW v AS {query};")
    reference = Reference(spark, circuit.tables)
    drive(circuit, reference, {"v": query}, transactions(circuit, 6, 16), spark_every=1)
    assert refills


HUGE = {
    "whole": "SELECT a, b FROM r ORDER BY a, b LIMIT {k}",
    "skipped": "SELECT a, b FROM r ORDER BY a, b LIMIT {k} OFFSET 2",
    "twice": "SELECT a, b FROM (SELECT a, b FROM r ORDER BY b, a LIMIT {k}) ORDER BY a, b LIMIT 3",
    "filtering": "SELECT id FROM s WHERE b IN (SELECT b FROM r ORDER BY a LIMIT {k})",
    "numbered": "SELECT id, row_number() OVER (PARTITION BY b ORDER BY id) AS n FROM s QUALIFY n <= {k}",
    "correlated": "SELECT id, (SELECT sum(a) FROM (SELECT a FROM r WHERE r.b = s.b ORDER BY a LIMIT {k})) AS t FROM s",
}


@pytest.mark.parametrize("limit", [400_000_000, 2_147_483_000])
@pytest.mark.parametrize("rows_small_max", [16_384, 0])
def test_a_limit_far_above_the_number_of_rows_needs_memory_for_the_rows_only(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, limit: int, rows_small_max: int
) -> None:
    """Spark's own top-k allocates room for twice the limit. So the reference has a lower one."""
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", rows_small_max)
    views = [f"CREATE MATERIALIZED VIEW {name} AS {query.format(k=limit)};" for name, query in HUGE.items()]
    circuit = Circuit(spark, "".join([TABLES, *views]))
    lower = {name: query.format(k=1_000_000) for name, query in HUGE.items()}
    drive(circuit, Reference(spark, circuit.tables), lower, transactions(circuit, 8, 4), spark_every=2)


def test_upkeep_merges_during_transactions(spark: SparkSession) -> None:
    circuit = Circuit(spark, SCRIPT)
    reference = Reference(spark, circuit.tables)
    with BackgroundMerging(circuit, interval_s=0.001) as merging:
        drive(circuit, reference, {"joined": QUERIES["joined"]}, transactions(circuit, 7, 6), spark_every=2)
    assert merging.error is None


FAILING = """
CREATE TABLE t (a INT, b INT);
CREATE MATERIALIZED VIEW ratio AS SELECT a, a / b AS r FROM t;
CREATE MATERIALIZED VIEW ratios AS SELECT sum(r) AS r FROM ratio;
CREATE MATERIALIZED VIEW total AS SELECT b, sum(a) AS a FROM t GROUP BY b;
"""


def of(a: int, b: int, diff: int = 1) -> dict[str, pa.Table]:
    schema = pa.schema([("a", pa.int32()), ("b", pa.int32()), pa.field(DIFF, pa.int64(), nullable=False)])
    return {"t": pa.Table.from_pylist([{"a": a, "b": b, DIFF: diff}], schema)}


def test_j12_a_view_that_fails_is_named_with_those_built_on_it(spark: SparkSession) -> None:
    """The failed transaction changed nothing, so that it succeeds once the two views are dropped."""
    circuit = Circuit(spark, FAILING)
    circuit.step(of(6, 3))
    with pytest.raises(ViewFailed, match="DIVIDE_BY_ZERO") as failed:
        circuit.step(of(1, 0))
    assert failed.value.views == ("ratio", "ratios")
    circuit.drop(failed.value.views)
    assert circuit.step(of(1, 0))["total"].to_pylist() == [{"b": 0, "a": 1, DIFF: 1}]
    state = circuit.save()
    again = Circuit(spark, FAILING, only=["total"], blob=circuit._blob, state=state)
    assert again.step(of(2, 0))["total"].to_pylist() == [{"b": 0, "a": 1, DIFF: -1}, {"b": 0, "a": 3, DIFF: 1}]


def test_a_circuit_of_some_views_includes_what_they_read(spark: SparkSession) -> None:
    circuit = Circuit(spark, FAILING, only=["ratios"])
    assert circuit.step(of(6, 3))["ratios"].column("r").to_pylist() == [2.0]
    assert [*circuit.views] == ["ratios"]


@pytest.mark.parametrize("rows_small", [0, 10_000])
def test_settings_that_affect_results_apply_wherever_rows_are_computed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rows_small: int
) -> None:
    """In tasks, too: Spark passes settings to them only when it runs a query itself."""
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", rows_small)
    session = spark.newSession()
    session.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    session.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    script = """CREATE TABLE t (a INT, s STRING);
    CREATE MATERIALIZED VIEW v AS
    SELECT t.a, map(t.a, 1, u.a, 2) AS m, to_timestamp(t.s, 'yyyy-MM-dd') AS at FROM t JOIN t u ON t.s = u.s;"""
    schema = pa.schema([("a", pa.int32()), ("s", pa.string()), pa.field(DIFF, pa.int64(), nullable=False)])
    row = {"a": 1, "s": "2020-01-01 trailing", DIFF: 1}
    [found] = Circuit(session, script).step({"t": pa.Table.from_pylist([row], schema)})["v"].to_pylist()
    assert found["m"] == [(1, 2)]
    assert found["at"].isoformat().startswith("2020-01-01T00:00:00")
