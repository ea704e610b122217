"""Sums and differences of dates, times and intervals, and time zone conversion.

1. The difference of two moments is an interval of days and time; a moment plus an interval is a moment (`calendar`).
2. Zones are the full names of the IANA database, and UTC. Abbreviations and offsets are refused: in PostgreSQL, "+02"
   as a zone name means west of Greenwich, and CET is ambiguous. An ambiguous local time is the later of the two; a
   skipped one is converted with the offset from before the clock change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from evertide.pgexpr.expressions import Operation
from evertide.pgexpr.types.calendar import (
    DAY_US,
    Interval,
    add_interval,
    check_date,
    check_interval,
    check_moment,
    justify_days,
    justify_hours,
    justify_interval,
)
from evertide.pgexpr.types.sqltypes import DATE, INT4, INTERVAL, TIME, TIMESTAMP, TIMESTAMPTZ, SqlType

_ZONE = re.compile(r"[A-Za-z_]+(?:/[A-Za-z0-9_+\-]+)+")
_BEYOND = "years before 1 and after 9999 have no zones here"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _negate(span: Interval) -> Interval:
    return check_interval(-span[0], -span[1], -span[2])


def _add(left: Interval, right: Interval) -> Interval:
    return check_interval(left[0] + right[0], left[1] + right[1], left[2] + right[2])


def _subtract_moments(left: int, right: int) -> Interval:
    return justify_hours((0, 0, left - right))


def _add_to_day(day: int, span: Interval) -> int:
    return add_interval(check_moment(day * DAY_US), span)


def _combine_moment(day: int, clock: int) -> int:
    return check_moment(day * DAY_US + clock)


def _add_to_clock(clock: int, span: Interval) -> int:
    return (clock + span[2]) % DAY_US


_Sum = tuple[SqlType, Callable[[Any, Any], Any]]
_ADDITIONS: dict[tuple[SqlType, SqlType], _Sum] = {
    (DATE, INT4): (DATE, lambda day, days: check_date(day + days)),
    (DATE, TIME): (TIMESTAMP, _combine_moment),
    (DATE, INTERVAL): (TIMESTAMP, _add_to_day),
    (TIMESTAMP, INTERVAL): (TIMESTAMP, add_interval),
    (TIMESTAMPTZ, INTERVAL): (TIMESTAMPTZ, add_interval),
    (TIME, INTERVAL): (TIME, _add_to_clock),
}
_SUBTRACTIONS: dict[tuple[SqlType, SqlType], _Sum] = {
    (DATE, INT4): (DATE, lambda day, days: check_date(day - days)),
    (DATE, DATE): (INT4, lambda left, right: left - right),
    (DATE, INTERVAL): (TIMESTAMP, lambda day, span: _add_to_day(day, _negate(span))),
    (TIMESTAMP, INTERVAL): (TIMESTAMP, lambda moment, span: add_interval(moment, _negate(span))),
    (TIMESTAMPTZ, INTERVAL): (TIMESTAMPTZ, lambda moment, span: add_interval(moment, _negate(span))),
    (TIMESTAMP, TIMESTAMP): (INTERVAL, _subtract_moments),
    (TIMESTAMPTZ, TIMESTAMPTZ): (INTERVAL, _subtract_moments),
    (TIME, INTERVAL): (TIME, lambda clock, span: (clock - span[2]) % DAY_US),
    (TIME, TIME): (INTERVAL, lambda left, right: (0, 0, left - right)),
    (INTERVAL, INTERVAL): (INTERVAL, lambda left, right: _add(left, _negate(right))),
}


def _swap_sides(addition: _Sum) -> _Sum:
    return addition[0], lambda left, right: addition[1](right, left)


_SUMS = {
    **{("+", *kinds): addition for kinds, addition in _ADDITIONS.items()},
    **{("+", right, left): _swap_sides(addition) for (left, right), addition in _ADDITIONS.items()},
    **{("-", *kinds): subtraction for kinds, subtraction in _SUBTRACTIONS.items()},
    ("+", INTERVAL, INTERVAL): (INTERVAL, _add),
}


def sum_operation(name: str, left: SqlType, right: SqlType) -> Operation | None:
    entry = _SUMS.get((name, left, right))
    return entry and Operation(name, entry[0], f"({{0}} {name} {{1}})", entry[1])


NEGATE = Operation("-", INTERVAL, "(- {0})", _negate)
JUSTIFY = {
    name: Operation(name, INTERVAL, f"{name}({{0}})", scalar)
    for name, scalar in (
        ("justify_days", justify_days),
        ("justify_hours", justify_hours),
        ("justify_interval", justify_interval),
    )
}


def zone_operation(kind: SqlType) -> Operation:
    """`timezone(zone, moment)`: local time to a moment (timestamp), or a moment to local time (timestamptz)."""
    scalar, result = (_from_local, TIMESTAMPTZ) if kind == TIMESTAMP else (_to_local, TIMESTAMP)
    return Operation("timezone", result, "timezone({0}, {1})", scalar)


def _from_local(zone: str, moment: int) -> int:
    local = _datetime(moment).replace(tzinfo=_zone(zone))
    return check_moment(moment - min(_offset(local), _offset(local.replace(fold=1))))


def _to_local(zone: str, moment: int) -> int:
    try:
        local = _datetime(moment).astimezone(_zone(zone))
    except OverflowError:
        raise ArithmeticError(_BEYOND) from None
    return check_moment(moment + _offset(local))


def _offset(local: datetime) -> int:
    return (local.utcoffset() or timedelta()) // timedelta(microseconds=1)


def _datetime(moment: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=moment)
    except OverflowError:
        raise ArithmeticError(_BEYOND) from None


@lru_cache(maxsize=1024)
def _zone(name: str) -> Any:
    if name.upper() in ("UTC", "GMT"):
        return UTC
    try:
        if _ZONE.fullmatch(name):
            return ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # missing, a directory, or not a zone file
        pass
    raise ArithmeticError(f"{name!r} is not a time zone; expected a name such as 'Europe/Berlin' or 'UTC'")
