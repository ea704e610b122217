"""Converts Nexmark's events to CSV files for Pathway.

Pathway reads Parquet only through Delta Lake or Iceberg, which need a licence key. Of the other formats, CSV is the
fastest. One thread reads a whole file, so there are many files, for both threads.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from bench.peers.nexmark import TABLES

_ROWS = 50_000
_UNQUOTED = pyarrow.csv.WriteOptions(quoting_style="none")
"""No text of Nexmark has a comma or a quote; otherwise the write fails."""


def pathway_files(data: Path) -> Path:
    """Convert the Parquet files to directories of CSV files, one per table, unless they exist."""
    made = data / "csv"
    if not made.exists():
        for name in TABLES:
            (made / name).mkdir(parents=True)
            for file in sorted((data / name).glob("*.parquet")):
                rows = _as_read(pq.read_table(file))
                for first in range(0, rows.num_rows, _ROWS):
                    path = made / name / f"{file.stem}-{first // _ROWS:05d}.csv"
                    pyarrow.csv.write_csv(rows.slice(first, _ROWS), path, _UNQUOTED)
    return made


def _as_read(rows: pa.Table) -> pa.Table:
    """Convert timestamps to microseconds, and rename `id`, which is reserved in Pathway."""
    plain = [field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field for field in rows.schema]
    return rows.cast(pa.schema(plain)).rename_columns(
        ["number" if name == "id" else name for name in rows.schema.names]
    )
