"""Generates transactions over the TPC-H tables, like the standard's refresh functions, but harder; all from a seed.

1. The first transaction loads all tables, except for some orders and their lines that are held back.
2. Each further one inserts held-back orders with their lines (RF1) and deletes others with theirs (RF2), which may
   be inserted again later.
3. In turn, rows of each table are updated. An updated row gets values of another row of its table: so joins find other
   partners, groups and orders change, and all values remain ones that the queries select.
4. Some turns are harder: customers are deleted while their orders stay, and inserted again; an order changes its key;
   nations and regions swap names; nothing changes; a tenth of all orders is deleted at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count, cycle, islice

import pyarrow as pa

from tests.kit.ledger import Ledger, Transaction, changed, delta_of, sample
from tests.kit.runtime import RandomStream

_NEW_KEYS_FROM = 100_000_000
"""Above all order keys at the scales that tests use."""


def refreshes(
    tables: Mapping[str, pa.Table], seed: int, *, transactions: int = 24, orders_each: int = 10
) -> Iterator[Transaction]:
    """Generate the load and further transactions, each with a delta per changed table."""
    refresh = _Refresh(tables, seed, orders_each)
    for number in range(transactions):
        yield refresh.load() if number == 0 else refresh.turn(number)


class _Refresh:
    def __init__(self, tables: Mapping[str, pa.Table], seed: int, orders_each: int) -> None:
        self._tables = tables
        self._chance = RandomStream(seed)
        self._orders_each = orders_each
        self._ledger = Ledger({name: table.schema for name, table in tables.items()})
        self._held_back = tables["orders"].schema.empty_table()
        self._held_back_lines = tables["lineitem"].schema.empty_table()
        self._customers_gone = tables["customer"].schema.empty_table()
        self._new_keys = count(_NEW_KEYS_FROM)
        turns: tuple[Callable[[], None], ...] = (
            lambda: self._borrow("customer", 5, "c_acctbal", "c_mktsegment"),
            lambda: self._borrow("orders", 8, "o_custkey", "o_totalprice"),
            lambda: self._borrow("part", 5, "p_type", "p_size", "p_container", "p_brand"),
            lambda: self._trade_names("nation", "n_name"),
            lambda: self._borrow("supplier", 2, "s_nationkey", "s_acctbal"),
            lambda: self._borrow("partsupp", 10, "ps_supplycost", "ps_availqty"),
            lambda: self._borrow("lineitem", 10, "l_partkey", "l_suppkey", "l_quantity"),
            self._customers_vanish,
            self._move_order_keys,
            lambda: self._trade_names("region", "r_name"),
            lambda: self._borrow("customer", 5, "c_nationkey", "c_phone"),
            lambda: self._borrow("lineitem", 10, "l_shipdate", "l_commitdate", "l_receiptdate", "l_discount"),
            self._complain,
            self._customers_return,
            lambda: self._borrow("nation", 2, "n_regionkey"),
            lambda: self._borrow("orders", 8, "o_orderdate", "o_orderstatus", "o_comment"),
            lambda: self._borrow("part", 5, "p_name"),
        )
        self._turns = cycle(turns)

    def load(self) -> Transaction:
        for name, table in self._tables.items():
            self._ledger.insert(name, table)
        self._ledger.commit()
        self._delete_orders(self._some("orders", self._tables["orders"].num_rows // 5))
        self._ledger.commit()
        return {name: delta_of(self._ledger.rows(name), 1) for name in self._tables}

    def turn(self, number: int) -> Transaction:
        """Insert and delete orders, and take two of the turns, so that successive transactions differ."""
        if number % 11 == 7:
            return {}
        self._insert_orders()
        share = 10 if number % 13 == 9 else 0
        orders = self._ledger.rows("orders").num_rows
        self._delete_orders(self._some("orders", orders // share if share else self._orders_each))
        for turn in islice(self._turns, 2):
            turn()
        return self._ledger.commit()

    def _some(self, table: str, rows: int) -> list[int]:
        return sample(self._chance, self._ledger.rows(table).num_rows, rows)

    def _insert_orders(self) -> None:
        orders, self._held_back = _cut(self._held_back, self._orders_each)
        lines = self._held_back_lines
        theirs = _is_in(lines, "l_orderkey", orders.column("o_orderkey"))
        self._held_back_lines = lines.filter(pa.array([not its for its in theirs]))
        self._ledger.insert("orders", orders)
        self._ledger.insert("lineitem", lines.filter(pa.array(theirs)))

    def _delete_orders(self, at: list[int]) -> None:
        gone = self._ledger.delete("orders", at)
        keys = gone.column("o_orderkey").to_pylist()
        lines = self._ledger.delete("lineitem", self._ledger.where("lineitem", "l_orderkey", keys))
        self._held_back = pa.concat_tables([self._held_back, gone])
        self._held_back_lines = pa.concat_tables([self._held_back_lines, lines])

    def _borrow(self, table: str, rows: int, *columns: str) -> None:
        old = self._ledger.delete(table, self._some(table, rows))
        held = self._ledger.rows(table)
        donors = held.take(pa.array([self._chance.below(held.num_rows) for _ in range(old.num_rows)], pa.int64()))
        self._ledger.insert(table, changed(old, **{column: donors.column(column) for column in columns}))

    def _trade_names(self, table: str, column: str) -> None:
        """Rotate the names of three rows, so that names stay unique."""
        old = self._ledger.delete(table, self._some(table, 3))
        names = old.column(column).to_pylist()
        self._ledger.insert(table, changed(old, **{column: names[1:] + names[:1]}))

    def _move_order_keys(self) -> None:
        """Change the keys of orders and their lines; the lines of one order keep the old key."""
        orders = self._ledger.delete("orders", self._some("orders", 4))
        old = orders.column("o_orderkey").to_pylist()
        new = [next(self._new_keys) for _ in old]
        self._ledger.insert("orders", changed(orders, o_orderkey=new))
        lines = self._ledger.delete("lineitem", self._ledger.where("lineitem", "l_orderkey", old[1:]))
        keys = dict(zip(old, new, strict=True))
        moved = [keys[key] for key in lines.column("l_orderkey").to_pylist()]
        self._ledger.insert("lineitem", changed(lines, l_orderkey=moved))

    def _customers_vanish(self) -> None:
        gone = self._ledger.delete("customer", self._some("customer", 5))
        self._customers_gone = pa.concat_tables([self._customers_gone, gone])

    def _customers_return(self) -> None:
        self._ledger.insert("customer", self._customers_gone)
        self._customers_gone = self._customers_gone.slice(0, 0)

    def _complain(self) -> None:
        old = self._ledger.delete("supplier", self._some("supplier", 1))
        self._ledger.insert("supplier", changed(old, s_comment="Customer: slow. Complaints: many."))


def _cut(table: pa.Table, rows: int) -> tuple[pa.Table, pa.Table]:
    return table.slice(0, rows), table.slice(rows)


def _is_in(table: pa.Table, column: str, values: pa.ChunkedArray) -> list[bool]:
    wanted = set(values.to_pylist())
    return [value in wanted for value in table.column(column).to_pylist()]
