"""Rows and faults as one staged table, and back."""

from __future__ import annotations

import pyarrow as pa

from evertide.sources.contract import OP, SAME, UPSERT, Fault
from evertide.sources.staged import FAULT, encode_fault, unpack_rows


def test_faults_are_read_back_in_their_places_and_with_their_keys() -> None:
    texts = [
        None,
        encode_fault("here", 2, "why", "raw", pa.table({"id": [2]})),
        None,
        encode_fault("here", 4, "why", "raw", None),
    ]
    ops = pa.array([UPSERT] * 4, pa.int8())
    table = pa.table(
        {"id": [1, 2, 3, 4], OP: ops, SAME: pa.array([None] * 3 + ['["x"]']), "__xid": [7] * 4, FAULT: texts}
    )
    found = unpack_rows("orders", table)
    assert found.rows.column_names == ["id", OP, SAME]
    assert found.rows.column("id").to_pylist() == [1, 3]
    assert list(found.faults) == [
        Fault("orders", "here", 2, "why", "raw", pa.table({"id": [2]}), after=1),
        Fault("orders", "here", 4, "why", "raw", None, after=2),
    ]


def test_rows_without_faults_are_unchanged() -> None:
    table = pa.table({"id": [1], OP: pa.array([UPSERT], pa.int8())})
    assert unpack_rows("orders", table).rows.equals(table)
    assert unpack_rows("orders", table.append_column(FAULT, pa.array([None], pa.string()))).rows.equals(table)
