"""Keys of tables: which values are the same key, and keys that no new table may have."""

from __future__ import annotations

import logging
import math
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.pipeline.engine import DeclaredTable
from evertide.plan.program.program import Program
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import engine, open_pipeline, storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0123))[0]
NAMES = DeclaredTable(
    "names", pa.schema([pa.field("name", pa.string(), nullable=False), ("n", pa.int64())]), key=("name",)
)
REFUSED = replace(NAMES, refused_key="its equal values can differ")


def with_key(kind: Any) -> SmallEngine:
    schema = pa.schema([pa.field("k", kind, nullable=False), ("n", pa.int64())])
    return engine(tables=(*engine().declared, DeclaredTable("t", schema, key=("k",))))


def make_rows(kind: Any, *values: tuple[Any, int]) -> pa.Table:
    keys, numbers = zip(*values, strict=True)
    return pa.table([pa.array(keys, kind), pa.array(numbers, pa.int64())], ["k", "n"])


@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        (pa.float64(), lambda value: value),
        (pa.struct([("x", pa.float64())]), lambda value: {"x": value}),
        (pa.list_(pa.float64()), lambda value: [1.0, value]),
    ],
    ids=["double", "struct", "array"],
)
def test_zeros_are_one_key_and_all_nan_are_one_key(kind: Any, wrap: Any) -> None:
    """As in Spark's groups: in one transaction, in several, and in deletes. Fails if `canonicalize` keeps -0.0."""
    with open_pipeline(storage(), with_key(kind)) as p:
        p.push("t", make_rows(kind, (wrap(0.0), 1), (wrap(math.nan), 2)))
        p.commit()
        p.push("t", make_rows(kind, (wrap(-0.0), 3), (wrap(OTHER_NAN), 4)))
        p.commit()
        assert sorted(row["n"] for row in p.view("t").to_pylist()) == [3, 4]
        p.push("t", make_rows(kind, (wrap(0.0), 5), (wrap(math.nan), 6), (wrap(-0.0), 7), (wrap(OTHER_NAN), 8)))
        p.commit()
        assert sorted(row["n"] for row in p.view("t").to_pylist()) == [7, 8]
        p.push("t", deletes=pa.table([pa.array([wrap(0.0), wrap(math.nan)], kind)], ["k"]))
        p.commit()
        assert p.view("t").to_pylist() == []


def test_a_new_table_must_not_have_a_key_whose_equal_values_differ() -> None:
    """Also in a storage that has other tables. Nothing is written. Fails without the check in `_compare_table`."""
    for is_new in (True, False):
        kept = storage()
        if not is_new:
            open_pipeline(kept).close()
        with pytest.raises(InvalidInput, match="table 'names': its equal values can differ"):
            open_pipeline(kept, engine(tables=(*engine().declared, REFUSED)))
        with open_pipeline(kept) as p:
            assert "names" not in p.definition.tables


def test_a_stored_table_keeps_its_key_and_the_log_warns(caplog: pytest.LogCaptureFixture) -> None:
    """An older version accepted such keys: its storages open, with and without the table for a while."""
    kept = storage()
    with open_pipeline(kept, engine(tables=(*engine().declared, NAMES))) as p:
        p.push("names", [{"name": "a", "n": 1}, {"name": "A", "n": 2}])
        p.commit()
    with caplog.at_level(logging.WARNING), open_pipeline(kept, engine(tables=(*engine().declared, REFUSED))) as p:
        p.push("names", [{"name": "A", "n": 3}])
        p.commit()
        assert sorted(row["n"] for row in p.view("names").to_pylist()) == [1, 3]
    assert (
        "table 'names' keeps its primary key, which no new table may have: its equal values can differ" in caplog.text
    )
    open_pipeline(kept).close()
    with open_pipeline(kept, engine(tables=(*engine().declared, REFUSED))) as p:
        assert sorted(row["n"] for row in p.view("names").to_pylist()) == [1, 3]


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("STRING COLLATE UTF8_LCASE", "COLLATE in the queries"),
        ("STRING COLLATE UTF8_BINARY_RTRIM", "COLLATE in the queries"),
        ("STRING COLLATE UNICODE", "COLLATE in the queries"),
        ("ARRAY<STRING COLLATE UNICODE_CI>", "COLLATE in the queries"),
        ("STRUCT<x: INT, y: STRUCT<z: STRING COLLATE UTF8_LCASE>>", "COLLATE in the queries"),
        ("MAP<STRING, INT>", "ARRAY or STRUCT"),
        ("ARRAY<STRUCT<m: MAP<INT, INT>>>", "ARRAY or STRUCT"),
        ("VARIANT", "type of its values"),
        ("STRUCT<v: ARRAY<VARIANT>>", "type of its values"),
    ],
)
def test_types_that_a_key_must_not_have(spark: SparkSession, kind: str, remedy: str) -> None:
    program = Program(
        spark, f"CREATE TABLE t (id INT, K {kind}, PRIMARY KEY (id, k)); CREATE TABLE u (id INT, k {kind})"
    )
    assert list(program.refused_keys) == ["t"]
    assert "column 'K' is " in program.refused_keys["t"]
    assert remedy in program.refused_keys["t"]


def test_types_that_a_key_may_have(spark: SparkSession) -> None:
    kinds = ["BOOLEAN", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(38, 6)", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"]
    kinds += ["STRING", "STRING COLLATE UTF8_BINARY", "INTERVAL DAY TO SECOND"]
    kinds += ["ARRAY<DOUBLE>", "STRUCT<map: INT, variant: STRING>"]
    columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds))
    key = ", ".join(f"c{at}" for at in range(len(kinds)))
    assert Program(spark, f"CREATE TABLE t ({columns}, PRIMARY KEY ({key}))").refused_keys == {}
