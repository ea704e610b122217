"""Converts tables to blocks, and blocks to tables; checks each delta once, before an arrangement uses it.

A delta is a table with the collection's columns in order, then `__diff` (int64, NOT NULL). A column whose type is
another encoding of the same values is converted to the arrangement's type; any other type is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.errors import Unexpected
from evertide.flow.state.block import RowBlock, merge_blocks
from evertide.flow.state.keys import hash_keys
from evertide.rows.changes import DIFF_FIELD
from evertide.rows.columns import to_array
from evertide.rows.conform import are_alike, conform

__all__ = ["check_columns", "check_key", "make_block", "make_table"]


def make_block(delta: pa.Table, schema: pa.Schema, key: Sequence[str], where: str) -> RowBlock:
    """Convert a delta to a consolidated block in the order of its words."""
    arrays = check_columns(delta, pa.schema([*schema, DIFF_FIELD]), where)
    columns = dict(zip(schema.names, arrays, strict=False))
    # Without key columns all rows have the same key, so any order is valid. This one keeps the memory of a merge small.
    names = key or schema.names
    words = hash_keys(pa.Table.from_arrays([columns[name] for name in names], names=list(names)))
    block = RowBlock(words, np.asarray(arrays[-1]), columns)
    return merge_blocks([block], where, is_consolidated=False)


def check_columns(table: pa.Table, schema: pa.Schema, where: str) -> list[Any]:
    """The columns of a table, each as one array of exactly the type in the schema."""
    if table.schema.names != schema.names:
        raise Unexpected(
            where=where, why=f"the delta has the columns {table.schema.names}, but must have {schema.names}"
        )
    return [_check_column(column, field, where) for column, field in zip(table.columns, schema, strict=True)]


def _check_column(column: Any, field: Any, where: str) -> Any:
    place = f"{where}, column {field.name!r}"
    array = to_array(column)
    if not array.type.equals(field.type, check_metadata=True):
        if not are_alike(array.type, field.type):
            raise Unexpected(where=place, why=f"the column has the type {array.type}, but must have {field.type}")
        array = conform(array, field.type)
    if not field.nullable and array.null_count:
        raise Unexpected(where=place, why="the column has a NULL, but is NOT NULL")
    return array


def check_key(schema: pa.Schema, key: Sequence[str], where: str) -> None:
    missing = [name for name in key if name not in schema.names]
    if missing or len(set(key)) != len(key):
        raise Unexpected(where=where, why=f"the key is {key!r}, but must be distinct columns out of {schema.names}")


def make_table(blocks: Sequence[RowBlock], schema: pa.Schema) -> pa.Table:
    """Convert blocks to a table with these columns and `__diff`, one chunk per block."""
    whole = pa.schema([*schema, DIFF_FIELD])
    tables = [
        pa.Table.from_arrays([*(block.columns[name] for name in schema.names), pa.array(block.diffs)], schema=whole)
        for block in blocks
    ]
    return pa.concat_tables(tables) if len(tables) > 1 else tables[0] if tables else whole.empty_table()
