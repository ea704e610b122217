"""Read text files of records, CSV or JSON lines, block by block.

`TextReader` splits files at records; a `RecordFormat` interprets them. A record that cannot be read is a fault
with the number of its first line, and does not affect other records. Text is UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from evertide.sources.contract import Limit, Rows
from evertide.sources.files.fragments import FileRange, FileTable, compute_checksum
from evertide.sources.files.records import Block, RecordLayout, read_blocks
from evertide.sources.values.fit import FittedRows, Reason, split_faults


class RecordFormat(Protocol):
    """Interprets the records of a format."""

    @property
    def has_header(self) -> bool: ...

    def header(self, first: Block, path: Path) -> tuple[str, ...]:
        """The field names, from a file's first block; empty if every record names its own fields."""
        ...

    def read_rows(self, block: Block, columns: tuple[str, ...], path: Path) -> FittedRows:
        """Convert all records of a block to rows, with a reason for each that does not fit."""
        ...


@dataclass(frozen=True, slots=True)
class TextReader:
    table: FileTable
    records: RecordFormat
    layout: RecordLayout

    def split_file(self, path: Path, limit: Limit) -> Iterator[FileRange]:
        """A range ends before the first record that starts beyond the limit."""
        size = path.stat().st_size
        columns: tuple[str, ...] | None = None
        begin, line, rows = 0, 1, 0
        with path.open("rb") as file:
            for block in read_blocks(file, self.layout, first=0, last=size, line=1):
                records = block
                if columns is None:
                    columns = self.records.header(block, path)
                    records = block.without_first() if self.records.has_header else block
                starts, at = block.begin + records.starts, 0
                while at < len(starts):
                    stop = min(at + limit.rows - rows, int(np.searchsorted(starts, begin + limit.bytes)))
                    stop = max(stop, at + (rows == 0))
                    rows += min(stop, len(starts)) - at
                    if stop < len(starts):
                        end = int(starts[stop])
                        yield FileRange(begin, end, line, rows, compute_checksum(path, begin, end), columns)
                        begin, line, rows = end, int(records.lines[stop]), 0
                    at = stop
        if rows:
            yield FileRange(begin, size, line, rows, compute_checksum(path, begin, size), columns or ())

    def read_checksum(self, path: Path, cut: FileRange) -> str:
        return compute_checksum(path, cut.first, cut.last)

    def rows(self, path: Path, cut: FileRange, place: str) -> Iterator[Rows]:
        is_headed = cut.first == 0 and self.records.has_header
        with path.open("rb") as file:
            for block in read_blocks(file, self.layout, first=cut.first, last=cut.last, line=cut.line):
                records = block.without_first() if is_headed else block
                is_headed = False
                if len(records.starts):
                    fitted = self.records.read_rows(records, cut.columns, path)
                    yield split_faults(self.table.declaration, fitted, place, _line_of(records), records.raw)


def _line_of(block: Block) -> Callable[[int], int]:
    return lambda at: int(block.lines[at])


def find_bad_records(block: Block) -> dict[int, Reason]:
    """The records that are invalid in every format."""
    reasons = {at: Reason(why) for at, why in block.reasons.items()}
    for at in block.find_invalid_utf8():
        reasons.setdefault(at, Reason("the record is not UTF-8"))
    return reasons
