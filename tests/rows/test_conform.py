"""Conversion of tables to a schema, where Arrow's own cast refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest

from evertide.rows.conform import conform_table


@pytest.mark.parametrize("metadata", [None, {b"collation": b"UTF8_LCASE"}], ids=["same", "other"])
def test_v5_a_null_struct_with_a_not_null_field_conforms(metadata: dict[bytes, bytes] | None) -> None:
    given = pa.struct([pa.field("f", pa.string(), nullable=False)])
    wanted = pa.struct([pa.field("f", pa.string(), nullable=False, metadata=metadata)])
    column = pa.StructArray.from_arrays([pa.array(["a", None])], fields=list(given), mask=pa.array([False, True]))
    rows = pa.table({"a": column, "n": pa.array([1, 2], pa.int32())})
    schema = pa.schema([pa.field("a", wanted), pa.field("n", pa.int64())])
    with pytest.raises(pa.ArrowInvalid):
        rows.cast(schema)  # once this passes, `conform_table` is no longer needed
    found = conform_table(rows, schema)
    assert found.schema.equals(schema, check_metadata=True)
    assert found.to_pylist() == [{"a": {"f": "a"}, "n": 1}, {"a": None, "n": 2}]
