"""Convert JSON lines to rows: one object per line, whose names are the table's columns.

1. Each line is decoded separately, so that an invalid line is one fault. Values are then converted column by column.
2. A missing field takes the column's default, or NULL. A line that repeats a name is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from evertide.sources.files.fragments import FileTable, parse_ops
from evertide.sources.files.records import Block
from evertide.sources.files.text import find_bad_records
from evertide.sources.values.columns import ConvertedColumn, from_values
from evertide.sources.values.fit import FittedRows, Reason, fit
from evertide.sources.values.strict_json import RepeatedName, decode_json
from evertide.sources.values.values import json_decoder, read_default, show_value


@dataclass(frozen=True, slots=True)
class JsonRecords:
    table: FileTable
    has_header: bool = False

    def header(self, _first: Block, _path: Path) -> tuple[str, ...]:
        return ()

    def read_rows(self, block: Block, _columns: tuple[str, ...], _path: Path) -> FittedRows:
        declaration = self.table.declaration
        reasons = find_bad_records(block)
        rows = self._decode(block, reasons)
        found = {}
        for field in declaration.schema:
            default = read_default(declaration, field.name)
            found[field.name] = from_values([row.get(field.name, default) for row in rows], field.type)
        ops = parse_ops(self._ops(rows), len(rows), reasons)
        return fit(declaration, found, ops, reasons)

    def _decode(self, block: Block, reasons: dict[int, Reason]) -> list[dict[str, Any]]:
        """One object per record, with names as the table spells them; empty for an invalid record."""
        decoder = json_decoder(self.table.declaration.schema)
        own = frozenset(self.table.declaration.schema.names)
        rows: list[dict[str, Any]] = []
        for at, (start, end) in enumerate(zip(block.starts.tolist(), block.ends.tolist(), strict=True)):
            row: Any = {}
            if at not in reasons:
                try:
                    row = decode_json(decoder, block.content[start:end])
                except RepeatedName as error:
                    reasons[at] = Reason(str(error))
                except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                    reasons[at] = Reason(f"the line is not JSON: {error}")
            if not isinstance(row, dict):
                reasons[at] = Reason(f"{show_value(row)} is not an object with the table's columns")
                row = {}
            rows.append(row if own.issuperset(row) else self._rename_columns(row, at, reasons))
        return rows

    def _rename_columns(self, row: dict[str, Any], at: int, reasons: dict[int, Reason]) -> dict[str, Any]:
        """An invalid row keeps its values, as the fault needs its key."""
        known = {name.lower(): name for name in self.table.declaration.schema.names}
        renamed: dict[str, Any] = {}
        for name, value in row.items():
            own = known.get(name.lower())
            is_op = name.lower() == self.table.op_column.lower()
            if is_op:
                renamed[_OP] = value
            if own is not None and own in renamed:
                reasons[at] = Reason(f"the line has the column {own!r} twice")
            elif own is not None:
                renamed[own] = value
            elif not is_op and not self.table.ignore_extra:
                reasons[at] = Reason(f"the table has no column {show_value(name)}")
        return renamed

    def _ops(self, rows: list[dict[str, Any]]) -> ConvertedColumn | None:
        if not self.table.op_column:
            return None
        own = next(
            (name for name in self.table.declaration.schema.names if name.lower() == self.table.op_column.lower()), _OP
        )
        values = [row.get(_OP, row.get(own)) for row in rows]
        return ConvertedColumn(pa.array([value if isinstance(value, str) else None for value in values], pa.string()))


_OP = ""
"""A name that no column has."""
