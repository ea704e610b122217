"""Compares the result of an engine with that of another."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.kit.compare import compare


def check_agreement(answer: Path, reference: Path, where: str) -> None:
    """Compare two Parquet files; raises `Differs`. Columns are compared by position, and numbers by value."""
    expected = pq.read_table(reference)
    compare(_like(pq.read_table(answer), expected), expected, where=where, exact_types=False)


def _like(found: pa.Table, expected: pa.Table) -> pa.Table:
    """Use the names and timestamp types of `expected`; a timestamp without a time zone is in UTC."""
    columns = []
    for at, field in enumerate(expected.schema):
        column = found.column(at)
        if pa.types.is_null(column.type):  # an empty result of another engine may have no types
            column = column.cast(field.type)
        if pa.types.is_timestamp(field.type) and pa.types.is_timestamp(column.type) and column.type.tz is None:
            column = pc.assume_timezone(column, "UTC")
        if pa.types.is_timestamp(field.type):
            column = column.cast(field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, names=expected.schema.names)
