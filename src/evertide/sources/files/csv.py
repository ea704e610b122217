"""Convert CSV records (RFC 4180) to rows.

1. `evertide.sources.files.records` splits a file into records. Only well-formed records with the right number of fields
   are passed to Arrow's parser, all at once, so an invalid record does not affect its neighbours.
2. A field that equals `null_value` and is not quoted is NULL.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from evertide.rows.columns import to_array
from evertide.sources.files.pieces import FileTable, parse_ops
from evertide.sources.files.records import Block
from evertide.sources.files.text import find_bad_records
from evertide.sources.values.columns import ConvertedColumn, from_texts
from evertide.sources.values.fit import FittedRows, Reason, fit

__all__ = ["CsvRecords"]


@dataclass(frozen=True, slots=True)
class CsvRecords:
    table: FileTable
    delimiter: str = ","
    null_value: str = ""
    has_header: bool = True

    def header(self, first: Block, path: Path) -> tuple[str, ...]:
        """Without a header, the fields are the operation column, if any, and then the table's columns in order."""
        names = self._read_header(first, path) if self.has_header else self._declared_names()
        self.table.match_columns(names, path)
        return names

    def _declared_names(self) -> tuple[str, ...]:
        op = (self.table.op_column,) if self.table.op_column else ()
        return (*op, *self.table.declaration.schema.names)

    def _read_header(self, first: Block, path: Path) -> tuple[str, ...]:
        bad = first.reasons.get(0) or ("the line is not UTF-8" if 0 in first.find_invalid_utf8() else "")
        if bad:
            raise self.table.failure(path, f"line 1 should have the column names, but cannot be read: {bad}")
        names = self._parse(first.record(0), int(first.fields[0])).to_pylist()[0]
        return tuple((name or "").strip() for name in names.values())

    def read_rows(self, block: Block, columns: tuple[str, ...], path: Path) -> FittedRows:
        reasons = find_bad_records(block)
        for at in np.flatnonzero(block.fields != len(columns)).tolist():
            reasons.setdefault(at, Reason(f"the record has {block.fields[at]} fields, expected {len(columns)}"))
        texts = self._texts(block, len(columns), reasons, path)
        places = self.table.match_columns(columns, path)
        ops = parse_ops(ConvertedColumn(texts[places[""]]) if "" in places else None, len(block.starts), reasons)
        kinds = self.table.declaration.schema
        found = {name: from_texts(texts[at], kinds.field(name).type) for name, at in places.items() if name}
        return fit(self.table.declaration, found, ops, reasons)

    def _texts(self, block: Block, fields: int, reasons: dict[int, Reason], path: Path) -> list[Any]:
        """A column of strings for each field, with NULL for invalid records."""
        count = len(block.starts)
        good = np.array([at for at in range(count) if at not in reasons], np.int64) if reasons else np.arange(count)
        if not len(good):
            return [pa.nulls(count, pa.string())] * fields
        content = (
            b"\n".join(block.record(int(at)) for at in good)
            if reasons
            else block.content[block.starts[0] : block.ends[-1]]
        )
        parsed = self._parse(content, fields)
        if parsed.num_rows != len(good):
            why = f"the CSV parser read {parsed.num_rows} records instead of {len(good)} from line {block.lines[0]}"
            raise self.table.failure(path, why)
        columns = [to_array(column) for column in parsed.columns]
        if not reasons:
            return columns
        is_bad = np.ones(count, np.bool_)
        is_bad[good] = False
        rows = pa.array(np.cumsum(~is_bad) - 1, mask=is_bad)
        return [column.take(rows) for column in columns]

    def _parse(self, content: bytes, fields: int) -> pa.Table:
        content += b"\n"  # without it, Arrow treats an empty last field as quoted if the field before it is quoted
        names = [f"c{at}" for at in range(fields)]
        return pyarrow.csv.read_csv(
            pa.BufferReader(pa.py_buffer(content)),
            pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=max(len(content) + 1, 1024)),
            pyarrow.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[self.null_value],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
