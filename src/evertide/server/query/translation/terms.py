"""`Term`: a value in a query, with the type that Spark gives it and the SQL by which DuckDB computes the same value.

Types are Arrow types, as Spark returns them. The SQL does not rely on DuckDB's type rules: where two types meet, both
sides are cast explicitly to the type that Spark would choose.

1. Two integer types meet as the wider one.
2. Decimals, and integers beside them, meet as the decimal that holds both. If that needs more than 38 digits, Spark
   drops some, so the query is left to Spark.
3. A DOUBLE turns the other side into a DOUBLE. The engines convert a decimal of up to 15 digits alike; a literal is
   converted here.
4. A literal text beside a date or a time is read as one if it is complete; beside a timestamp with a time zone only if
   the session's zone is UTC.

Anything else is not known to agree, and is refused.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import IntEnum
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from evertide.server.query.duck import DuckDeclined

DIGITS_MAX = 38
DOUBLE_DIGITS = 15
LOCAL = pa.timestamp("us")
MOMENT = pa.timestamp("us", "UTC")
_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    LOCAL: "TIMESTAMP",
    MOMENT: "TIMESTAMPTZ",
}
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
"""Digits of the decimal that Spark converts an integer to."""
_LONGS = (-(1 << 63), (1 << 63) - 1)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?)?")


class Precedence(IntEnum):
    """How tightly a term binds: a combination that the parsers might group differently is refused."""

    atom = 0
    sum = 1
    joined = 2
    predicate = 3
    logic = 4


@dataclass(frozen=True, slots=True)
class Term:
    text: str
    kind: Any
    """The type that Spark gives it; `pa.null()` for a bare NULL."""
    precedence: Precedence = Precedence.atom
    name: str | None = None
    """The name that Spark gives it if the query gives none; None if not known."""
    value: Any = None
    """The value of a literal."""


def make_refusal(what: str) -> DuckDeclined:
    return DuckDeclined(where="query", why=f"DuckDB may answer {what} differently than Spark")


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def duckdb_type(kind: Any) -> str:
    if kinds.is_decimal128(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if kind not in _NAMES:
        raise make_refusal(f"a value of type {kind}")
    return _NAMES[kind]


def cast(term: Term, kind: Any) -> Term:
    """Cast with DuckDB's cast; the caller ensures that it agrees with Spark's."""
    if term.kind == kind:
        return term
    if kind == pa.float64() and isinstance(term.value, Decimal | int):
        return make_literal(float(term.value))
    return Term(f"CAST({term.text} AS {duckdb_type(kind)})", kind)


def make_literal(value: Any) -> Term:
    """A Python value as a literal of the type that Spark gives it."""
    match value:
        case None:
            return Term("NULL", pa.null())
        case bool():
            return Term("TRUE" if value else "FALSE", pa.bool_(), value=value)
        case int():
            return Term(
                f"CAST({value} AS {duckdb_type(_find_integer_type(value))})", _find_integer_type(value), value=value
            )
        case float() if math.isfinite(value):
            return Term(f"CAST('{value!r}' AS DOUBLE)", pa.float64(), value=value)
        case Decimal():
            kind = pa.decimal128(*_count_digits(value))
            return Term(f"CAST('{value:f}' AS {duckdb_type(kind)})", kind, value=value)
        case str() if "\0" not in value:
            text = value.replace("'", "''")
            return Term(f"'{text}'", pa.string(), value=value)
    raise make_refusal(f"the value {value!r}")


def parse_number(text: str) -> Term:
    if re.fullmatch(r"-?[0-9]+", text):
        return make_literal(int(text))
    if "e" in text.lower():
        return make_literal(float(text))
    found = Decimal(text)
    if _count_digits(found)[0] > DIGITS_MAX:
        raise make_refusal(f"the number {text}")
    return make_literal(found)


def _find_integer_type(value: int) -> Any:
    if -(1 << 31) <= value < 1 << 31:
        return pa.int32()
    if -(1 << 63) <= value < 1 << 63:
        return pa.int64()
    raise make_refusal(f"the number {value}")


def _count_digits(value: Decimal) -> tuple[int, int]:
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    return max(len(digits), scale, 1), scale


def is_whole(kind: Any) -> bool:
    return kind in _DIGITS


def is_real(kind: Any) -> bool:
    return kind in (pa.float32(), pa.float64())


def find_decimal_type(term: Term, *, by_value: bool = False) -> Any:
    """The decimal type that Spark converts a number to; in arithmetic, a literal has the digits as written."""
    if kinds.is_decimal128(term.kind):
        return term.kind
    if by_value and isinstance(term.value, int):
        return pa.decimal128(max(1, len(str(abs(term.value)))), 0)
    return pa.decimal128(_DIGITS[term.kind], 0)


def find_common_type(left: Term, right: Term) -> Any:
    """The common type of two terms in a comparison or a CASE."""
    a, b = left.kind, right.kind
    if a == b or b == pa.null():
        return a
    if a == pa.null():
        return b
    if is_whole(a) and is_whole(b):
        return max(a, b, key=lambda kind: _DIGITS[kind])
    if all(is_whole(kind) or kinds.is_decimal128(kind) for kind in (a, b)):
        return _widen_decimals(find_decimal_type(left), find_decimal_type(right))
    if all(is_whole(kind) or is_real(kind) or kinds.is_decimal128(kind) for kind in (a, b)):
        return _check_doubles(left, right)
    raise make_refusal(f"{a} beside {b}")


def _widen_decimals(a: Any, b: Any) -> Any:
    scale = max(a.scale, b.scale)
    digits = max(a.precision - a.scale, b.precision - b.scale) + scale
    if digits > DIGITS_MAX:
        raise make_refusal(f"{a} beside {b}")
    return pa.decimal128(digits, scale)


def _check_doubles(left: Term, right: Term) -> Any:
    for one, other in ((left, right), (right, left)):
        if one.kind == pa.float32() and is_whole(other.kind):
            raise make_refusal("FLOAT beside a whole number")  # a FLOAT or a DOUBLE, by spark.sql.ansi.enabled
        if kinds.is_decimal128(one.kind) and one.value is None and one.kind.precision > DOUBLE_DIGITS:
            raise make_refusal(f"{one.kind} as a DOUBLE")
    return pa.float64()


def cast_pair(left: Term, right: Term) -> tuple[Term, Term]:
    """Both terms, cast to the type in which they are compared."""
    for one, other in ((left, right), (right, left)):
        if is_whole(one.kind) and isinstance(other.value, Decimal) and not _LONGS[0] <= other.value <= _LONGS[1]:
            raise make_refusal(
                "a whole number beside a literal that no BIGINT can equal"
            )  # NULL < 1e19 is true to Spark
    kind = find_common_type(left, right)
    if kind == pa.null():
        raise make_refusal("NULL beside NULL")
    return cast(left, kind), cast(right, kind)


def cast_to_common_type(terms: list[Term]) -> list[Term]:
    """All terms, cast to their common type."""
    kind = reduce(_merge_types, terms).kind
    if kind == pa.null():
        raise make_refusal("values that are all NULL")
    return [cast(term, kind) for term in terms]


def _merge_types(left: Term, right: Term) -> Term:
    value = left.value if right.kind == pa.null() else None
    return Term("", find_common_type(left, right), value=value)


def read_time(term: Term, beside: Any, *, is_utc: bool) -> Term:
    """A literal text beside a value of the type `beside`, as a date or a time; any other term unchanged."""
    if not isinstance(term.value, str) or beside not in (pa.date32(), LOCAL, *([MOMENT] if is_utc else [])):
        return term
    pattern = _DATE if beside == pa.date32() else _TIME
    if not pattern.fullmatch(term.value) or not _is_real_time(term.value):
        raise make_refusal(f"the text {term.value!r} as a {duckdb_type(beside)}")
    read = Term(f"CAST({term.text} AS {'DATE' if beside == pa.date32() else 'TIMESTAMP'})", beside)
    return replace(read, text=convert_utc(read.text)) if beside == MOMENT else read


def convert_utc(text: str) -> str:
    """Convert between a timestamp with and one without a time zone, in UTC."""
    return f"({text} AT TIME ZONE 'UTC')"


def _is_real_time(text: str) -> bool:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
