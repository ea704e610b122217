"""The rows of the eight tables, made by `tpchgen-cli`.

The program is fast, but a process of its own: each scale is made once per process and kept, as Arrow tables cannot be
changed. Its strings come as views, which Spark does not read; they become plain ones. With very few suppliers the
standard's formula for `partsupp` comes up with the same key more than once: the first row stays."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from evertide.errors import InvalidInput

__all__ = ["TABLES", "generated"]

TABLES = ("region", "nation", "supplier", "part", "partsupp", "customer", "orders", "lineitem")

_PROGRAM = "tpchgen-cli"


@lru_cache(maxsize=8)
def generated(scale: float) -> Mapping[str, pa.Table]:
    """The standard's rows at this scale (1 is about 1 GB), by table."""
    with tempfile.TemporaryDirectory(prefix="evertide-tpch-") as folder:
        run = [_program(), "parquet", "--quiet", f"--scale-factor={scale}", f"--output-dir={folder}"]
        done = subprocess.run(run, capture_output=True, text=True, check=False)  # noqa: S603 - no part is user input
        if done.returncode:
            raise InvalidInput(where=" ".join(run), why=done.stderr.strip() or f"it ended with {done.returncode}")
        tables = {name: _read(Path(folder, f"{name}.parquet")) for name in TABLES}
    tables["partsupp"] = _first_of_each(tables["partsupp"], ["ps_partkey", "ps_suppkey"])
    return MappingProxyType(tables)


def _program() -> str:
    """Where pip puts it, which need not be on the PATH."""
    found = shutil.which(_PROGRAM, path=sysconfig.get_path("scripts")) or shutil.which(_PROGRAM)
    if found is None:
        raise InvalidInput(where=_PROGRAM, why="it is not installed: pip install 'evertide[testing]'")
    return found


def _read(path: Path) -> pa.Table:
    table = pq.ParquetFile(path).read()  # a dataset would read in parts, whose order nothing fixes
    fields = [pa.field(field.name, _plain(field.type), field.nullable) for field in table.schema]
    return table.cast(pa.schema(fields)).combine_chunks()


def _first_of_each(table: pa.Table, key: list[str]) -> pa.Table:
    numbered = table.select(key).append_column("at", pa.array(range(table.num_rows)))
    return table.take(numbered.group_by(key).aggregate([("at", "min")]).column("at_min").combine_chunks().sort())


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(kind) or pa.types.is_large_string(kind) else kind
