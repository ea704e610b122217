"""Date, timestamp and interval arithmetic on integers, for every year that PostgreSQL supports.

1. A date is a number of days since 1970-01-01, a moment a number of microseconds since then, a time of day a number of
   microseconds since midnight. The calendar is the proleptic Gregorian calendar. Year 0 is 1 BC.
2. An interval is (months, days, microseconds). The three numbers are converted into each other only in comparisons
   (`interval_order`: a month has 30 days, a day 24 hours) and by `justify_*`.
3. A result outside PostgreSQL's own range raises `ArithmeticError`.
"""

from __future__ import annotations

from typing import Final

DAY_US: Final = 86_400_000_000
Interval = tuple[int, int, int]

_DATES = (-4713, 5_874_897)
_MOMENTS = (-4713, 294_276)
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EPOCH = 719_468
"""Days from 0000-03-01 to 1970-01-01."""
_ERA_DAYS = 146_097
_ERA_YEARS = 400


def count_month_days(year: int, month: int) -> int:
    is_leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % _ERA_YEARS == 0)
    return _MONTH_DAYS[month - 1] + is_leap


def count_days(year: int, month: int, day: int) -> int:
    """Days since 1970. Internally a year begins in March, so that the leap day is its last day."""
    year -= month <= 2
    era, of_era = divmod(year, _ERA_YEARS)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * _ERA_DAYS + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _EPOCH


def find_date(days: int) -> tuple[int, int, int]:
    """(year, month, day) of a number of days since 1970."""
    era, of_era = divmod(days + _EPOCH, _ERA_DAYS)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    return year + era * _ERA_YEARS + (month <= 2), month, day


_FIRST_DAY = count_days(-4713, 11, 24)
_LAST_DAY = count_days(_DATES[1] + 1, 1, 1) - 1
_FIRST_MOMENT = _FIRST_DAY * DAY_US
_LAST_MOMENT = count_days(_MOMENTS[1] + 1, 1, 1) * DAY_US - 1


def check_date(days: int) -> int:
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise ArithmeticError("date out of range")
    return days


def check_moment(moment: int) -> int:
    if not _FIRST_MOMENT <= moment <= _LAST_MOMENT:
        raise ArithmeticError("timestamp out of range")
    return moment


def check_interval(months: int, days: int, micros: int) -> Interval:
    fits = -(1 << 31) <= months < 1 << 31 and -(1 << 31) <= days < 1 << 31 and -(1 << 63) <= micros < 1 << 63
    if not fits:
        raise ArithmeticError("interval out of range")
    return months, days, micros


def add_interval(moment: int, span: Interval) -> int:
    """Add months first (keeping the day, or the last day of a shorter month), then days, then microseconds."""
    months, days, micros = span
    if months:
        day, clock = divmod(moment, DAY_US)
        year, month, of_month = find_date(day)
        years, month = divmod(month - 1 + months, 12)
        year, month = year + years, month + 1
        moment = check_moment(count_days(year, month, min(of_month, count_month_days(year, month))) * DAY_US + clock)
    return check_moment(check_moment(moment + days * DAY_US) + micros)


def interval_order(span: Interval) -> int:
    months, days, micros = span
    return (months * 30 + days) * DAY_US + micros


def justify_hours(span: Interval) -> Interval:
    months, days, micros = span
    more, micros = _truncate(micros, DAY_US)
    return check_interval(months, *_align_signs(days + more, micros, DAY_US))


def justify_days(span: Interval) -> Interval:
    months, days, micros = span
    more, days = _truncate(days, 30)
    return check_interval(*_align_signs(months + more, days, 30), micros)


def justify_interval(span: Interval) -> Interval:
    months, days, micros = span
    more, micros = _truncate(micros, DAY_US)
    days += more
    more, days = _truncate(days, 30)
    months += more
    if months > 0 and (days < 0 or (days == 0 and micros < 0)):
        months, days = months - 1, days + 30
    elif months < 0 and (days > 0 or (days == 0 and micros > 0)):
        months, days = months + 1, days - 30
    return check_interval(months, *_align_signs(days, micros, DAY_US))


def _truncate(number: int, by: int) -> tuple[int, int]:
    """(quotient rounded towards zero, remainder)."""
    whole = abs(number) // by * (1 if number >= 0 else -1)
    return whole, number - whole * by


def _align_signs(large: int, small: int, by: int) -> tuple[int, int]:
    if large > 0 > small:
        return large - 1, small + by
    if large < 0 < small:
        return large + 1, small - by
    return large, small
