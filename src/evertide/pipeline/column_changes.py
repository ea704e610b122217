"""The differences between the stored columns of a table and those that a script declares, by name.

A stored table can get new nullable columns after its last one. Every other difference would change the meaning of
stored rows, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from evertide.rows.char_types import read_declared_type
from evertide.sources.values.kinds import name_column_type


def find_refused_columns(before: pa.Schema, after: pa.Schema) -> list[str]:
    """A sentence for each difference that is refused; empty if the columns fit the stored rows."""
    return [*_find(before, after)]


def describe_column(field: pa.Field) -> str:
    return f"{field.name} {name_column_type(field)}{'' if field.nullable else ' NOT NULL'}"


def _find(before: pa.Schema, after: pa.Schema) -> Iterator[str]:
    old, new = _by_name(before), _by_name(after)
    for name, field in old.items():
        if name not in new:
            yield f"column {describe_column(field)} is missing"
        elif not new[name].equals(field) or read_declared_type(new[name]) != read_declared_type(field):
            yield f"column {field.name} was {describe_column(field)} and is now {describe_column(new[name])}"
    kept = [name for name in old if name in new]
    if [name for name in new if name in old] != kept:
        yield f"the stored columns are in another order; keep the order {', '.join(old[name].name for name in kept)}"
    last = max((at for at, name in enumerate(new) if name in old), default=-1)
    for at, (name, field) in enumerate(new.items()):
        if name not in old and at < last:
            yield (
                f"column {at + 1} was {_describe_at(before, at)} and is now the new column {describe_column(field)}; "
                f"add new columns after the last one, {[*new.values()][last].name}"
            )
        if name not in old and not field.nullable:
            yield f"the new column {field.name} is NOT NULL, and stored rows have no value for it; allow NULL"


def _by_name(schema: pa.Schema) -> dict[str, pa.Field]:
    return {field.name.lower(): field for field in schema}


def _describe_at(schema: Sequence[pa.Field], at: int) -> str:
    return describe_column(schema[at]) if at < len(schema) else "not there"
