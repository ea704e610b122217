"""The format in which a source stages rows and faults: both in one table, as faults must be durable, too.

1. A staged table has the columns of the rows, `__op`, `__same` if any row has it, and `__fault` if any row is a fault.
2. `__fault` is the JSON of the fault's place, line, reason, raw text and key. The row itself has the values that could
   be read, and NULL elsewhere. The fault's key is read from the row, as JSON cannot represent all values; the JSON only
   tells whether the key is known.
3. Other columns whose names start with `__` belong to the source, and are ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from evertide.json_values import to_json_value
from evertide.rows.python_rows import to_python_rows
from evertide.sources.contract import OP, SAME, Fault, Rows
from evertide.sources.values.fit import extract_key

FAULT = "__fault"
_RESERVED = (OP, SAME)


class _StagedFault(msgspec.Struct, frozen=True, omit_defaults=True):
    place: str
    line: int
    reason: str
    raw: str
    key: dict[str, Any] | None = None


def encode_fault(place: str, line: int, reason: str, raw: str, key: pa.Table | None) -> str:
    fault = _StagedFault(place, line, reason, raw, None if key is None else to_json_value(to_python_rows(key)[0]))
    return msgspec.json.encode(fault).decode()


def unpack_rows(table: str, staged: pa.Table) -> Rows:
    """Split a staged table into rows and faults."""
    columns = [name for name in staged.schema.names if not name.startswith("__") or name in _RESERVED]
    if FAULT not in staged.schema.names or staged.column(FAULT).null_count == staged.num_rows:
        return Rows(table, staged.select(columns))
    texts = staged.column(FAULT)
    is_fault = np.asarray(texts.is_valid())
    before = np.cumsum(~is_fault)
    faults = []
    for at in np.flatnonzero(is_fault).tolist():
        found = msgspec.json.decode(texts[at].as_py(), type=_StagedFault)
        key = None if found.key is None else extract_key(staged, list(found.key), at)
        faults.append(Fault(table, found.place, found.line, found.reason, found.raw, key, after=int(before[at])))
    return Rows(table, staged.filter(pa.array(~is_fault)).select(columns), faults)
