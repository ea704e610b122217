"""Dates, times and intervals: sums, differences, time zones.

1. Two moments differ by days and time; a moment and an interval make a moment, see `calendar`.
2. Zones are those of the IANA database, by their full names, and UTC. Abbreviations and offsets are refused: "+02"
   means west of Greenwich there, and CET is not what people think. A local time that is there twice is the later one,
   one that is skipped counts from before the clocks moved.
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
    checked_date,
    checked_interval,
    checked_moment,
    justified_days,
    justified_hours,
    justified_interval,
    moved,
)
from evertide.pgexpr.types.sqltypes import DATE, INT4, INTERVAL, TIME, TIMESTAMP, TIMESTAMPTZ, SqlType

__all__ = ["JUSTIFIED", "NEGATED", "sums", "zoned"]

_ZONE = re.compile(r"[A-Za-z_]+(?:/[A-Za-z0-9_+\-]+)+")
_BEYOND = "years before 1 and after 9999 have no zones here"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _turned(span: Interval) -> Interval:
    return checked_interval(-span[0], -span[1], -span[2])


def _together(left: Interval, right: Interval) -> Interval:
    return checked_interval(left[0] + right[0], left[1] + right[1], left[2] + right[2])


def _between(left: int, right: int) -> Interval:
    return justified_hours((0, 0, left - right))


def _day_moved(day: int, span: Interval) -> int:
    return moved(checked_moment(day * DAY_US), span)


def _at(day: int, clock: int) -> int:
    return checked_moment(day * DAY_US + clock)


def _clock_moved(clock: int, span: Interval) -> int:
    return (clock + span[2]) % DAY_US


_Sum = tuple[SqlType, Callable[[Any, Any], Any]]
_ADDED: dict[tuple[SqlType, SqlType], _Sum] = {
    (DATE, INT4): (DATE, lambda day, days: checked_date(day + days)),
    (DATE, TIME): (TIMESTAMP, _at),
    (DATE, INTERVAL): (TIMESTAMP, _day_moved),
    (TIMESTAMP, INTERVAL): (TIMESTAMP, moved),
    (TIMESTAMPTZ, INTERVAL): (TIMESTAMPTZ, moved),
    (TIME, INTERVAL): (TIME, _clock_moved),
}
_TAKEN: dict[tuple[SqlType, SqlType], _Sum] = {
    (DATE, INT4): (DATE, lambda day, days: checked_date(day - days)),
    (DATE, DATE): (INT4, lambda left, right: left - right),
    (DATE, INTERVAL): (TIMESTAMP, lambda day, span: _day_moved(day, _turned(span))),
    (TIMESTAMP, INTERVAL): (TIMESTAMP, lambda moment, span: moved(moment, _turned(span))),
    (TIMESTAMPTZ, INTERVAL): (TIMESTAMPTZ, lambda moment, span: moved(moment, _turned(span))),
    (TIMESTAMP, TIMESTAMP): (INTERVAL, _between),
    (TIMESTAMPTZ, TIMESTAMPTZ): (INTERVAL, _between),
    (TIME, INTERVAL): (TIME, lambda clock, span: (clock - span[2]) % DAY_US),
    (TIME, TIME): (INTERVAL, lambda left, right: (0, 0, left - right)),
    (INTERVAL, INTERVAL): (INTERVAL, lambda left, right: _together(left, _turned(right))),
}


def _turned_around(added: _Sum) -> _Sum:
    return added[0], lambda left, right: added[1](right, left)


_SUMS = {
    **{("+", *kinds): added for kinds, added in _ADDED.items()},
    **{("+", right, left): _turned_around(added) for (left, right), added in _ADDED.items()},
    **{("-", *kinds): taken for kinds, taken in _TAKEN.items()},
    ("+", INTERVAL, INTERVAL): (INTERVAL, _together),
}


def sums(name: str, left: SqlType, right: SqlType) -> Operation | None:
    found = _SUMS.get((name, left, right))
    return found and Operation(name, found[0], f"({{0}} {name} {{1}})", found[1])


NEGATED = Operation("-", INTERVAL, "(- {0})", _turned)
JUSTIFIED = {
    name: Operation(name, INTERVAL, f"{name}({{0}})", scalar)
    for name, scalar in (
        ("justify_days", justified_days),
        ("justify_hours", justified_hours),
        ("justify_interval", justified_interval),
    )
}


def zoned(kind: SqlType) -> Operation:
    """`timezone(zone, moment)`: local time to a moment (timestamp), or a moment to local time (timestamptz)."""
    scalar, result = (_from_local, TIMESTAMPTZ) if kind == TIMESTAMP else (_to_local, TIMESTAMP)
    return Operation("timezone", result, "timezone({0}, {1})", scalar)


def _from_local(zone: str, moment: int) -> int:
    local = _datetime(moment).replace(tzinfo=_zone(zone))
    return checked_moment(moment - min(_offset(local), _offset(local.replace(fold=1))))


def _to_local(zone: str, moment: int) -> int:
    try:
        local = _datetime(moment).astimezone(_zone(zone))
    except OverflowError:
        raise ArithmeticError(_BEYOND) from None
    return checked_moment(moment + _offset(local))


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
    except (KeyError, OSError, ValueError):  # not there, or a directory, or no zone
        pass
    raise ArithmeticError(f"{name!r} is no time zone such as 'Europe/Berlin' or 'UTC'")
