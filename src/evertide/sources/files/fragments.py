"""The fragments of the connector `files`, and the interface of the readers of its formats.

1. A fragment is a `FileFragment` as JSON in `Place.where`: the file's name, size and time, a range in the file, and the
   checksum of that range (of the whole file, for Parquet). So reading it again gives the same rows, or an error.
2. A `FileReader` reads one format. `split_file` scans a file once and yields ranges of about the size of the limit;
   `rows` reads a verified range in batches that fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import xxhash

from evertide.errors import SourceFailed
from evertide.sources.contract import DELETE, UPSERT, Limit, Rows, TableDeclaration
from evertide.sources.values.columns import ConvertedColumn
from evertide.sources.values.fit import Ops, Reason, make_upserts
from evertide.sources.values.values import show_value
from evertide.suggestions import list_names

_READ_BYTES = 1024 * 1024
_OPS = {
    **dict.fromkeys(("i", "insert", "u", "update", "upsert", "c", "r"), UPSERT),
    **dict.fromkeys(("d", "delete"), DELETE),
}


class FileRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A range of a file: bytes, or, in Parquet, row groups."""

    first: int
    last: int
    line: int
    """The number of its first line or row."""
    rows: int
    checksum: str
    columns: tuple[str, ...] = ()
    """The field names of a CSV file, as only one fragment has its first line."""


class FileFragment(msgspec.Struct, frozen=True):
    path: str
    bytes: int
    mtime_ns: int
    cut: FileRange


class FileReader(Protocol):
    def split_file(self, path: Path, limit: Limit) -> Iterator[FileRange]: ...

    def read_checksum(self, path: Path, cut: FileRange) -> str:
        """The checksum of the range's present content."""
        ...

    def rows(self, path: Path, cut: FileRange, place: str) -> Iterator[Rows]:
        """`place` is the file's name in faults. It does not depend on where the directory is mounted."""
        ...


@dataclass(frozen=True, slots=True)
class FileTable:
    """A table whose rows are read from files, and the mapping of its columns to theirs."""

    declaration: TableDeclaration
    source: str
    op_column: str = ""
    ignore_extra: bool = False
    has_options: bool = True
    """False for a file that is pushed: its reader has no options that could be set."""

    def match_columns(self, names: Sequence[str], path: Path) -> dict[str, int]:
        """The index in the file of each column of the table; the operation column has the name ''."""
        places: dict[str, int] = {}
        for at, name in enumerate(names):
            if name.lower() in places:
                raise self.failure(path, f"the file has the column {show_value(name)} twice")
            places[name.lower()] = at
        known = {field.name.lower(): field.name for field in self.declaration.schema}
        extra = [name for name in names if name.lower() not in known and name.lower() != self.op_column.lower()]
        if extra and not self.ignore_extra:
            remedy = "; declare it, or set the option ignore_extra to 'true'"
            if not self.has_options:
                remedy = list_names(extra[0], self.declaration.schema.names, "it has")
            raise self.failure(path, f"the table has no column {show_value(extra[0])}{remedy}")
        if self.op_column and self.op_column.lower() not in places:
            raise self.failure(path, f"the file has no column {self.op_column!r}, which the option op_column names")
        found = {own: places[name] for name, own in known.items() if name in places}
        self._check_missing(found, path)
        return found | ({"": places[self.op_column.lower()]} if self.op_column else {})

    def _check_missing(self, found: Mapping[str, int], path: Path) -> None:
        for field in self.declaration.schema:
            is_needed = not field.nullable or field.name in self.declaration.key
            if is_needed and field.name not in found and field.name not in self.declaration.defaults:
                raise self.failure(path, f"the file has no column {field.name!r}, which is NOT NULL in the table")

    def failure(self, path: Path, why: str) -> SourceFailed:
        return SourceFailed(source=self.source, where=f"{path}, table {self.declaration.name!r}", why=why)


def parse_ops(column: ConvertedColumn | None, count: int, reasons: dict[int, Reason]) -> Ops:
    """Parse a column of operations; an unknown one is added to `reasons`."""
    ops = make_upserts(count)
    if column is None:
        return ops
    for row, text in enumerate(column.array.to_pylist()):
        op = _OPS.get(text.lower()) if text is not None else None
        if op is None:
            why = f"{show_value(text)} is not an operation: expected I, U or D (insert, update, delete)"
            reasons.setdefault(row, Reason(why))
        else:
            ops[row] = np.int8(op)
    return ops


def compute_checksum(path: Path, first: int = 0, last: int | None = None) -> str:
    """XXH3-128 of the bytes [first, last); by default of the whole file."""
    state: Any = xxhash.xxh3_128()
    with path.open("rb") as file:
        file.seek(first)
        left = last - first if last is not None else None
        while read := file.read(_READ_BYTES if left is None else min(_READ_BYTES, left)):
            state.update(read)
            left = None if left is None else left - len(read)
    return str(state.hexdigest())
