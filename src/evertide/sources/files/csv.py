"""Convert CSV records (RFC 4180) to rows.

1. `evertide.sources.files.records` splits a file into records. Only well-formed records with the right number of fields
   are passed to Arrow's parser, all at once, so an invalid record does not affect its neighbours.
2. A field that equals `null_value` and is not quoted is NULL.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from evertide.rows.columns import to_array
from evertide.sources.files.fragments import FileTable, parse_ops
from evertide.sources.files.records import Block
from evertide.sources.files.text import find_bad_records
from evertide.sources.values.columns import ConvertedColumn, from_texts
from evertide.sources.values.fit import FittedRows, Reason, fit

_COLUMNS_MAX = 100_000
"""Each column takes kilobytes while rows are read, also one that the table does not have."""


@dataclass(frozen=True, slots=True)
class CsvRecords:
    table: FileTable
    delimiter: str = ","
    null_value: str = ""
    has_header: bool = True

    def header(self, first: Block, path: Path) -> tuple[str, ...]:
        """Without a header, the fields are the operation column, if any, and then the table's columns in order."""
        names = self._read_header(first, path) if self.has_header else self._list_declared_names()
        self.table.match_columns(names, path)
        return names

    def _list_declared_names(self) -> tuple[str, ...]:
        op = (self.table.op_column,) if self.table.op_column else ()
        return (*op, *self.table.declaration.schema.names)

    def _read_header(self, first: Block, path: Path) -> tuple[str, ...]:
        bad = first.reasons.get(0) or ("the line is not UTF-8" if 0 in first.find_invalid_utf8() else "")
        if bad:
            raise self.table.failure(path, f"line 1 should have the column names, but cannot be read: {bad}")
        if (count := int(first.fields[0])) > _COLUMNS_MAX:
            raise self.table.failure(path, f"line 1 has {count} columns; a file has at most {_COLUMNS_MAX}")
        line = io.StringIO(first.record(0).decode("utf-8"), newline="")
        try:  # not by Arrow, which takes four kilobytes for each column
            names = next(csv.reader(line, delimiter=self.delimiter), [])
        except csv.Error as error:  # a name is too long
            raise self.table.failure(
                path, f"line 1 should have the column names, but cannot be read: {error}"
            ) from error
        return tuple(map(str.strip, names))

    def read_rows(self, block: Block, columns: tuple[str, ...], path: Path) -> FittedRows:
        reasons = find_bad_records(block)
        for at in np.flatnonzero(block.fields != len(columns)).tolist():
            reasons.setdefault(at, Reason(f"the record has {block.fields[at]} fields, expected {len(columns)}"))
        places = self.table.match_columns(columns, path)
        texts = self._texts(block, len(columns), [*places.values()], reasons, path)
        ops = parse_ops(ConvertedColumn(texts[places[""]]) if "" in places else None, len(block.starts), reasons)
        kinds = self.table.declaration.schema
        found = {name: from_texts(texts[at], kinds.field(name).type) for name, at in places.items() if name}
        return fit(self.table.declaration, found, ops, reasons)

    def _texts(
        self, block: Block, fields: int, places: list[int], reasons: dict[int, Reason], path: Path
    ) -> dict[int, Any]:
        """A column of strings for each of these fields, with NULL for invalid records."""
        count = len(block.starts)
        good = np.array([at for at in range(count) if at not in reasons], np.int64) if reasons else np.arange(count)
        if not len(good) or not places:  # to Arrow, no places are all places
            return dict.fromkeys(places, pa.nulls(count, pa.string()))
        content = (
            b"\n".join(block.record(int(at)) for at in good)
            if reasons
            else block.content[block.starts[0] : block.ends[-1]]
        )
        parsed = self._parse(content, fields, places)
        if parsed.num_rows != len(good):
            why = f"the CSV parser read {parsed.num_rows} records instead of {len(good)} from line {block.lines[0]}"
            raise self.table.failure(path, why)
        columns = {at: to_array(column) for at, column in zip(places, parsed.columns, strict=True)}
        if not reasons:
            return columns
        is_bad = np.ones(count, np.bool_)
        is_bad[good] = False
        rows = pa.array(np.cumsum(~is_bad) - 1, mask=is_bad)
        return {at: column.take(rows) for at, column in columns.items()}

    def _parse(self, content: bytes, fields: int, places: list[int]) -> pa.Table:
        """Parse records, and convert these fields."""
        content += b"\n"  # without it, Arrow treats an empty last field as quoted if the field before it is quoted
        names, wanted = [f"c{at}" for at in range(fields)], [f"c{at}" for at in places]
        return pyarrow.csv.read_csv(
            pa.BufferReader(pa.py_buffer(content)),
            pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=max(len(content) + 1, 1024)),
            pyarrow.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, pa.string()),
                null_values=[self.null_value],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
