"""Nexmark's events as Pathway reads them: CSV files.

It reads Parquet by way of Delta Lake or Iceberg only, and wants a licence key for these. Of what is left, CSV costs it
least. A file is read by one thread as a whole: so there are many, for both to have their share.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from bench.peers.nexmark import TABLES

__all__ = ["pathway_files"]

_ROWS = 50_000
_UNQUOTED = pyarrow.csv.WriteOptions(quoting_style="none")
"""No text of Nexmark has a comma or a quote in it; if one had, writing would fail."""


def pathway_files(data: Path) -> Path:
    """Directories of CSV files, one per table, of what the Parquet files hold; made if they are not there."""
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
    """Instants are microseconds; `id` is a name of Pathway's own."""
    plain = [field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field for field in rows.schema]
    return rows.cast(pa.schema(plain)).rename_columns(
        ["number" if name == "id" else name for name in rows.schema.names]
    )
