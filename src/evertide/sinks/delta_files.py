"""Reads the files of a Delta table in batches of bounded size, without those that cannot hold the rows in question.

1. A file is excluded only by statistics that the log has. A file may lack those of any column: of all, if the table's
   properties say so, or of a column that was added later. The dataset that the Delta package makes would exclude it.
2. Rows come in the order of the file, so that a row can be named by its number.
3. Columns that were added later are NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction
from pyarrow import fs

from evertide.rows.conform import conform_table

_BATCH_ROWS = 65_536
_BATCH_BYTES = 8 * 1024 * 1024
_BUFFER_BYTES = 1024 * 1024
"""Of each column that is read: otherwise all of its bytes in a row group are in memory."""


class ValueRange:
    """The smallest and the largest value of a column, and whether it has NULL."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._values: list[Any] = []
        self._has_null = False

    def add(self, rows: pa.Table) -> None:
        column = rows[self._name]
        self._has_null |= column.null_count > 0
        found = [value for value in pc.min_max(column).as_py().values() if value is not None]
        if found:
            self._values = [min([*self._values, *found]), max([*self._values, *found])]

    def excludes(self, file: dict[str, Any]) -> bool:
        """Whether the statistics prove that the file has no value of the range. Any of them may be missing."""
        nulls, lowest, highest = ((file.get(kind) or {}).get(self._name) for kind in ("null_count", "min", "max"))
        if self._has_null and nulls != 0:
            return False
        if not self._values or (nulls is not None and nulls == file.get("num_records")):
            return True
        low, high = self._values
        return lowest is not None and highest is not None and bool(highest < low or lowest > high)


class TableFiles:
    """The files of the table that may hold a row within all ranges, and their rows, numbered from 0 over all files."""

    def __init__(self, table: DeltaTable, schema: pa.Schema, ranges: Sequence[ValueRange]) -> None:
        self.filesystem = open_filesystem(table)
        self.starts = [0]
        """The number of the first row of each file that was read, and at last the number of all rows."""
        self._schema = schema
        self._files: list[tuple[str, int]] = []
        """Paths and sizes."""
        for file in pa.table(table.get_add_actions()).to_pylist():
            if not any(each.excludes(file) for each in ranges):
                self._files.append((file["path"], file["size_bytes"]))

    def read_all(self, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """All rows, in batches, each with the number of its first row. Completes `starts`."""
        for index in range(len(self._files)):
            end = self.starts[index]
            for number, rows in self.read(index, names):
                end = number + rows.num_rows
                yield number, rows
            self.starts.append(end)

    def read(self, index: int, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """The same of one file."""
        number = self.starts[index]
        for rows in self._read(self._files[index][0], names):
            yield number, rows
            number += rows.num_rows

    def make_remove(self, index: int, now_ms: int) -> RemoveAction:
        path, size = self._files[index]
        return RemoveAction(path, data_change=True, deletion_timestamp=now_ms, size=size, partition_values={})

    def _read(self, path: str, names: Sequence[str]) -> Iterator[pa.Table]:
        """Rows of a file, in the order of the file. Columns that were added later are NULL."""
        schema = pa.schema([self._schema.field(name) for name in names])
        with self.filesystem.open_input_file(path) as opened:
            file = pq.ParquetFile(opened, buffer_size=_BUFFER_BYTES)
            stored = [name for name in names if name in file.schema_arrow.names]
            groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
            row_bytes = max((each.total_byte_size // max(1, each.num_rows) for each in groups), default=0)
            at_once = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))
            for batch in file.iter_batches(at_once, columns=stored):
                columns = [
                    batch[field.name] if field.name in stored else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                yield conform_table(pa.table(columns, names=[*names]), schema)


def make_ranges(schema: pa.Schema, names: Sequence[str]) -> list[ValueRange]:
    """Empty ranges of those columns whose statistics can be used."""
    return [ValueRange(name) for name in names if _can_compare(schema.field(name).type)]


def open_filesystem(table: DeltaTable) -> fs.FileSystem:
    """The directory of the table. Raise an error if the table needs another reader, for deletion vectors or renamed
    columns."""
    return table.to_pyarrow_dataset().filesystem


def _can_compare(kind: pa.DataType) -> bool:
    """Statistics of other types may be rounded, or lack some values (NaN)."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind))
