"""The queries of Nexmark in Pathway's table API. It runs in an environment without Evertide; others read the names.

1. Times are microseconds as integers, so windows are arithmetic. `id` is reserved in Pathway: it is `number` here.
2. A row that row_number() selects is the least of tuples, in the order of the query; ties are broken arbitrarily.
3. Python functions compute what Pathway's expressions do not support (the first ten of a group, a moving average).
4. Columns are in the order of the SQL, since results are compared by position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.peers.pathway_tables import AUCTION

_SECOND = 1_000_000
_HOUR = 3_600 * _SECOND
_DAY = 24 * _HOUR
_WINDOW = 10 * _SECOND
_SLIDE = 2 * _SECOND
_CHANNELS = ("apple", "google", "facebook", "baidu")
_ID = "channel_id="

Query = Callable[..., Any]
PATHWAY: dict[str, Query] = {}
"""By name: a function that takes Pathway's module and the tables, in the order of `READ`."""


def _query(made: Query) -> Query:
    PATHWAY[made.__name__] = made
    return made


@_query
def q0(_: Any, bid: Any) -> Any:
    return bid.select(*_of(bid, "auction bidder price dateTime extra"))


@_query
def q1(_: Any, bid: Any) -> Any:
    return bid.select(bid.auction, bid.bidder, price=0.908 * bid.price, dateTime=bid.dateTime, extra=bid.extra)


@_query
def q2(_: Any, bid: Any) -> Any:
    few = bid.filter(bid.auction % 123 == 0)
    return few.select(few.auction, few.price)


@_query
def q3(_: Any, auction: Any, person: Any) -> Any:
    a = auction.filter(auction.category == 10)
    p = person.filter((person.state == "OR") | (person.state == "ID") | (person.state == "CA"))
    return a.join(p, a.seller == p.number).select(p.name, p.city, p.state, a.number)


@_query
def q4(pw: Any, auction: Any, bid: Any) -> Any:
    won = _on_time(auction, bid, "number", "category")
    closed = won.groupby(won.number, won.category).reduce(won.category, final=pw.reducers.max(won.price))
    return closed.groupby(closed.category).reduce(closed.category, average=pw.reducers.avg(closed.final))


@_query
def q5(pw: Any, bid: Any) -> Any:
    last = bid.dateTime - bid.dateTime % _SLIDE
    starts = pw.make_tuple(*(last - back for back in range(0, _WINDOW, _SLIDE)))
    windows = bid.select(bid.auction, starttime=starts).flatten(pw.this.starttime)
    counts = windows.groupby(windows.auction, windows.starttime).reduce(
        windows.starttime, windows.auction, num=pw.reducers.count()
    )
    most = counts.groupby(counts.starttime).reduce(counts.starttime, maxn=pw.reducers.max(counts.num))
    return counts.join(most, counts.starttime == most.starttime, counts.num == most.maxn).select(
        counts.starttime, counts.auction, counts.num
    )


@_query
def q6(pw: Any, auction: Any, bid: Any) -> Any:
    won = _on_time(auction, bid, "number", "seller", "bid_dateTime")
    best = won.groupby(won.number, won.seller).reduce(
        won.number, won.seller, best=pw.reducers.min(pw.make_tuple(-won.price, won.bid_dateTime))
    )
    ended = best.select(best.seller, one=pw.make_tuple(best.best[1], best.number, -best.best[0]))
    sellers = ended.groupby(ended.seller).reduce(ended.seller, all=pw.reducers.sorted_tuple(ended.one))
    averages = pw.apply_with_type(_moving, list[tuple[int, float]], sellers.all)
    each = sellers.select(sellers.seller, one=averages).flatten(pw.this.one)
    return each.select(each.seller, number=each.one[0], average=each.one[1])


def _moving(ended: list[tuple[int, int, int]]) -> list[tuple[int, float]]:
    """The id of each row, and the average price of it and the nine rows before."""
    prices = [price for _, _, price in ended]
    return [(number, sum(prices[max(0, at - 9) : at + 1]) / min(10, at + 1)) for at, (_, number, _) in enumerate(ended)]


@_query
def q7(pw: Any, bid: Any) -> Any:
    windows = bid.select(bid.price, endtime=_start(bid.dateTime) + _WINDOW)
    highest = windows.groupby(windows.endtime).reduce(windows.endtime, maxprice=pw.reducers.max(windows.price))
    found = bid.join(highest, bid.price == highest.maxprice).select(
        *_of(bid, "auction price bidder dateTime extra"), highest.endtime
    )
    within = (found.dateTime >= found.endtime - _WINDOW) & (found.dateTime <= found.endtime)
    return found.filter(within).without(found.endtime)


@_query
def q8(_: Any, person: Any, auction: Any) -> Any:
    p = _once(person.select(person.number, person.name, starttime=_start(person.dateTime)))
    a = _once(auction.select(auction.seller, starttime=_start(auction.dateTime)))
    return p.join(a, p.number == a.seller, p.starttime == a.starttime).select(*_of(p, "number name starttime"))


@_query
def q9(pw: Any, auction: Any, bid: Any) -> Any:
    won = _on_time(auction, bid, "number", "bidder", "bid_dateTime", "bid_extra")
    order = pw.make_tuple(-won.price, won.bid_dateTime, won.bidder, won.bid_extra)
    best = won.groupby(won.number).reduce(won.number, best=pw.reducers.min(order))
    return auction.join(best, auction.number == best.number).select(
        *_of(auction, AUCTION),
        auction=auction.number,
        bidder=best.best[2],
        price=-best.best[0],
        bid_dateTime=best.best[1],
        bid_extra=best.best[3],
    )


@_query
def q12(pw: Any, bid: Any) -> Any:
    windows = bid.select(bid.bidder, starttime=_start(bid.dateTime))
    return windows.groupby(windows.bidder, windows.starttime).reduce(
        windows.bidder,
        bid_count=pw.reducers.count(),
        starttime=windows.starttime,
        endtime=windows.starttime + _WINDOW,
    )


@_query
def q13(_: Any, bid: Any, side: Any) -> Any:
    bids = bid.with_columns(key=bid.auction % 10_000)
    found = bids.join(side, bids.key == side.key)
    return found.select(*_of(bids, "auction bidder price dateTime"), side.value)


@_query
def q14(pw: Any, bid: Any) -> Any:
    prices = bid.with_columns(price=0.908 * bid.price, hour=bid.dateTime // _HOUR % 24)
    some = prices.filter((prices.price > 1_000_000) & (prices.price < 50_000_000))
    night = pw.if_else((some.hour <= 6) | (some.hour >= 20), "nightTime", "otherTime")
    return some.select(
        *_of(some, "auction bidder price"),
        bidTimeType=pw.if_else((some.hour >= 8) & (some.hour <= 18), "dayTime", night),
        dateTime=some.dateTime,
        extra=some.extra,
        c_counts=some.extra.str.count("c"),
    )


@_query
def q15(pw: Any, bid: Any) -> Any:
    days = _ranked(pw, bid, day=bid.dateTime // _DAY)
    return days.groupby(days.day).reduce(
        day=_day(days.day), **_counts(pw, days), **_distinct(pw, days, "bidder"), **_distinct(pw, days, "auction")
    )


@_query
def q16(pw: Any, bid: Any) -> Any:
    days = _ranked(pw, bid, day=bid.dateTime // _DAY)
    return days.groupby(days.channel, days.day).reduce(
        days.channel,
        day=_day(days.day),
        minute=pw.reducers.max(days.dateTime).dt.utc_from_timestamp("us").dt.strftime("%H:%M"),
        **_counts(pw, days),
        **_distinct(pw, days, "bidder"),
        **_distinct(pw, days, "auction"),
    )


@_query
def q17(pw: Any, bid: Any) -> Any:
    days = _ranked(pw, bid, day=bid.dateTime // _DAY)
    return days.groupby(days.auction, days.day).reduce(
        days.auction,
        day=_day(days.day),
        **_counts(pw, days),
        min_price=pw.reducers.min(days.price),
        max_price=pw.reducers.max(days.price),
        avg_price=pw.reducers.avg(days.price),
        sum_price=pw.reducers.sum(days.price),
    )


@_query
def q18(pw: Any, bid: Any) -> Any:
    order = pw.make_tuple(-bid.dateTime, -bid.price, bid.channel, bid.url, bid.extra)
    last = bid.groupby(bid.bidder, bid.auction).reduce(bid.auction, bid.bidder, best=pw.reducers.min(order))
    return last.select(
        last.auction,
        last.bidder,
        price=-last.best[1],
        channel=last.best[2],
        url=last.best[3],
        dateTime=-last.best[0],
        extra=last.best[4],
    )


@_query
def q19(pw: Any, bid: Any) -> Any:
    order = pw.make_tuple(-bid.price, bid.dateTime, bid.bidder, bid.channel, bid.url, bid.extra)
    auctions = bid.groupby(bid.auction).reduce(bid.auction, all=pw.reducers.sorted_tuple(order))
    kind = list[tuple[int, int, int, int, str, str, str]]
    each = auctions.select(auctions.auction, one=pw.apply_with_type(_first_ten, kind, auctions.all))
    ranked = each.flatten(pw.this.one)
    return ranked.select(
        ranked.auction,
        bidder=ranked.one[3],
        price=-ranked.one[1],
        channel=ranked.one[4],
        url=ranked.one[5],
        dateTime=ranked.one[2],
        extra=ranked.one[6],
        rank_number=ranked.one[0],
    )


def _first_ten(ordered: tuple[tuple[Any, ...], ...]) -> list[tuple[Any, ...]]:
    return [(place, *one) for place, one in enumerate(ordered[:10], 1)]


@_query
def q20(_: Any, bid: Any, auction: Any) -> Any:
    a = auction.filter(auction.category == 10)
    return bid.join(a, bid.auction == a.number).select(
        *_of(bid, "auction bidder price channel url"),
        bid_dateTime=bid.dateTime,
        bid_extra=bid.extra,
        **{name: a[name] for name in ("itemName", "description", "initialBid", "reserve")},
        auction_dateTime=a.dateTime,
        **{name: a[name] for name in ("expires", "seller", "category")},
        auction_extra=a.extra,
    )


@_query
def q21(pw: Any, bid: Any) -> Any:
    all_bids = bid.with_columns(channel_id=pw.apply_with_type(_channel_id, str, bid.channel, bid.url))
    some = all_bids.filter(all_bids.channel_id != "")
    return some.select(*_of(some, "auction bidder price channel channel_id"))


def _channel_id(channel: str, url: str) -> str:
    """The number of one of four channels; otherwise the id in the URL, or an empty text."""
    if channel.lower() in _CHANNELS:
        return str(_CHANNELS.index(channel.lower()))
    return next((part.removeprefix(_ID) for part in url.split("&") if part.startswith(_ID)), "")


@_query
def q22(pw: Any, bid: Any) -> Any:
    split = bid.with_columns(parts=pw.apply_with_type(_folders, tuple[str, str, str], bid.url))
    dirs = {f"dir{number + 1}": split.parts[number] for number in range(3)}
    return split.select(*_of(split, "auction bidder price channel"), **dirs)


def _folders(url: str) -> tuple[str, ...]:
    return tuple([*url.split("/", 6), "", "", ""][3:6])


# Shared parts


def _of(table: Any, names: str) -> list[Any]:
    return [table[name] for name in names.split()]


def _start(instant: Any) -> Any:
    return instant - instant % _WINDOW


def _once(table: Any) -> Any:
    """The distinct rows."""
    columns = _of(table, " ".join(table.column_names()))
    return table.groupby(*columns).reduce(*columns)


def _on_time(auction: Any, bid: Any, *columns: str) -> Any:
    """Bids joined with the auction that was open at their time: the price, and these columns."""
    both = auction.join(bid, auction.number == bid.auction)
    both = both.filter((bid.dateTime >= auction.dateTime) & (bid.dateTime <= auction.expires))
    of_bid = {"bid_dateTime": "dateTime", "bid_extra": "extra", "bidder": "bidder"}
    picked = {name: bid[of_bid[name]] if name in of_bid else auction[name] for name in columns}
    return both.select(price=bid.price, **picked)


def _ranked(pw: Any, bid: Any, **columns: Any) -> Any:
    """Add columns with 1 for the rank of the price, and 0 for the other ranks."""
    return bid.with_columns(
        rank1=pw.cast(int, bid.price < 10_000),
        rank2=pw.cast(int, (bid.price >= 10_000) & (bid.price < 1_000_000)),
        rank3=pw.cast(int, bid.price >= 1_000_000),
        **columns,
    )


def _counts(pw: Any, days: Any) -> dict[str, Any]:
    ranks = {f"rank{rank}_bids": pw.reducers.sum(days[f"rank{rank}"]) for rank in (1, 2, 3)}
    return {"total_bids": pw.reducers.count(), **ranks}


def _distinct(pw: Any, days: Any, name: str) -> dict[str, Any]:
    """Distinct counts per rank: rows of other ranks count as one value, which is subtracted."""
    found = {f"total_{name}s": pw.reducers.count_distinct(days[name])}
    for rank in (1, 2, 3):
        is_of = days[f"rank{rank}"]
        several = pw.reducers.count_distinct(pw.if_else(is_of == 1, days[name], -1))
        found[f"rank{rank}_{name}s"] = several - pw.reducers.max(1 - is_of)
    return found


def _day(number: Any) -> Any:
    return (number * _DAY).dt.utc_from_timestamp("us").dt.strftime("%Y-%m-%d")
