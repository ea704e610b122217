"""Functions and operators that DuckDB computes as Spark does, each with its types of arguments and result.

Where the engines agree for nearly all rows, DuckDB fails for the others (`_FAIL`), so that Spark answers the query:

1. Overflow. DuckDB fails; a sum of integers, which DuckDB keeps wider, is cast to BIGINT.
2. Division by zero, which is NULL or infinite in DuckDB.
3. An average of integers whose sum exceeds what a DOUBLE holds exactly, because Spark adds DOUBLEs.
4. `upper` and `lower` of letters beyond ASCII; the minimum or maximum of values that include -0.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from evertide.server.query.translation.terms import (
    DIGITS_MAX,
    DOUBLE_DIGITS,
    LOCAL,
    MOMENT,
    Precedence,
    Term,
    cast,
    cast_pair,
    cast_to_common_type,
    convert_utc,
    duckdb_type,
    find_common_type,
    find_decimal_type,
    is_real,
    is_whole,
    make_refusal,
)

_FAIL = "error('Spark must compute this row')"
_EXACT = 1 << 53
_WIDE = Context(prec=DIGITS_MAX)
_SUM_DIGITS = 10
"""A sum of decimals has this many more digits."""
_DAYS = frozenset(("year", "quarter", "month", "day", "dayofmonth"))
_HOURS = frozenset(("hour", "minute", "second"))
_UNITS = frozenset(("year", "quarter", "month", "week", "day", "hour", "minute", "second"))


def has_same_cast(given: Any, kind: Any) -> bool:
    """Whether DuckDB's cast gives the same value as Spark's, or fails."""
    if given in (kind, pa.null()):
        return True
    if given == pa.bool_():
        return is_whole(kind) or kind == pa.string()
    if is_whole(given):
        return is_whole(kind) or kind in (pa.float64(), pa.string()) or bool(kinds.is_decimal128(kind))
    if kinds.is_decimal128(given):
        return bool(kinds.is_decimal128(kind) or (kind == pa.float64() and given.precision <= DOUBLE_DIGITS))
    return (given, kind) in ((pa.float32(), pa.float64()), (LOCAL, pa.date32()))


def coalesce(terms: list[Term]) -> Term:
    chosen = cast_to_common_type(terms)
    return Term(f"coalesce({_join_texts(chosen)})", chosen[0].kind)


def case(whens: list[Term], thens: list[Term], other: Term) -> Term:
    *chosen, last = cast_to_common_type([*thens, other])
    checks = " ".join(f"WHEN {when.text} THEN {then.text}" for when, then in zip(whens, chosen, strict=True))
    return Term(f"(CASE {checks} ELSE {last.text} END)", last.kind)


def concat(terms: list[Term]) -> Term:
    """NULL if an argument is NULL, while DuckDB's own concat() skips it."""
    _require(all(term.kind == pa.string() for term in terms), "concat() of a value that is not a text")
    return Term(f"({' || '.join(term.text for term in terms)})", pa.string())


def like(value: Term, pattern: Term, sign: str) -> Term:
    """Patterns with a backslash are left to Spark, where it is an escape."""
    is_literal = isinstance(pattern.value, str) and "\\" not in pattern.value
    _require(value.kind == pa.string() and is_literal, "LIKE")
    return Term(f"({value.text} {sign} {pattern.text})", pa.bool_(), Precedence.predicate)


def negate(term: Term) -> Term:
    _require(_is_number(term), "a minus before a value that is not a number")
    return Term(f"CAST(-({term.text}) AS {duckdb_type(term.kind)})", term.kind, Precedence.sum)


def _is_number(*terms: Term) -> bool:
    return all(is_whole(term.kind) or is_real(term.kind) or kinds.is_decimal128(term.kind) for term in terms)


def _require(is_met: bool, what: str) -> None:  # noqa: FBT001 - an assertion
    if not is_met:
        raise make_refusal(what)


def _join_texts(terms: list[Term]) -> str:
    return ", ".join(term.text for term in terms)


def _compute(sign: str, left: Term, right: Term) -> Term:
    """`+`, `-` and `*`, in the type that Spark gives the result."""
    _require(_is_number(left, right), f"{left.kind} {sign} {right.kind}")
    sides = (left.kind, right.kind)
    if any(kinds.is_decimal128(kind) for kind in sides) and not any(is_real(kind) for kind in sides):
        return _compute_decimal(sign, left, right)
    kind = find_common_type(left, right)
    text = f"{cast(left, kind).text} {sign} {cast(right, kind).text}"
    return Term(f"CAST({text} AS {duckdb_type(kind)})", kind, Precedence.sum)


def _compute_decimal(sign: str, left: Term, right: Term) -> Term:
    a, b = find_decimal_type(left, by_value=True), find_decimal_type(right, by_value=True)
    if sign == "*":
        digits, scale = a.precision + b.precision + 1, a.scale + b.scale
    else:
        scale = max(a.scale, b.scale)
        digits = max(a.precision - a.scale, b.precision - b.scale) + scale + 1
    _require(digits <= DIGITS_MAX, f"{a} {sign} {b}")
    kind = pa.decimal128(digits, scale)
    sides = (cast(left, a), cast(right, b)) if sign == "*" else (cast(left, kind), cast(right, kind))
    return Term(f"CAST({sides[0].text} {sign} {sides[1].text} AS {duckdb_type(kind)})", kind, Precedence.sum)


def _divide(_: str, left: Term, right: Term) -> Term:
    """A quotient of decimals, or of a decimal and an integer, is left to Spark: DuckDB has no decimal division."""
    _require(_is_number(left, right), f"{left.kind} / {right.kind}")
    are_integers = is_whole(left.kind) and is_whole(right.kind)
    _require(are_integers or find_common_type(left, right) in (pa.float32(), pa.float64()), "a quotient of decimals")
    a, b = cast(left, pa.float64()).text, cast(right, pa.float64()).text
    return Term(f"(CASE WHEN {b} = 0 THEN {_FAIL} ELSE {a} / {b} END)", pa.float64(), Precedence.sum)


def _compute_remainder(_: str, left: Term, right: Term) -> Term:
    _require(is_whole(left.kind) and is_whole(right.kind), f"{left.kind} % {right.kind}")
    kind = find_common_type(left, right)
    a, b = cast(left, kind).text, cast(right, kind).text
    return Term(f"CAST(CASE WHEN {b} = 0 THEN {_FAIL} ELSE {a} % {b} END AS {duckdb_type(kind)})", kind, Precedence.sum)


def _abs(terms: list[Term]) -> Term:
    [term] = terms
    _require(_is_number(term), "abs() of a value that is not a number")
    return Term(f"CAST(abs({term.text}) AS {duckdb_type(term.kind)})", term.kind)


def _if(terms: list[Term]) -> Term:
    when, then, other = terms
    _require(when.kind == pa.bool_(), "if() of a value that is not a condition")
    return case([when], [then], other)


def _nullif(terms: list[Term]) -> Term:
    value, beside = terms
    a, b = cast_pair(value, beside)
    return Term(f"(CASE WHEN {a.text} = {b.text} THEN NULL ELSE {value.text} END)", value.kind)


def _extreme_function(name: str) -> Callable[[list[Term]], Term]:
    def translate(terms: list[Term]) -> Term:
        chosen = cast_to_common_type(terms)
        _require(len(chosen) > 1 and not is_real(chosen[0].kind), f"{name}()")
        return Term(f"{name}({_join_texts(chosen)})", chosen[0].kind)

    return translate


def _text_function(call: str, kind: Any = None) -> Callable[[list[Term]], Term]:
    def translate(terms: list[Term]) -> Term:
        [term] = terms
        _require(term.kind == pa.string(), f"{call} of a value that is not a text")
        return Term(call.format(term.text), kind or pa.string())

    return translate


def _ascii_function(name: str) -> Callable[[list[Term]], Term]:
    """The engines have different rules for letters beyond ASCII, which fail here."""
    return _text_function(
        f"(CASE WHEN {{0}} IS NULL OR strlen({{0}}) = length({{0}}) THEN {name}({{0}}) ELSE {_FAIL} END)"
    )


def _substring(terms: list[Term]) -> Term:
    value, *places = terms
    are_literals = all(isinstance(place.value, int) and not isinstance(place.value, bool) for place in places)
    _require(value.kind == pa.string() and are_literals and len(places) in (1, 2), "substring()")
    _require(places[0].value > 0 and places[-1].value >= 0, "substring() from the end")
    return Term(f"substring({value.text}, {', '.join(str(place.value) for place in places)})", pa.string())


def _part_function(unit: str) -> Callable[[list[Term]], Term]:
    """A part of a date, or of a timestamp without a time zone."""

    def translate(terms: list[Term]) -> Term:
        [term] = terms
        known = (pa.date32(), LOCAL) if unit in _DAYS else (LOCAL,)
        _require(term.kind in known, f"{unit}() of {term.kind}")
        return Term(f"CAST({unit}({term.text}) AS INTEGER)", pa.int32())

    return translate


def _date_part(terms: list[Term]) -> Term:
    unit, value = terms
    name = unit.value.lower() if isinstance(unit.value, str) else ""
    _require(
        name in (_DAYS | _HOURS) - {"dayofmonth", "second"}, f"the part {name} of a time"
    )  # seconds have fractions
    return _part_function(name)([value])


def _date_trunc(terms: list[Term]) -> Term:
    """The result always has a time zone, so the caller ensures that the session's zone is UTC."""
    unit, value = terms
    name = unit.value.lower() if isinstance(unit.value, str) else ""
    _require(name in _UNITS and value.kind in (pa.date32(), LOCAL), f"date_trunc() to a {name} of {value.kind}")
    return Term(convert_utc(f"date_trunc('{name}', CAST({value.text} AS TIMESTAMP))"), MOMENT)


@dataclass(frozen=True, slots=True)
class AggregateCall:
    name: str
    is_distinct: bool
    under: str
    """The FILTER clause, or empty."""

    def write_call(self, name: str, argument: str) -> str:
        return f"{name}({'DISTINCT ' if self.is_distinct else ''}{argument}){self.under}"

    def find_name(self, term: Term) -> str | None:
        named = str(term.value) if isinstance(term.value, int) else term.name
        return None if named is None else f"{self.name}({'DISTINCT ' if self.is_distinct else ''}{named})"


def _count_all(call: AggregateCall, terms: list[Term]) -> Term:
    _require(not terms and not call.is_distinct, "count()")
    return Term(f"count(*){call.under}", pa.int64(), name="count(1)")


def _count(call: AggregateCall, terms: list[Term]) -> Term:
    [term] = terms
    _require(not (call.is_distinct and is_real(term.kind)), "count(DISTINCT) of FLOAT or DOUBLE")
    return Term(call.write_call("count", term.text), pa.int64(), name=call.find_name(term))


def _sum(call: AggregateCall, terms: list[Term]) -> Term:
    [term] = terms
    if is_whole(term.kind):
        return Term(f"CAST({call.write_call('sum', term.text)} AS BIGINT)", pa.int64(), name=call.find_name(term))
    _require(kinds.is_decimal128(term.kind), f"sum() of {term.kind}")  # a sum of DOUBLEs depends on the order of rows
    kind = pa.decimal128(min(term.kind.precision + _SUM_DIGITS, DIGITS_MAX), term.kind.scale)
    text = call.write_call("sum", term.text)
    if kind.precision == DIGITS_MAX:  # DuckDB's own limit is higher
        most = Decimal(10**DIGITS_MAX - 1).scaleb(-kind.scale, _WIDE)
        text = f"CASE WHEN abs({text}) > CAST('{most:f}' AS {duckdb_type(kind)}) THEN {_FAIL} ELSE {text} END"
    return Term(f"CAST({text} AS {duckdb_type(kind)})", kind, name=call.find_name(term))


def _avg(call: AggregateCall, terms: list[Term]) -> Term:
    [term] = terms
    _require(is_whole(term.kind) and not call.is_distinct, f"avg() of {term.kind}")
    count, total = call.write_call("count", term.text), call.write_call("sum", term.text)
    size = call.write_call("sum", f"abs(CAST({term.text} AS HUGEINT))")
    mean = f"CAST({total} AS DOUBLE) / CAST({count} AS DOUBLE)"
    text = f"(CASE WHEN {count} = 0 THEN NULL WHEN {size} <= {_EXACT} THEN {mean} ELSE {_FAIL} END)"
    return Term(text, pa.float64(), name=call.find_name(term))


def _min_or_max(call: AggregateCall, terms: list[Term]) -> Term:
    [term] = terms
    text, name = call.write_call(call.name, term.text), call.find_name(term)
    duckdb_type(term.kind)
    if is_real(term.kind):
        has_negative_zero = call.write_call("bool_or", f"{term.text} = 0 AND signbit({term.text})")
        text = f"(CASE WHEN {has_negative_zero} THEN {_FAIL} ELSE {text} END)"
    return Term(text, term.kind, name=name)


ARITHMETIC = MappingProxyType({"+": _compute, "-": _compute, "*": _compute, "/": _divide, "%": _compute_remainder})
AGGREGATES = MappingProxyType(
    {"count_star": _count_all, "count": _count, "sum": _sum, "avg": _avg, "min": _min_or_max, "max": _min_or_max}
)
CALENDAR = frozenset((*_DAYS, *_HOURS, "date_part", "date_trunc"))
"""Functions that depend on the session's time zone if the argument is a timestamp with a time zone."""
ZONED = frozenset(("date_trunc",))
"""Functions that depend on the session's time zone for any argument."""
FUNCTIONS = MappingProxyType(
    {
        "abs": _abs,
        "concat": concat,
        "date_part": _date_part,
        "date_trunc": _date_trunc,
        "greatest": _extreme_function("greatest"),
        "if": _if,
        "least": _extreme_function("least"),
        "length": _text_function("CAST(length({0}) AS INTEGER)", pa.int32()),
        "lower": _ascii_function("lower"),
        "ltrim": _text_function("ltrim({0}, ' ')"),
        "nullif": _nullif,
        "nvl": coalesce,
        "rtrim": _text_function("rtrim({0}, ' ')"),
        "substr": _substring,
        "substring": _substring,
        "trim": _text_function("trim({0}, ' ')"),
        "upper": _ascii_function("upper"),
        **{unit: _part_function(unit) for unit in sorted(_DAYS | _HOURS)},
    }
)
