"""Writes the output of a worker: lines of JSON to its standard output, and results as Parquet files.

It imports nothing of Evertide, since some workers run in a separate Python environment, perhaps with PyArrow only.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def tell(what: str, **values: Any) -> None:
    sys.stdout.write(json.dumps({"what": what, **values}) + "\n")
    sys.stdout.flush()


def keep_answer(names: Sequence[str], changes: Iterable[tuple[tuple[Any, ...], bool]], path: Path) -> None:
    """Write the sum of the changes: rows, each with whether it was added or removed."""
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    held: dict[tuple[Any, ...], int] = {}
    for values, is_added in changes:
        held[values] = held.get(values, 0) + (1 if is_added else -1)
    content = [values for values, times in held.items() for _ in range(times)]
    columns = [list(column) for column in zip(*content, strict=True)] or [[] for _ in names]
    parquet.write_table(pyarrow.table(dict(zip(names, columns, strict=True))), path)
