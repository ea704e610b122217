"""Read Parquet files by row groups, in batches.

Columns are matched by name. Each must have the type of the table's column or a narrower one; otherwise the source
stops at the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evertide.rows.python_rows import to_python_rows
from evertide.sources.contract import Limit, Rows
from evertide.sources.files.fragments import FileRange, FileTable, compute_checksum, parse_ops
from evertide.sources.values.columns import from_arrow, is_widened_by
from evertide.sources.values.fit import Reason, fit, split_faults
from evertide.sources.values.kinds import sql_name

_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class ParquetReader:
    table: FileTable
    _known: dict[tuple[str, int, int, int], str] = field(default_factory=dict)
    """A cache of the last checksum: every fragment of a file verifies the whole file."""

    def split_file(self, path: Path, limit: Limit) -> Iterator[FileRange]:
        """The checksum covers the whole file, as the footer defines the meaning of all row groups."""
        with self._open(path) as file:
            self._places(file.schema_arrow, path)
            groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
        whole = compute_checksum(path)
        first, row = 0, 1
        while first < len(groups):
            last, rows, size = first, 0, 0
            while last < len(groups) and (last == first or (rows < limit.rows and size < limit.bytes)):
                rows, size, last = rows + groups[last].num_rows, size + groups[last].total_byte_size, last + 1
            if rows:
                yield FileRange(first, last, row, rows, whole)
            first, row = last, row + rows

    def read_checksum(self, path: Path, _cut: FileRange) -> str:
        there = path.stat()
        key = (str(path), there.st_size, there.st_mtime_ns, there.st_ctime_ns)
        if key not in self._known:
            self._known.clear()
            self._known[key] = compute_checksum(path)
        return self._known[key]

    def rows(self, path: Path, cut: FileRange, place: str) -> Iterator[Rows]:
        row = cut.line
        with self._open(path) as file:
            places = self._places(file.schema_arrow, path)
            names = [file.schema_arrow.field(at).name for at in sorted(set(places.values()))]
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=list(range(cut.first, cut.last)), columns=names):
                yield self._batch(batch, places, file.schema_arrow, place, row)
                row += batch.num_rows

    def _batch(self, batch: Any, places: dict[str, int], schema: pa.Schema, place: str, first: int) -> Rows:
        declaration = self.table.declaration
        arrays = {name: batch.column(schema.field(at).name) for name, at in places.items()}
        reasons: dict[int, Reason] = {}
        op = arrays.pop("", None)
        ops = parse_ops(None if op is None else from_arrow(op, pa.string()), batch.num_rows, reasons)
        columns = {name: from_arrow(array, declaration.schema.field(name).type) for name, array in arrays.items()}
        fitted = fit(declaration, columns, ops, reasons)
        return split_faults(
            declaration,
            fitted,
            place,
            lambda at: first + at,
            lambda at: str(to_python_rows(pa.Table.from_batches([batch.slice(at, 1)]))[0]),
        )

    def _places(self, schema: pa.Schema, path: Path) -> dict[str, int]:
        places = self.table.match_columns(schema.names, path)
        for name, at in places.items():
            kind = self.table.declaration.schema.field(name).type if name else pa.string()
            if not is_widened_by(schema.field(at).type, kind):
                found = sql_name(schema.field(at).type)
                raise self.table.failure(path, f"column {name!r} of the file is {found}, expected {sql_name(kind)}")
        return places

    @contextmanager
    def _open(self, path: Path) -> Iterator[pq.ParquetFile]:
        try:
            with pq.ParquetFile(path) as file:
                yield file
        except pa.ArrowException as error:
            raise self.table.failure(path, f"the file cannot be read as Parquet: {error}") from error
