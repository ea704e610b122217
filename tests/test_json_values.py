"""JSON of values beyond the dates and timestamps that Python can represent."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from rich.console import Console

from evertide.json_values import to_json_value
from evertide.pipeline.reading.readable_rows import make_row_table
from evertide.rows.python_rows import to_python_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAR = [2_932_896, 2_932_897, -719_162, -719_163, -719_528, -719_529, 0, 106_751_990, -106_751_990]
"""About the ends of the years 9999, 1 and 0, and the farthest that a moment can be from 1970."""


def test_days_are_written_as_spark_does(spark: SparkSession) -> None:
    rng = np.random.default_rng(3)
    days = [*FAR, *map(int, rng.integers(-106_000_000, 106_000_000, 200))]
    listed = ", ".join(map(str, days))
    [row] = spark.sql(f"SELECT transform(array({listed}), n -> string(date_from_unix_date(n))) AS t").collect()
    table = pa.table({"d": pa.array(days, pa.int32()).cast(pa.date32())})
    assert [to_json_value(one["d"]) for one in to_python_rows(table)] == row["t"]


def test_values_in_pythons_range_are_unchanged() -> None:
    """A column without such values stays as Python has it, beside one with them."""
    far = pa.array([2_932_897, None], pa.int32()).cast(pa.date32())
    near = pa.array([1, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    maps = pa.array([[("k", 2_932_897)], None], pa.map_(pa.string(), pa.int32())).cast(
        pa.map_(pa.string(), pa.date32())
    )
    table = pa.table({"far": far, "near": near, "maps": maps, "nanos": pa.array([1, None], pa.timestamp("ns"))})
    first, second = to_python_rows(table, has_text_maps=True)
    assert first == {
        "far": "+10000-01-01",
        "near": near[0].as_py(),
        "maps": {"k": "+10000-01-01"},
        "nanos": "1970-01-01T00:00:00.000000001",
    }
    assert set(second.values()) == {None}
    assert to_python_rows(table.select(["maps"]))[0] == {"maps": [("k", "+10000-01-01")]}
    assert to_python_rows(table.select(["near"])) == table.select(["near"]).to_pylist()


def test_a_printed_table_shows_such_values() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    rows = pa.table({"day": pa.array([2_932_897], pa.int32()).cast(pa.date32())})
    console.print(make_row_table("", rows).to_rich())
    assert "+10000-01-01" in console.export_text()
