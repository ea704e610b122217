"""Transactions that do not fit into memory are delivered in pieces."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from evertide.errors import SinkFailed
from evertide.rows.changes import DIFF
from evertide.sinks.contract import Changes
from tests.kit.delivering import deliver_once
from tests.pipeline.kit import SETTINGS, VIEWS, Row, rows_of, storage
from tests.pipeline.sink_kit import Bucket, into, is_right, order, push_orders, shop, sink, with_sink

PIECES = replace(SETTINGS, portion_rows_max=100, inline_bytes_max=64, transaction_rows_max=100)


@pytest.mark.parametrize("key", ["", "customer"])
def test_a_sink_gets_first_content_transactions_and_a_changed_view_in_pieces(key: str) -> None:
    """Memory depends on the size of a piece. Without pieces, the largest write is the whole content, transaction or
    difference."""
    kept, bucket = storage(), Bucket()
    options = {"key": key} if key else {}
    first, second = (with_sink(VIEWS["revenue"], sink(**options), version=version) for version in (1, 2))
    second = replace(second, function=lambda tables: VIEWS["revenue"].function(tables)[:40])
    with shop(kept, VIEWS["revenue"], settings=PIECES) as p:
        push_orders(p, [order(number, f"c{number}") for number in range(700)])
    with into(lake=bucket), shop(kept, first, settings=PIECES) as p:
        deliver_once(p)
        assert is_right(p, bucket)
        push_orders(
            p, [order(number, f"c{number}", 20) for number in range(300)], [order(number) for number in range(300, 600)]
        )
        push_orders(p, [order(1, "c1", 30)])
        deliver_once(p)
        assert is_right(p, bucket)
    with into(lake=bucket), shop(kept, second, settings=PIECES) as p:
        push_orders(p, [order(2, "c2", 30)])
        deliver_once(p)
        assert is_right(p, bucket)
    assert [len(delta) > 3 * PIECES.portion_rows_max for _, delta in bucket.got] == [True, True, False, True]
    assert 0 < bucket.rows_max <= 2 * PIECES.portion_rows_max


def test_transactions_that_compaction_merged_are_delivered_one_by_one_and_in_pieces() -> None:
    """A batch of many transactions that is too large for memory is split by time before it is delivered."""
    kept, bucket = storage(), Bucket()
    with into(lake=bucket), shop(kept, settings=PIECES) as p:
        push_orders(p, [order(0)])
        deliver_once(p)
        contents = []
        for number in range(1, 30):
            count = 450 if number == 11 else 12
            push_orders(p, [order(number * 1000 + each, f"c{number}-{each % 400}", number) for each in range(count)])
            contents.append(rows_of(p, "revenue"))
        shard = p._runner.members.open_collection("revenue")
        shard.compact(p._writer)
        assert len(shard.log.read().state.batches) < 29
        deliver_once(p)
        assert is_right(p, bucket)
        assert bucket.numbers == [1, *range(2, 31)]
        assert bucket.rows_max <= 2 * PIECES.portion_rows_max


@dataclass
class Receiver:
    """A receiver of numbered requests that loses the first answers to each transaction."""

    lost: int = 2
    seen: dict[int, list[list[list[Row]]]] = field(default_factory=dict)
    """The pieces of each attempt, by time."""
    name: str = "lake"
    keeps_number: bool = False

    def last(self) -> None:
        return None

    def write(self, time: int, changes: Changes) -> None:
        tries = self.seen.setdefault(time, [])
        tries.append([piece.to_pylist() for piece in changes])
        if len(tries) <= self.lost:
            raise SinkFailed(sink="lake", where="hook", why="the answer was lost")

    def close(self) -> None:
        pass

    @property
    def bucket(self) -> Bucket:
        found = Bucket(request_rows=10)
        found.open = lambda _token: self  # type: ignore[method-assign, assignment, return-value]
        return found


def test_a_first_content_that_is_written_again_is_cut_in_the_same_way() -> None:
    """A receiver drops requests by their number: if the second attempt were another transaction, or cut differently, it
    would drop rows that it never received, or receive rows twice."""
    kept, receiver = storage(), Receiver()
    with into(lake=receiver.bucket), shop(kept, settings=PIECES) as p:
        push_orders(p, [order(number, f"c{number}") for number in range(500)])
        deliver_once(p)
        push_orders(p, [order(number, f"d{number}") for number in range(400)])
        deliver_once(p)
    with into(lake=receiver.bucket), shop(kept, settings=replace(PIECES, portion_rows_max=10_000)) as p:
        deliver_once(p)
    [(first, *others), *_] = receiver.seen.values()
    assert len(first) > 3
    assert others == [first, first]


@pytest.mark.parametrize(("before", "after"), [(100, 10_000), (10_000, 100)])
def test_a_later_transaction_that_is_written_again_is_cut_in_the_same_way(before: int, after: int) -> None:
    """Here the limit of a piece changes; compaction and further transactions in one read change the size as well."""
    kept, receiver = storage(), Receiver(lost=0)
    with into(lake=receiver.bucket), shop(kept, settings=replace(PIECES, portion_rows_max=before)) as p:
        push_orders(p, [order(1, "c1")])
        deliver_once(p)
        receiver.lost = 1
        push_orders(p, [order(number, f"c{number}") for number in range(500)])
        deliver_once(p)
    with into(lake=receiver.bucket), shop(kept, settings=replace(PIECES, portion_rows_max=after)) as p:
        deliver_once(p)
        assert p.status().sinks[0].behind == 0
    _, [first, second] = receiver.seen.values()
    assert first == second


def test_a_first_content_of_which_requests_were_sent_is_completed_before_the_view_changes() -> None:
    """Otherwise the receiver would keep the rows of these requests, or drop new rows that have their numbers."""
    kept, receiver = storage(), Receiver(lost=1)
    changed = replace(
        with_sink(VIEWS["revenue"], version=2), function=lambda tables: VIEWS["revenue"].function(tables)[:40]
    )
    with into(lake=receiver.bucket), shop(kept, settings=PIECES) as p:
        push_orders(p, [order(number, f"c{number}") for number in range(500)])
        deliver_once(p)
    with into(lake=receiver.bucket), shop(kept, changed, settings=PIECES) as p:
        push_orders(p, [order(1, "c1", 30)])
        receiver.lost = 0
        deliver_once(p)
        assert p.status().sinks[0].behind == 0
        content = rows_of(p, "revenue")
    (first, second), *others = receiver.seen.values()
    assert first == second
    total: Counter[tuple[object, ...]] = Counter()
    for row in (row for tries in ([second], *others) for pieces in tries for piece in pieces for row in piece):
        diff = row.pop(DIFF)
        total[tuple(row.values())] += diff
    assert sorted(total.elements(), key=repr) == content


@pytest.mark.parametrize("request_rows", [0, 10])
def test_a_first_content_whose_pieces_do_not_fit_into_memory_is_cut_into_more(request_rows: int) -> None:
    """Without halving, the sink stalls for ever. A target that keeps single requests must receive the same
    ones again."""
    sizes: list[list[int]] = []

    class Small:
        name, keeps_number = "lake", False

        def last(self) -> None:
            return None

        def write(self, time: int, changes: Changes) -> None:
            sizes.append([])
            for piece in changes:
                sizes[-1].append(piece.num_rows)
                if piece.num_rows > 60:
                    raise MemoryError
                if piece.num_rows > 40:
                    raise SinkFailed(sink="lake", where="table", why="no memory") from MemoryError()

        def close(self) -> None:
            pass

    bucket = Bucket(request_rows=request_rows)
    bucket.open = lambda _token: Small()  # type: ignore[method-assign, assignment, return-value]
    with into(lake=bucket), shop(storage(), settings=replace(PIECES, portion_rows_max=200)) as p:
        push_orders(p, [order(number, f"c{number}") for number in range(500)])
        for _ in range(8):
            deliver_once(p)
        [status] = p.status().sinks
        assert (status.state, status.behind == 0) == (("stalled", False) if request_rows else ("running", True))
    if request_rows:
        assert len(sizes) > 1
        assert all(one == sizes[0] for one in sizes)
    else:
        assert sum(sizes[-1]) == 500
        assert max(sizes[-1]) <= 40


@dataclass
class Dropping(Receiver):
    """A receiver that applies each number once, and then loses the answers to the chosen transactions."""

    lost_times: set[int] = field(default_factory=set)
    total: Counter[tuple[object, ...]] = field(default_factory=Counter)

    def write(self, time: int, changes: Changes) -> None:
        if time not in self.seen:
            self.seen[time] = [[piece.to_pylist() for piece in changes]]
            for row in (dict(row) for piece in self.seen[time][0] for row in piece):
                diff = row.pop(DIFF)
                self.total[tuple(row.values())] += diff
        if time in self.lost_times:
            raise SinkFailed(sink="lake", where="hook", why="the answer was lost")


@pytest.mark.parametrize("later", [0, 1])
def test_x27_a_later_transaction_that_may_have_been_received_is_completed_before_the_view_changes(later: int) -> None:
    """Otherwise the difference has the number of that transaction, and the receiver drops it; or it does not count the
    rows that the receiver has of that transaction."""
    kept, receiver = storage(), Dropping()
    changed = replace(
        with_sink(VIEWS["revenue"], version=2),
        function=lambda tables: [row for row in VIEWS["revenue"].function(tables) if row["amount"] > 10],
    )
    with into(lake=receiver.bucket), shop(kept) as p:
        push_orders(p, [order(1, "ann"), order(2, "bob")])
        deliver_once(p)
        receiver.lost_times = {2}
        push_orders(p, [order(3, "cid", 5), order(4, "ann", 7)])
        deliver_once(p)
        assert p.status().sinks[0].state == "stalled"
    receiver.lost_times = set()
    with into(lake=receiver.bucket), shop(kept, changed) as p:
        for number in range(later):
            push_orders(p, [order(10 + number, "dan", 30)])
        deliver_once(p)
        push_orders(p, [order(5, "eve", 20)])
        deliver_once(p)
        assert p.status().sinks[0].behind == 0
        assert sorted(receiver.total.elements(), key=repr) == rows_of(p, "revenue")
