"""PostgreSQL's types as columns: which types a column can hold, and how texts are converted.

| PostgreSQL | column |
|---|---|
| smallint, integer, bigint, oid | TINYINT to BIGINT, DECIMAL, FLOAT, DOUBLE |
| numeric | DECIMAL, FLOAT, DOUBLE, TINYINT to BIGINT |
| real, double precision | FLOAT, DOUBLE |
| boolean | BOOLEAN |
| bytea | BINARY |
| date, time, timestamp, timestamptz | DATE, TIME, TIMESTAMP_NTZ, TIMESTAMP |
| json, jsonb | STRING, VARIANT |
| arrays | ARRAY of a type that fits the elements |
| all, such as text, varchar, uuid, enums, interval, inet | STRING, as the server writes it |

A domain is treated as its base type. A value that the column's type cannot hold exactly (NaN in a DECIMAL, 'infinity'
in a DATE, 300 in a TINYINT) does not fit, and its row is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from evertide.sources.values.columns import ConvertedColumn, from_texts, from_values
from evertide.sources.values.kinds import INTEGERS, is_variant
from evertide.sources.values.values import Number, show_value

_WHOLE = ("int2", "int4", "int8", "oid")
_NUMBERS = (*_WHOLE, "numeric")
_FITTING: tuple[tuple[Callable[[Any], bool], tuple[str, ...]], ...] = (
    (lambda kind: kind in INTEGERS or kinds.is_decimal(kind), _NUMBERS),
    (kinds.is_floating, (*_NUMBERS, "float4", "float8")),
    (lambda kind: kinds.is_timestamp(kind) and kind.tz is None, ("timestamp",)),
    (lambda kind: kinds.is_timestamp(kind) and kind.tz is not None, ("timestamptz",)),
    (is_variant, ("json", "jsonb")),
    (kinds.is_boolean, ("bool",)),
    (kinds.is_binary, ("bytea",)),
    (kinds.is_date, ("date",)),
    (kinds.is_time, ("time",)),
)
_BOUNDS = re.compile(r"^(\[-?\d+:-?\d+\])+=")


@dataclass(frozen=True, slots=True)
class PgType:
    """`name` is the name in `pg_type`; for a domain, that of the base type."""

    name: str
    shown: str
    """The name as in SQL."""
    element: PgType | None = None
    """The type of the elements, if this is an array."""
    delimiter: str = ","


def can_convert(found: PgType, kind: Any) -> bool:
    """Whether a column of type `kind` can hold values of this type."""
    if kinds.is_string(kind):
        return True
    if found.element is None:
        return any(is_kind(kind) and found.name in names for is_kind, names in _FITTING)
    if not kinds.is_list(kind):
        return False
    return can_convert(found.element, kind.value_type) or (
        kinds.is_list(kind.value_type) and can_convert(found, kind.value_type)
    )


def decode_texts(values: Any) -> tuple[Any, dict[int, str]]:
    """Convert a binary array to strings. A value that is not UTF-8 becomes NULL, and is reported by row."""
    try:
        return values.cast(pa.string()), {}
    except pa.ArrowInvalid:
        pass
    bad: dict[int, str] = {}
    made: list[str | None] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            made.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            bad[row] = f"{show_value(value)} is not UTF-8"
            made.append(None)
    return pa.array(made, pa.string()), bad


def convert_texts(texts: Any, found: PgType, kind: Any) -> ConvertedColumn:
    """Convert an array of strings, as the server writes values, to a column of type `kind`."""
    if kinds.is_string(kind):
        return ConvertedColumn(texts)
    if found.element is not None:
        return _lists(texts, found, kind)
    if kinds.is_boolean(kind):
        return ConvertedColumn(pc.equal(texts, "t"))
    if kinds.is_binary(kind):
        return ConvertedColumn(
            pa.array([None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()], kind)
        )
    if found.name == "numeric" and kind in INTEGERS:
        return from_values([None if text is None else Number(text) for text in texts.to_pylist()], kind)
    zoned = found.name == "timestamptz"
    return from_texts(pc.replace_substring_regex(texts, r"\+00$", "Z") if zoned else texts, kind)


# Arrays


def _lists(texts: Any, found: PgType, kind: Any) -> ConvertedColumn:
    """Convert the elements of all rows at once."""
    depth, leaf = 0, kind
    while kinds.is_list(leaf):
        depth, leaf = depth + 1, leaf.value_type
    misfits: dict[int, str] = {}
    rows: list[Any] = []
    leaves: list[str | None] = []
    owners: list[int] = []
    for row, text in enumerate(texts.to_pylist()):
        parsed = None if text is None else _parse_array(text, found.delimiter)
        if parsed is not None and _depth(parsed) not in (depth, 0):
            misfits[row] = f"{show_value(text)} has {_depth(parsed)} dimensions, but the column has {depth}"
            parsed = None
        rows.append(parsed)
        for element in _leaves(parsed):
            leaves.append(element)
            owners.append(row)
    element_type = found.element
    column = (
        convert_texts(pa.array(leaves, pa.string()), element_type, leaf)
        if element_type
        else ConvertedColumn(pa.nulls(0, leaf))
    )
    for at, why in column.misfits.items():
        misfits.setdefault(owners[at], f"an element does not fit: {why}")
    values = iter(column.array.to_pylist())
    made = [_refill(row, values) for row in rows]
    return ConvertedColumn(pa.array([None if at in misfits else row for at, row in enumerate(made)], kind), misfits)


def _parse_array(text: str, delimiter: str) -> list[Any]:
    """Parse `{1,NULL,"a b"}` to nested lists of texts."""
    text = _BOUNDS.sub("", text)
    stack: list[list[Any]] = [[]]
    at, token, is_quoted, is_token = 0, "", False, False
    while at < len(text):
        char = text[at]
        if char == '"':
            at += 1
            while text[at] != '"':
                at += text[at] == "\\"
                token += text[at]
                at += 1
            is_quoted = is_token = True
        elif char == "{":
            stack.append([])
        elif char in (delimiter, "}"):
            if is_token:
                stack[-1].append(None if not is_quoted and token.upper() == "NULL" else token)
            token, is_quoted, is_token = "", False, False
            if char == "}":
                inner = stack.pop()
                stack[-1].append(inner)
        else:
            at += char == "\\"
            token += text[at]
            is_token = True
        at += 1
    parsed: list[Any] = stack[0][0]
    return parsed


def _depth(value: Any) -> int:
    """0 for an empty array, which fits any depth."""
    if not isinstance(value, list) or not value:
        return 0
    return 1 + _depth(value[0])


def _leaves(value: Any) -> Iterator[str | None]:
    if isinstance(value, list):
        for element in value:
            if isinstance(element, list):
                yield from _leaves(element)
            else:
                yield element


def _refill(value: Any, values: Iterator[Any]) -> Any:
    if not isinstance(value, list):
        return None
    return [_refill(element, values) if isinstance(element, list) else next(values) for element in value]
