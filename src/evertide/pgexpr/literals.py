"""Read texts as values of a type: quoted literals, parameters, and casts from text.

1. Texts have the meaning that PostgreSQL gives them. Some notations are refused: dates and times other than ISO 8601
   ("Jan 8"), words that depend on the clock ("today"), infinite dates, array bounds, integers that are not decimal,
   fractions finer than a microsecond.
2. `InvalidLiteral` says why a text is not a value of the type.
3. A timestamp without a zone, read as timestamptz, is in UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

import pyarrow as pa

from evertide.pgexpr.tokens import shorten
from evertide.pgexpr.types import sqltypes as sql
from evertide.pgexpr.types.calendar import (
    DAY_US,
    Interval,
    check_date,
    check_interval,
    check_moment,
    count_days,
    count_month_days,
)
from evertide.pgexpr.types.sqltypes import SqlType

_BLANK = " \t\n\r\f\v"
_DIGITS_MAX = 1000
_DIMS_MAX = 6
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_SPECIAL = {"nan": "NaN", "infinity": "Infinity", "inf": "Infinity", "+infinity": "Infinity", "+inf": "Infinity"}
_NEGATIVE = {"-infinity": "-Infinity", "-inf": "-Infinity"}
_CLOCK = r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{0,6}))?)?"
_ZONE = r"\s*(Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2}(?::[0-9]{2})?)?)?"
_TIME = re.compile(_CLOCK)
_MOMENT = re.compile(
    rf"([0-9]{{4,7}})-([0-9]{{1,2}})-([0-9]{{1,2}})(?:(?:\s*T|\s+){_CLOCK}{_ZONE})?(?:\s+(AD|BC))?", re.IGNORECASE
)
_PLAIN_ELEMENT = r"[^{},\"\\\s][^{},\"\\]*"
_PLAIN_ARRAY = re.compile(rf"\s*\{{\s*({_PLAIN_ELEMENT}(?:,\s*{_PLAIN_ELEMENT})*)\}}\s*", re.ASCII)
_UUID = re.compile(r"\{?((?:[0-9a-f]{4}-?){7}[0-9a-f]{4})\}?", re.IGNORECASE)
_TRUTH = {
    **{"true"[:size]: True for size in range(1, 5)},
    **{"yes"[:size]: True for size in range(1, 4)},
    **{"false"[:size]: False for size in range(1, 6)},
    **{"no"[:size]: False for size in range(1, 3)},
    "on": True,
    "1": True,
    "off": False,
    "of": False,
    "0": False,
}

_ISO_SPAN = re.compile(
    r"P(?=[0-9T-])" + "".join(rf"(?:(-?[0-9]+){unit})?" for unit in "YMWD") + r"(?:T(?=[0-9-])"
    r"(?:(-?[0-9]+)H)?(?:(-?[0-9]+)M)?(?:(-?)([0-9]+)(?:\.([0-9]{0,6}))?S)?)?"
)
_SPAN_PART = re.compile(rf"([+-]?)\s*(?:{_CLOCK}|([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]+))\s*", re.IGNORECASE)
_UNITS: dict[str, tuple[int, int, int]] = {
    **dict.fromkeys(("us", "usec", "usecs", "microsecond", "microseconds"), (0, 0, 1)),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), (0, 0, 1000)),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), (0, 0, 1_000_000)),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), (0, 0, 60_000_000)),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), (0, 0, 3_600_000_000)),
    **dict.fromkeys(("d", "day", "days"), (0, 1, 0)),
    **dict.fromkeys(("w", "week", "weeks"), (0, 7, 0)),
    **dict.fromkeys(("mon", "mons", "month", "months"), (1, 0, 0)),
    **dict.fromkeys(("y", "yr", "yrs", "year", "years"), (12, 0, 0)),
}
_CLOCK_UNITS = {_UNITS["hour"], _UNITS["minute"], _UNITS["second"]}


class InvalidLiteral(ValueError):
    """A text is not a value of the type; the message says why."""


def read_value(text: str, kind: SqlType) -> Any:
    if kind.is_array:
        return _ArrayText(text).read(lambda element: read_value(element, kind.element))
    reader = _READERS.get(kind)
    if reader is None:
        raise InvalidLiteral(f"values of type {kind} cannot be written here")
    try:
        return reader(text if kind in (sql.TEXT, sql.BYTEA) else text.strip(_BLANK))
    except InvalidLiteral as error:
        raise InvalidLiteral(f"{shorten(text)} is not a valid {kind}{f': {error}' if str(error) else ''}") from None
    except ArithmeticError as error:
        raise InvalidLiteral(f"{shorten(text)} is not a valid {kind}: {error}") from None


def read_uuid(text: str) -> str:
    """The uuid in the form that PostgreSQL writes."""
    match = _UUID.fullmatch(text)
    if not match or text.startswith("{") != text.endswith("}"):
        raise InvalidLiteral(f"{shorten(text)} is not a valid uuid")
    digits = match[1].replace("-", "").lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def read_number(text: str) -> Decimal:
    """The number with the scale as written; an exponent never makes the scale negative."""
    if not _NUMBER.fullmatch(text):
        raise InvalidLiteral("expected digits, and an exponent of at most four digits")
    number = Decimal(text)
    if len(text) > _DIGITS_MAX or abs(number.adjusted()) > _DIGITS_MAX or number.as_tuple().exponent < -_DIGITS_MAX:  # type: ignore[operator]
        raise InvalidLiteral(f"a number has at most {_DIGITS_MAX} digits before and after the point")
    return Decimal(int(number)) if number.as_tuple().exponent > 0 else number  # type: ignore[operator]


def _make_integer_reader(kind: SqlType) -> Callable[[str], int]:
    least, most = sql.INTEGER_BOUNDS[kind]

    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise InvalidLiteral
        if not least <= int(text) <= most:
            raise InvalidLiteral("out of range")
        return int(text)

    return read


def _read_numeric(text: str) -> Decimal:
    special = (_SPECIAL | _NEGATIVE).get(text.lower())
    return read_number(text) if special is None else Decimal(special)


def _make_float_reader(kind: Any) -> Callable[[str], float]:
    def read(text: str) -> float:
        special = (_SPECIAL | _NEGATIVE).get(text.lower())
        if special is not None:
            return float(special)
        if not _NUMBER.fullmatch(text):
            raise InvalidLiteral
        number: float = pa.scalar(text.lstrip("+")).cast(kind).as_py()  # rounded once, also to float4
        is_zero = not re.search("[1-9]", re.split("[eE]", text)[0])
        if math.isinf(number) or (number == 0 and not is_zero):
            raise InvalidLiteral("out of range")
        return number

    return read


def _read_bool(text: str) -> bool:
    truth = _TRUTH.get(text.lower())
    if truth is None:
        raise InvalidLiteral
    return truth


def _read_bytea(text: str) -> bytes:
    if text.startswith("\\x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise InvalidLiteral("expected pairs of hexadecimal digits") from None
    if "\\" in text:
        raise InvalidLiteral("expected hexadecimal digits, such as '\\x00ff'")
    return text.encode()


def _read_date(text: str) -> int:
    return _read_moment(text)[0]


def _read_timestamp(text: str) -> int:
    days, clock, _ = _read_moment(text)
    return check_moment(days * DAY_US + clock)


def _read_timestamptz(text: str) -> int:
    days, clock, zone = _read_moment(text)
    return check_moment(days * DAY_US + clock - zone)


def _read_moment(text: str) -> tuple[int, int, int]:
    """Days, microseconds, and the zone's offset in microseconds."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise InvalidLiteral("expected a form such as '2026-01-31' or '2026-01-31 10:20:30.5+00'")
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    if year == 0:
        raise InvalidLiteral("year 0 does not exist")
    year = 1 - year if (match[9] or "").upper() == "BC" else year
    if not (1 <= month <= 12 and 1 <= day <= count_month_days(year, month)):
        raise InvalidLiteral("the day does not exist")
    clock = 0 if match[4] is None else _read_time_of_day(match[4], match[5], match[6], match[7])
    return check_date(count_days(year, month, day)), clock, _read_zone_offset(match[8])


def _read_time(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise InvalidLiteral("expected a form such as '10:20:30.5'")
    return _read_time_of_day(*match.groups())


def _read_time_of_day(hour: str, minute: str, second: str | None, fraction: str | None) -> int:
    clock = _to_microseconds(hour, minute, second, fraction)
    if int(hour) > 24 or clock > DAY_US or int(minute) > 59 or int(second or 0) > 59:
        raise InvalidLiteral("the time of day does not exist")
    return clock


def _to_microseconds(hour: str, minute: str, second: str | None, fraction: str | None) -> int:
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second or 0)
    return seconds * 1_000_000 + int((fraction or "").ljust(6, "0"))


def _read_zone_offset(zone: str | None) -> int:
    if zone is None or zone.upper() in ("Z", "UTC", "GMT"):
        return 0
    hours, minutes, seconds = (int(part or 0) for part in re.fullmatch(r".(..):?(..)?:?(..)?", zone).groups())  # type: ignore[union-attr]
    if hours > 15 or minutes > 59 or seconds > 59:
        raise InvalidLiteral("the time zone does not exist")
    return (hours * 3600 + minutes * 60 + seconds) * (-1_000_000 if zone[0] == "-" else 1_000_000)


def _read_interval(text: str) -> Interval:
    match = _ISO_SPAN.fullmatch(text)
    if match:
        years, months, weeks, days, hours, minutes = (int(part or 0) for part in match.groups()[:6])
        seconds = int(match[8] or 0) * 1_000_000 + int((match[9] or "").ljust(6, "0"))
        micros = (hours * 60 + minutes) * 60_000_000 + (-seconds if match[7] == "-" else seconds)
        return check_interval(years * 12 + months, weeks * 7 + days, micros)
    return _read_spoken_interval(text)


def _read_spoken_interval(text: str) -> Interval:
    """`1 year 2 mons -3 days 04:05:06.7 ago`."""
    body = re.sub(r"\s+ago$", "", text, flags=re.IGNORECASE)
    turned = -1 if body != text else 1
    total, at, seen = [Fraction(0)] * 3, 0, set[Any]()
    while at < len(body) or at == 0:
        match = _SPAN_PART.match(body, at)
        if match is None:
            raise InvalidLiteral("expected a form such as '1 day 02:03:04' or 'P1DT2H3M4S'")
        sign = -turned if match[1] == "-" else turned
        units = _CLOCK_UNITS if match[2] is not None else {_UNITS.get(match[7].lower())}
        if units & seen:
            raise InvalidLiteral("a unit occurs twice")
        seen |= units
        if match[2] is not None:
            parts = (Fraction(0), Fraction(0), Fraction(_to_microseconds(*match.groups()[1:5])))
        else:
            parts = _convert_unit(Fraction(match[6]), match[7].lower())
        total = [whole + sign * part for whole, part in zip(total, parts, strict=True)]
        at = match.end()
    if any(part.denominator != 1 for part in total):
        raise InvalidLiteral("the interval is finer than a microsecond")
    months, days, micros = (int(part) for part in total)
    return check_interval(months, days, micros)


def _convert_unit(number: Fraction, unit: str) -> tuple[Fraction, Fraction, Fraction]:
    """A fraction of a day becomes time. A fraction of a month is refused: months differ in length."""
    if unit not in _UNITS:
        raise InvalidLiteral(f"the unit {unit!r} does not exist")
    months, days, micros = (number * size for size in _UNITS[unit])
    if months.denominator != 1:
        raise InvalidLiteral("fractions of months are not supported")
    whole = Fraction(int(days))
    return months, whole, micros + (days - whole) * DAY_US


class _ArrayText:
    """The parser for `{1,NULL,"a b"}`; nested arrays must all have the same size."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self, element: Callable[[str], Any]) -> list[Any]:
        plain = _PLAIN_ARRAY.fullmatch(self._text)
        if plain:  # the fast path: most arrays are plain, and lists of keys are long
            texts = (element.strip(_BLANK) for element in plain[1].split(","))
            return [None if text.upper() == "NULL" else element(text) for text in texts]
        self._skip()
        values = self._read_array(element, 1)
        self._skip()
        if self._at < len(self._text):
            self._refuse("text follows the end of the array")
        return values

    def _skip(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in _BLANK:
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidLiteral(f"{shorten(self._text)} is not a valid array: {why}")

    def _read_array(self, element: Callable[[str], Any], dims: int) -> list[Any]:
        if self._peek() != "{":
            self._refuse("expected '{' and elements separated by ','")
        if dims > _DIMS_MAX:
            self._refuse(f"the array has more than {_DIMS_MAX} dimensions")
        self._at += 1
        self._skip()
        values: list[Any] = []
        if self._peek() == "}":
            if dims > 1:
                self._refuse("an inner array is empty")
            self._at += 1
            return values
        while True:
            self._skip()
            values.append(self._read_array(element, dims + 1) if self._peek() == "{" else self._read_element(element))
            self._skip()
            end = self._peek()
            self._at += 1
            if end == "}":
                break
            if end != ",":
                self._refuse("expected ',' or '}'")
        if len({find_shape(each) for each in values}) > 1:
            self._refuse("the inner arrays have different sizes")
        return values

    def _read_element(self, element: Callable[[str], Any]) -> Any:
        if self._peek() == '"':
            return element(self._read_quoted())
        text, kept, escaped = "", 0, False
        while self._peek() and self._peek() not in ',{}"':
            if self._peek() == "\\":
                self._at += 1
                escaped, kept = True, len(text) + 1
            text += self._peek()
            self._at += 1
        text = text[:kept] + text[kept:].rstrip(_BLANK)
        if not text or self._peek() in ("{", '"'):
            self._refuse("an element is missing, or needs quotes")
        return None if text.upper() == "NULL" and not escaped else element(text)

    def _read_quoted(self) -> str:
        match = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL).match(self._text, self._at)
        if match is None:
            self._refuse("a quote is not closed")
        self._at = match.end()
        return re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL)


def find_shape(value: Any) -> tuple[int, ...]:
    """The number of elements in each dimension of an array; an empty array has no dimension."""
    return (len(value), *find_shape(value[0])) if isinstance(value, list) and value else ()


_READERS: dict[SqlType, Callable[[str], Any]] = {
    sql.BOOL: _read_bool,
    sql.BYTEA: _read_bytea,
    sql.DATE: _read_date,
    sql.FLOAT4: _make_float_reader(pa.float32()),
    sql.FLOAT8: _make_float_reader(pa.float64()),
    sql.INT2: _make_integer_reader(sql.INT2),
    sql.INT4: _make_integer_reader(sql.INT4),
    sql.INT8: _make_integer_reader(sql.INT8),
    sql.INTERVAL: _read_interval,
    sql.NUMERIC: _read_numeric,
    sql.TEXT: str,
    sql.TIME: _read_time,
    sql.TIMESTAMP: _read_timestamp,
    sql.TIMESTAMPTZ: _read_timestamptz,
}
