"""Generates transactions over the Nexmark tables, with the updates and deletions that a stream of events lacks.

1. The first transaction fills the side input and inserts events; each further one inserts more.
2. Bids are deleted, duplicated, moved to another auction or bidder, and raised; texts of some become NULL.
3. Auctions change category, seller, reserve and end; some are deleted while their bids stay, and inserted again.
4. Persons move and are renamed; some are deleted, and inserted again. Rows of the side input change as well.
5. Some transactions only delete, one inserts much more than the others, and some are empty.

All depends only on the seeds of the generator and of `transactions`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from evertide.sources.generated.nexmark_events import SCHEMAS, Nexmark
from tests.kit.ledger import Ledger, Transaction, changed, sample
from tests.kit.runtime import RandomStream

_SIDE_INPUT_ROWS = 1100
"""Auctions are numbered from 1000: so some find a value, and later ones do not."""


def transactions(
    generator: Nexmark, seed: int, *, count: int = 24, events_each: int = 200, first: int = 0
) -> Iterator[Transaction]:
    """Generate transactions, each with a delta per changed table."""
    house = _House(generator, seed, events_each, first)
    for number in range(count):
        yield house.opening() if number == 0 else house.turn(number)


class _House:
    def __init__(self, generator: Nexmark, seed: int, events_each: int, first: int) -> None:
        self._generator = generator
        self._chance = RandomStream(seed)
        self._events_each = events_each
        self._next = first
        self._ledger = Ledger(SCHEMAS)
        self._gone: dict[str, pa.Table] = {name: SCHEMAS[name].empty_table() for name in ("person", "auction")}
        self._turns: tuple[Callable[[], None], ...] = (
            lambda: self._borrow("bid", 8, "auction"),
            lambda: self._borrow("auction", 3, "category", "reserve"),
            lambda: self._borrow("person", 2, "state", "city"),
            self._bid_twice,
            lambda: self._vanish("auction", 2),
            lambda: self._borrow("bid", 8, "price", "bidder"),
            lambda: self._borrow("auction", 3, "seller"),
            lambda: self._vanish("person", 2),
            lambda: self._borrow("side_input", 50, "value"),
            self._lose_texts,
            lambda: self._come_back("auction"),
            lambda: self._borrow("bid", 8, "dateTime", "channel", "url"),
            lambda: self._borrow("auction", 3, "expires", "dateTime"),
            lambda: self._borrow("person", 2, "name", "dateTime"),
            lambda: self._come_back("person"),
            self._change_side_input,
        )

    def opening(self) -> Transaction:
        self._ledger.insert("side_input", self._generator.side_input(_SIDE_INPUT_ROWS))
        self._bring(self._events_each)
        return self._ledger.commit()

    def turn(self, number: int) -> Transaction:
        if number % 9 == 6:
            return {}
        if number % 5 != 4:
            self._bring(self._events_each * (8 if number == 10 else 1))
        self._withdraw(self._events_each // 4 if number % 5 == 4 else 5)
        for turn in range(3 * number, 3 * number + 3):
            self._turns[turn % len(self._turns)]()
        return self._ledger.commit()

    def _bring(self, count: int) -> None:
        events = self._generator.events(self._next, count)
        self._next += count
        self._ledger.insert("person", events.person)
        self._ledger.insert("auction", events.auction)
        self._ledger.insert("bid", events.bid)

    def _some(self, table: str, rows: int) -> list[int]:
        return sample(self._chance, self._ledger.rows(table).num_rows, rows)

    def _withdraw(self, rows: int) -> None:
        self._ledger.delete("bid", self._some("bid", rows))

    def _bid_twice(self) -> None:
        """Duplicate bids: a bid has no key."""
        bids = self._ledger.rows("bid").take(pa.array(self._some("bid", 5), pa.int64()))
        self._ledger.insert("bid", bids)

    def _borrow(self, table: str, rows: int, *columns: str) -> None:
        """Update some rows with values of others, so that all values remain likely."""
        old = self._ledger.delete(table, self._some(table, rows))
        held = self._ledger.rows(table)
        donors = held.take(pa.array([self._chance.below(held.num_rows) for _ in range(old.num_rows)], pa.int64()))
        self._ledger.insert(table, changed(old, **{column: donors.column(column) for column in columns}))

    def _lose_texts(self) -> None:
        old = self._ledger.delete("bid", self._some("bid", 4))
        self._ledger.insert("bid", changed(old, extra=None, url=None, channel=None))

    def _vanish(self, table: str, rows: int) -> None:
        gone = self._ledger.delete(table, self._some(table, rows))
        self._gone[table] = pa.concat_tables([self._gone[table], gone])

    def _come_back(self, table: str) -> None:
        self._ledger.insert(table, self._gone[table])
        self._gone[table] = SCHEMAS[table].empty_table()

    def _change_side_input(self) -> None:
        """Delete some keys, and insert one after the last."""
        self._ledger.delete("side_input", self._some("side_input", 20))
        last = max(self._ledger.rows("side_input").column("key").to_pylist())
        self._ledger.insert("side_input", pa.table({"key": [last + 1], "value": [None]}, schema=SCHEMAS["side_input"]))
