"""CSV (RFC 4180): the fields of a record, as values of the table's columns.

Records are cut by `evertide.sources.files.records`, and only those that are well-formed and have as many fields as
there are columns go to Arrow's parser, all at once. So a bad record neither shifts nor loses its neighbours. A field
that is `null_value` and not quoted is NULL.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from evertide.rows.columns import one_chunk
from evertide.sources.files.pieces import Table, ops_of
from evertide.sources.files.records import Block
from evertide.sources.files.text import bad_records
from evertide.sources.values.columns import Column, from_texts
from evertide.sources.values.fit import FittedRows, Reason, fit

__all__ = ["CsvRecords"]


@dataclass(frozen=True, slots=True)
class CsvRecords:
    table: Table
    delimiter: str = ","
    null_value: str = ""
    has_header: bool = True

    def header(self, first: Block, path: Path) -> tuple[str, ...]:
        """Without one, the fields are the table's columns in order, after that of operations."""
        names = self._named(first, path) if self.has_header else self._declared()
        self.table.matched(names, path)
        return names

    def _declared(self) -> tuple[str, ...]:
        op = (self.table.op_column,) if self.table.op_column else ()
        return (*op, *self.table.declaration.schema.names)

    def _named(self, first: Block, path: Path) -> tuple[str, ...]:
        bad = first.reasons.get(0) or ("it is not UTF-8" if 0 in first.not_utf8() else "")
        if bad:
            raise self.table.failed(path, f"the first line should name the columns: {bad}")
        names = self._parsed(first.record(0), int(first.fields[0])).to_pylist()[0]
        return tuple((name or "").strip() for name in names.values())

    def fitted(self, block: Block, columns: tuple[str, ...], path: Path) -> FittedRows:
        reasons = bad_records(block)
        for at in np.flatnonzero(block.fields != len(columns)).tolist():
            reasons.setdefault(at, Reason(f"{block.fields[at]} fields, expected {len(columns)}"))
        texts = self._texts(block, len(columns), reasons, path)
        places = self.table.matched(columns, path)
        ops = ops_of(Column(texts[places[""]]) if "" in places else None, len(block.starts), reasons)
        kinds = self.table.declaration.schema
        found = {name: from_texts(texts[at], kinds.field(name).type) for name, at in places.items() if name}
        return fit(self.table.declaration, found, ops, reasons)

    def _texts(self, block: Block, fields: int, reasons: dict[int, Reason], path: Path) -> list[Any]:
        """A column of strings for each field; all NULL where a record is bad."""
        count = len(block.starts)
        good = np.array([at for at in range(count) if at not in reasons], np.int64) if reasons else np.arange(count)
        if not len(good):
            return [pa.nulls(count, pa.string())] * fields
        content = (
            b"\n".join(block.record(int(at)) for at in good)
            if reasons
            else block.content[block.starts[0] : block.ends[-1]]
        )
        parsed = self._parsed(content, fields)
        if parsed.num_rows != len(good):
            raise self.table.failed(
                path, f"{len(good)} records were read as {parsed.num_rows} from line {block.lines[0]}"
            )
        columns = [one_chunk(column) for column in parsed.columns]
        if not reasons:
            return columns
        is_bad = np.ones(count, np.bool_)
        is_bad[good] = False
        rows = pa.array(np.cumsum(~is_bad) - 1, mask=is_bad)
        return [column.take(rows) for column in columns]

    def _parsed(self, content: bytes, fields: int) -> pa.Table:
        content += b"\n"  # an empty field at the very end would be taken for a quoted one, if the one before is
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
