"""T1, T2, T4 for shapes: a client that needs few or no rows of a transaction delays no other, and gets its position."""

from __future__ import annotations

from typing import Any

from evertide.shapes.options import ShapeOptions
from tests.shapes.kit import Follower, order, shop


def position(answer: Any) -> int:
    """Return the transaction up to which a client is up to date."""
    return int(answer.body[-1]["headers"]["global_last_seen_lsn"]) - 1


def test_t1_a_shape_with_one_row_of_a_large_transaction_gets_up_to_date() -> None:
    with shop(options=ShapeOptions(long_poll_s=0.1)) as s:
        s.push("notes", [{"text": "before"}])
        first = Follower(s, {"table": "notes", "where": "text = 'first'"}).caught_up()
        nothing = Follower(s, {"table": "notes", "where": "text = 'never'"}).caught_up()
        s.pipeline.push("notes", [{"text": "first"}])
        s.pipeline.push("orders", [order(number) for number in range(5_000)])
        s.pipeline.push("notes", [{"text": "last"}])
        t = s.pipeline.commit()
        answer = first.step()
        assert (len(answer.changes), position(answer)) == (1, t)
        assert answer.changes[0]["headers"]["last"] is True
        assert position(nothing.step()) == t
        for _ in range(3):
            t = s.push(rows=[order(1)])
        assert [position(one.step()) for one in (first, nothing)] == [t, t]  # although neither gets more rows
        assert s.pipeline.status().flushed == t


def test_t2_shapes_that_come_and_go_between_transactions_delay_no_client() -> None:
    with shop(options=ShapeOptions(deletion=True, long_poll_s=0.1), follow=False) as s:
        for number in range(6):
            t = s.push(rows=[order(number)])
            new = Follower(s, {"table": "orders", "where": f"id = {number}"}).caught_up()
            assert (position(new.step()), s.pipeline.status().flushed) == (t, t)
            if number % 2:
                s.ask("DELETE", handle=new.handle)
        assert len(s.service.shapes.live()) == 3


def test_t4_idle_shapes_follow_the_busy_ones() -> None:
    with shop(options=ShapeOptions(long_poll_s=0.1), follow=False) as s:
        s.push(rows=[order(0)])
        idle = [Follower(s, {"table": "orders", "where": f"id = {number + 10}"}) for number in range(300)]
        for client in idle:
            client.step()
        busy = Follower(s, {"table": "orders", "where": "id = 1"}).caught_up()
        for amount in range(5):
            t = s.push(rows=[order(1, "ann", amount)])
            assert position(busy.step()) == t
        assert all(position(client.step()) == t for client in idle[::30])
        assert all(not shape.tail.entries for shape in s.service.shapes.live() if shape.handle != busy.handle)
