"""Generate the events of the Nexmark benchmark by number: a seed and a number determine an event, in any batch.

Of every 50 events the first is a person, the next three are auctions, the other 46 are bids. An event is a function of
(seed, number): a hash gives its random bits, and its references follow from the number of persons and auctions before
it. So any range of events can be generated on any machine, and nothing is stored. As in the benchmark's own generator:

1. Ids count up from 1000. Time advances evenly, by `events_per_s`, in whole milliseconds.
2. Every second bid is for the hot auction, the first of the last hundred; the others are for one of the last hundred,
   or for one of the next ten, which do not exist yet.
3. Three of four bids are by the hot bidder, the second of the last hundred persons; three of four auctions are by the
   hot seller, the first of them; the others are by one of the last thousand persons or the next ten.
4. The logarithm of prices is distributed evenly, from 100 to 100 million.
5. An auction is open for about the time in which a hundred more arrive, at most twice that.
6. Every second bid has one of four channels, the others one of ten thousand, of which nine in ten have an id in their
   address.

Texts are shorter than the benchmark's, and chosen from pools, so that the time to generate them does not dominate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.rows.columns import Longs
from evertide.sources.generated.seeded import RandomStream, hash_numbers

_CYCLE = 50
_AUCTIONS = 3
_FIRST_ID = 1000
_FIRST_CATEGORY = 10
_CATEGORIES = 5
_HOT_EVERY = 100
_IN_FLIGHT = 100
_ACTIVE = 1000
_LEAD = 10
_START_MS = 1_767_225_600_000  # 2026-01-01 00:00:00 UTC
_PRICE_BITS = 18

_TIME = pa.timestamp("us", "UTC")


def _schema(required: Sequence[tuple[str, pa.DataType]], optional: Sequence[str], order: Sequence[str]) -> pa.Schema:
    fields = {name: pa.field(name, kind, nullable=False) for name, kind in required}
    fields |= {name: pa.field(name, pa.string()) for name in optional}
    return pa.schema([fields[name] for name in order])


SCHEMAS: dict[str, pa.Schema] = {
    "person": _schema(
        [("id", pa.int64()), ("dateTime", _TIME)],
        ["name", "emailAddress", "creditCard", "city", "state", "extra"],
        ["id", "name", "emailAddress", "creditCard", "city", "state", "dateTime", "extra"],
    ),
    "auction": _schema(
        [
            *((name, pa.int64()) for name in ("id", "initialBid", "reserve", "seller", "category")),
            *((name, _TIME) for name in ("dateTime", "expires")),
        ],
        ["itemName", "description", "extra"],
        [
            "id",
            "itemName",
            "description",
            "initialBid",
            "reserve",
            "dateTime",
            "expires",
            "seller",
            "category",
            "extra",
        ],
    ),
    "bid": _schema(
        [("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()), ("dateTime", _TIME)],
        ["channel", "url", "extra"],
        ["auction", "bidder", "price", "channel", "url", "dateTime", "extra"],
    ),
    "side_input": _schema([("key", pa.int64())], ["value"], ["key", "value"]),
}
"""The columns of the benchmark's tables."""


@dataclass(frozen=True, slots=True)
class Events:
    """The new rows of each table."""

    person: pa.Table
    auction: pa.Table
    bid: pa.Table


@dataclass(frozen=True)
class Nexmark:
    """The event stream of a seed. The first use generates the pools of texts, which takes about 0.1 s."""

    seed: int = 0
    events_per_s: int = 10_000

    def events(self, first: int, count: int) -> Events:
        """The events with numbers in [first, first + count)."""
        numbers = np.arange(first, first + count, dtype=np.int64)
        place = numbers % _CYCLE
        is_bid = place > _AUCTIONS
        return Events(
            person=self._persons(numbers[place == 0]),
            auction=self._auctions(numbers[(place > 0) & ~is_bid]),
            bid=self._bids(numbers[is_bid]),
        )

    def side_input(self, rows: int = 10_000) -> pa.Table:
        """Keys from 0. q13 joins them with the last four digits of a bid's auction."""
        keys = pa.array(np.arange(rows, dtype=np.int64))
        return pa.Table.from_arrays([keys, keys.cast(pa.string())], schema=SCHEMAS["side_input"])

    def _persons(self, numbers: Longs) -> pa.Table:
        draw, draw_more = self._draws(numbers, 0), self._draws(numbers, 1)
        name = pc.binary_join_element_wise(_FIRST_NAMES.take(draw(8, 11)), _LAST_NAMES.take(draw(8, 9)), " ")
        city, state = _CITIES.take(draw(8, 10)), _STATES.take(draw(8, 6))
        extra = self._extras.take(draw(12, len(self._extras)))
        email = pc.binary_join_element_wise(self._extras.take(draw(12, len(self._extras))), "example.com", "@")
        card = pa.array(draw_more(20, 10_000)).cast(pa.string())
        ids = numbers // _CYCLE + _FIRST_ID
        columns = [pa.array(ids), name, email, card, city, state, self._times(numbers), extra]
        return pa.Table.from_arrays(columns, schema=SCHEMAS["person"])

    def _auctions(self, numbers: Longs) -> pa.Table:
        draw, draw_more = self._draws(numbers, 2), self._draws(numbers, 3)
        persons, ids = numbers // _CYCLE, numbers // _CYCLE * _AUCTIONS + numbers % _CYCLE - 1
        hot = persons // _HOT_EVERY * _HOT_EVERY
        seller = np.where(draw(2, 4) > 0, hot, self._draw_active(persons, draw))
        first_bid = _PRICES.take(draw(_PRICE_BITS, len(_PRICES)))
        reserve = first_bid + _PRICES.take(draw_more(_PRICE_BITS, len(_PRICES)))
        horizon_ms = _IN_FLIGHT * _CYCLE * 1000 // (_AUCTIONS * self.events_per_s)
        open_ms = 1 + draw_more(20, max(1, 2 * horizon_ms))
        columns = [
            pa.array(ids + _FIRST_ID),
            self._extras.take(draw_more(12, len(self._extras))),
            self._descriptions.take(draw_more(12, len(self._descriptions))),
            pa.array(first_bid),
            pa.array(reserve),
            self._times(numbers),
            self._times(numbers, open_ms),
            pa.array(seller + _FIRST_ID),
            pa.array(_FIRST_CATEGORY + draw(8, _CATEGORIES)),
            self._extras.take(draw(12, len(self._extras))),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMAS["auction"])

    def _bids(self, numbers: Longs) -> pa.Table:
        draw, draw_more = self._draws(numbers, 4), self._draws(numbers, 5)
        persons = numbers // _CYCLE
        last = persons * _AUCTIONS + _AUCTIONS - 1
        lowest = np.maximum(last - _IN_FLIGHT, 0)
        any_auction = lowest + draw(20, last - lowest + 1 + _LEAD)
        auction = np.where(draw(1, 2) > 0, last // _HOT_EVERY * _HOT_EVERY, any_auction)
        hot = persons // _HOT_EVERY * _HOT_EVERY + 1
        bidder = np.where(draw(2, 4) > 0, hot, self._draw_active(persons, draw))
        channels, urls = self._channels
        some_channel = 4 + draw_more(16, len(channels) - 4)
        channel = pa.array(np.where(draw(1, 2) > 0, draw_more(2, 4), some_channel))
        columns = [
            pa.array(auction + _FIRST_ID),
            pa.array(bidder + _FIRST_ID),
            pa.array(_PRICES.take(draw_more(_PRICE_BITS, len(_PRICES)))),
            channels.take(channel),
            urls.take(channel),
            self._times(numbers),
            self._extras.take(draw_more(12, len(self._extras))),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMAS["bid"])

    def _draw_active(self, persons: Longs, draw: Callable[[int, int | Longs], Longs]) -> Longs:
        """One of the last thousand persons, or of the next ten."""
        active = np.minimum(persons + 1, _ACTIVE)
        found: Longs = persons + 1 - active + draw(20, active + _LEAD)
        return found

    def _times(self, numbers: Longs, later_ms: Longs | int = 0) -> pa.Array:
        milliseconds = _START_MS + numbers * 1000 // self.events_per_s + later_ms
        return pa.array(milliseconds * 1000).cast(pa.timestamp("us")).cast(_TIME)

    def _draws(self, numbers: Longs, stream: int) -> Callable[[int, int | Longs], Longs]:
        """The returned `draw(bits, limit)` is in [0, limit) for each number, and consumes that many of 64 bits."""
        words = hash_numbers(numbers, RandomStream(self.seed).fork(stream).bits())
        used = 0

        def draw(bits: int, limit: int | Longs) -> Longs:
            nonlocal used
            taken = (words >> np.uint64(used)) & np.uint64((1 << bits) - 1)
            used += bits
            if used > 64:
                raise AssertionError("an event consumes more bits than its hash has")
            return (taken.view(np.int64) * limit) >> bits

        return draw

    @cached_property
    def _extras(self) -> pa.Array:
        return _texts(RandomStream(self.seed).fork(10), 4096, 10)

    @cached_property
    def _descriptions(self) -> pa.Array:
        return _texts(RandomStream(self.seed).fork(11), 4096, 20)

    @cached_property
    def _channels(self) -> tuple[pa.Array, pa.Array]:
        """Names and addresses of the four hot channels, and then of ten thousand others."""
        stream = RandomStream(self.seed).fork(12)
        names = ["Google", "Facebook", "Baidu", "Apple", *(f"channel-{number}" for number in range(10_000))]
        folders = _texts(stream, 3 * len(names), 5).to_pylist()
        urls = ["https://nexmark.example/" + "/".join(folders[3 * i : 3 * i + 3]) for i in range(len(names))]
        ends = ["item.htm?query=1"] * 4 + [
            f"item.htm?query=1{f'&channel_id={stream.below(1 << 31)}' if stream.below(10) else ''}"
            for _ in range(10_000)
        ]
        return pa.array(names), pa.array([f"{url}/{end}" for url, end in zip(urls, ends, strict=True)])


def _texts(stream: RandomStream, count: int, length_max: int) -> pa.Array:
    """Texts of lower-case letters, with lengths from `length_max` / 2 to `length_max`."""
    half = length_max // 2
    lengths = [half + stream.below(length_max - half + 1) for _ in range(count)]
    return pa.array(["".join(_letters(stream, length)) for length in lengths])


def _letters(stream: RandomStream, length: int) -> list[str]:
    """Each 64 bits give twelve letters, as 26^12 is below 2^57."""
    letters: list[str] = []
    while len(letters) < length:
        bits = stream.bits()
        for _ in range(12):
            bits, letter = divmod(bits, 26)
            letters.append(chr(ord("a") + letter))
    return letters[:length]


_PRICES: Longs = np.array(
    [round(100 * 10 ** (6 * step / (1 << _PRICE_BITS))) for step in range(1 << _PRICE_BITS)], np.int64
)
"""A precomputed table, as powers of floats may differ between machines."""
_FIRST_NAMES = pa.array(
    ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
)
_LAST_NAMES = pa.array(["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"])
_CITIES = pa.array(
    ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"]
)
_STATES = pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
