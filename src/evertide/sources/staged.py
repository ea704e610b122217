"""Rows and faults of a source that stages them, as one table: what does not fit must be durable, too.

Layout of a staged table: the columns of the rows, `__op`, `__same` if any row has it, and `__fault` if any row is one:
as text, the JSON of its place, line, reason, raw and key. That row has the values that could be read, and NULL
elsewhere: its key is taken from them, as JSON lacks some values; the JSON only says whether the key is known. Columns
that begin with `__` and are none of these are the source's own, and do not count.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from evertide.json_values import plain, python_rows
from evertide.sources.contract import OP, SAME, Fault, Rows
from evertide.sources.values.fit import key_of

__all__ = ["FAULT", "fault_text", "unpacked"]

FAULT = "__fault"
_OURS = (OP, SAME)


class _Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    place: str
    line: int
    reason: str
    raw: str
    key: dict[str, Any] | None = None


def fault_text(place: str, line: int, reason: str, raw: str, key: pa.Table | None) -> str:
    made = _Fault(place, line, reason, raw, None if key is None else plain(python_rows(key)[0]))
    return msgspec.json.encode(made).decode()


def unpacked(table: str, staged: pa.Table) -> Rows:
    """Staged rows as a source gives them."""
    wanted = [name for name in staged.schema.names if not name.startswith("__") or name in _OURS]
    if FAULT not in staged.schema.names or staged.column(FAULT).null_count == staged.num_rows:
        return Rows(table, staged.select(wanted))
    texts = staged.column(FAULT)
    is_bad = np.asarray(texts.is_valid())
    before = np.cumsum(~is_bad)
    faults = []
    for at in np.flatnonzero(is_bad).tolist():
        found = msgspec.json.decode(texts[at].as_py(), type=_Fault)
        key = None if found.key is None else key_of(staged, list(found.key), at)
        faults.append(Fault(table, found.place, found.line, found.reason, found.raw, key, after=int(before[at])))
    return Rows(table, staged.filter(pa.array(~is_bad)).select(wanted), faults)
