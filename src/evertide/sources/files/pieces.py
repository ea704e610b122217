"""A piece of a file: what a fragment of the connector `files` names, and how it is read.

Where it lies: as JSON in `Place.where`. It holds what tells the file apart, the range in it, and a checksum of what the
range held when it was offered (of the whole file, for Parquet), so that reading it again gives the same, or an error.

A reader knows one format. `cut` goes once through a file and yields its pieces, each about as large as a limit; `rows`
reads one of them, which was verified before, in batches that fit in memory.
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
from evertide.sources.values.columns import Column
from evertide.sources.values.fit import Ops, Reason, upserts
from evertide.sources.values.values import show_value

__all__ = ["Cut", "Piece", "Reader", "Table", "checksum", "ops_of"]

_READ_BYTES = 1024 * 1024
_OPS = {
    **dict.fromkeys(("i", "insert", "u", "update", "upsert", "c", "r"), UPSERT),
    **dict.fromkeys(("d", "delete"), DELETE),
}


class Cut(msgspec.Struct, frozen=True, omit_defaults=True):
    """A range of a file: bytes, or, in Parquet, row groups."""

    first: int
    last: int
    line: int
    """The number of its first line, or of its first row."""
    rows: int
    checksum: str
    columns: tuple[str, ...] = ()
    """The names of a CSV file's fields, as its first line is in one piece only."""


class Piece(msgspec.Struct, frozen=True):
    path: str
    bytes: int
    mtime_ns: int
    cut: Cut


class Reader(Protocol):
    def cut(self, path: Path, limit: Limit) -> Iterator[Cut]: ...

    def found(self, path: Path, cut: Cut) -> str:
        """The checksum of what the range holds now."""
        ...

    def rows(self, path: Path, cut: Cut, place: str) -> Iterator[Rows]:
        """`place` is what faults call the file: the same on every machine, wherever the directory is mounted."""
        ...


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose rows are in files, and how the columns of both are matched."""

    declaration: TableDeclaration
    source: str
    op_column: str = ""
    ignore_extra: bool = False

    def matched(self, names: Sequence[str], path: Path) -> dict[str, int]:
        """Where in a file each column of the table is; the column of operations under the name ''."""
        places: dict[str, int] = {}
        for at, name in enumerate(names):
            if name.lower() in places:
                raise self.failed(path, f"the column {name!r} is there twice")
            places[name.lower()] = at
        known = {field.name.lower(): field.name for field in self.declaration.schema}
        extra = [name for name in names if name.lower() not in known and name.lower() != self.op_column.lower()]
        if extra and not self.ignore_extra:
            why = f"the column {extra[0]!r} is not in the table; declare it, or set the option ignore_extra to 'true'"
            raise self.failed(path, why)
        if self.op_column and self.op_column.lower() not in places:
            raise self.failed(path, f"the column {self.op_column!r}, which op_column names, is not there")
        found = {own: places[name] for name, own in known.items() if name in places}
        self._check_missing(found, path)
        return found | ({"": places[self.op_column.lower()]} if self.op_column else {})

    def _check_missing(self, found: Mapping[str, int], path: Path) -> None:
        for field in self.declaration.schema:
            is_needed = not field.nullable or field.name in self.declaration.key
            if is_needed and field.name not in found and field.name not in self.declaration.defaults:
                raise self.failed(path, f"the column {field.name!r} is not there, and it is NOT NULL")

    def failed(self, path: Path, why: str) -> SourceFailed:
        return SourceFailed(source=self.source, where=f"{path}, table {self.declaration.name!r}", why=why)


def ops_of(column: Column | None, count: int, reasons: dict[int, Reason]) -> Ops:
    """The operations that a column of texts names; a text that names none is put among the reasons."""
    ops = upserts(count)
    if column is None:
        return ops
    for row, text in enumerate(column.array.to_pylist()):
        op = _OPS.get(text.lower()) if text is not None else None
        if op is None:
            why = f"{show_value(text)} is no operation: expected I, U or D (insert, update, delete)"
            reasons.setdefault(row, Reason(why))
        else:
            ops[row] = np.int8(op)
    return ops


def checksum(path: Path, first: int = 0, last: int | None = None) -> str:
    """XXH3-128 of a range of bytes; of fewer, if the file is shorter."""
    state: Any = xxhash.xxh3_128()
    with path.open("rb") as file:
        file.seek(first)
        left = last - first if last is not None else None
        while read := file.read(_READ_BYTES if left is None else min(_READ_BYTES, left)):
            state.update(read)
            left = None if left is None else left - len(read)
    return str(state.hexdigest())
