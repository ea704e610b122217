"""Snapshot, log and live answers of a shape: what clients get, in which order, and under which keys."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from evertide.shapes.options import ShapeOptions
from tests.shapes.kit import Follower, operations, order, shop, values


def test_a_snapshot_then_the_log_then_up_to_date() -> None:
    with shop() as s:
        s.push(rows=[order(1, "ann", 5), order(2, None, None)])
        first = s.get()
        assert (first.status, first.offset, first.is_up_to_date) == (200, "0_0", False)
        assert first.body == [
            {
                "key": '"public"."orders"/"1"',
                "value": {"id": "1", "customer": "ann", "amount": "5"},
                "headers": {"operation": "insert", "relation": ["public", "orders"]},
            },
            {
                "key": '"public"."orders"/"2"',
                "value": {"id": "2", "customer": None, "amount": None},
                "headers": {"operation": "insert", "relation": ["public", "orders"]},
            },
            {"headers": {"control": "snapshot-end", "xmin": "3", "xmax": "3", "xip_list": []}},
        ]
        empty = s.get(offset="0_0", handle=first.handle)
        assert (empty.offset, empty.is_up_to_date) == ("0_inf", True)
        assert empty.body == [{"headers": {"control": "up-to-date", "global_last_seen_lsn": "2"}}]
        t = s.push(rows=[order(3), order(1, "ann", 6)], deletes=[2])
        log = s.get(offset=empty.offset, handle=first.handle)
        assert operations(log.changes) == [("update", "1"), ("delete", "2"), ("insert", "3")]
        assert values(log.changes) == [
            {"id": "1", "amount": "6"},
            {"id": "2"},
            {"id": "3", "customer": "ann", "amount": "10"},
        ]
        headers = [one["headers"] for one in log.changes]
        assert {(one["lsn"], *one["txids"]) for one in headers} == {(str(t + 1), t + 1)}
        assert [one.get("last") for one in headers] == [None, None, True]
        places = [one["op_position"] for one in headers]
        assert places == sorted(set(places))
        assert log.offset == f"{t + 1}_{places[-1]}"
        assert log.body[-1] == {"headers": {"control": "up-to-date", "global_last_seen_lsn": str(t + 1)}}
        again = s.get(offset=f"{t}_0", handle=first.handle)  # an offset without an entry
        assert again.content == log.content


def test_a_live_request_waits_for_a_change_and_answers_with_it() -> None:
    with shop(options=ShapeOptions(long_poll_s=30)) as s, ThreadPoolExecutor(1) as aside:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        waiting = aside.submit(client.step, live=True)
        while not any(shape.waiters for shape in s.service.shapes.live()):
            pass
        s.push(rows=[order(2)])
        answer = waiting.result(30)
        assert operations(answer.changes) == [("insert", "2")]
        assert answer.is_up_to_date
        assert client.content("id") == [("1",), ("2",)]


def test_a_live_request_without_changes_ends_with_up_to_date() -> None:
    with shop() as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders", "where": "id = 1"}).caught_up()
        before = client.offset
        t = s.push(rows=[order(2)])  # not in this shape
        answer = client.step(live=True)
        assert answer.body == [{"headers": {"control": "up-to-date", "global_last_seen_lsn": str(t + 1)}}]
        assert (answer.offset, answer.headers["electric-has-data"]) == (before, "false")


def test_rows_move_into_a_shape_and_out_of_it() -> None:
    with shop() as s:
        s.push(rows=[order(1, "ann"), order(2, "bob"), order(3, "bob")])
        client = Follower(s, {"table": "orders", "where": "customer = $1", "params[1]": "bob"}).caught_up()
        assert client.content("id") == [("2",), ("3",)]
        s.push(rows=[order(1, "bob"), order(2, "ann"), order(3, "bob", 11), order(4, "cid")])
        answer = client.step()
        assert sorted(operations(answer.changes)) == [("delete", "2"), ("insert", "1"), ("update", "3")]
        told = {one["key"][-2]: one["value"] for one in answer.changes}
        assert told["1"] == {
            "id": "1",
            "customer": "bob",
            "amount": "10",
        }  # the whole row, as the client does not have it yet
        assert told["3"] == {"id": "3", "amount": "11"}
        assert client.content("id") == [("1",), ("3",)]


def test_only_selected_columns_and_their_changes_are_sent() -> None:
    with shop() as s:
        s.push(rows=[order(1, "ann", 1)])
        client = Follower(s, {"table": "orders", "columns": "customer,id"}).caught_up()
        assert client.content("id", "customer") == [("1", "ann")]
        s.push(rows=[order(1, "ann", 2)])
        assert client.step().changes == []
        s.push(rows=[order(1, "bob", 2)])
        assert values(client.step().changes) == [{"id": "1", "customer": "bob"}]


def test_replica_full_sends_whole_rows_and_old_values() -> None:
    with shop() as s:
        s.push(rows=[order(1, "ann", 1)])
        client = Follower(s, {"table": "orders", "replica": "full"}).caught_up()
        s.push(rows=[order(1, "ann", 2)])
        [updated] = client.step().changes
        assert updated["value"] == {"id": "1", "customer": "ann", "amount": "2"}
        assert updated["old_value"] == {"amount": "1"}
        s.push(deletes=[1])
        [deleted] = client.step().changes
        assert (deleted["value"], deleted.get("old_value")) == ({"id": "1", "customer": "ann", "amount": "2"}, None)


def test_a_view_is_followed_by_its_own_key() -> None:
    with shop() as s:
        s.push(rows=[order(1, "ann", 1), order(2, None, 2)])
        client = Follower(s, {"table": "revenue"}).caught_up()
        assert sorted(client.rows) == ['"public"."revenue"/"ann"', '"public"."revenue"/_']
        s.push(rows=[order(3, "ann", 4), order(4, "a/b.c", 1)], deletes=[2])
        answer = client.step()
        assert {one["key"]: one["headers"]["operation"] for one in answer.changes} == {
            '"public"."revenue"/"ann"': "update",
            '"public"."revenue"/"a//b.c"': "insert",
            '"public"."revenue"/_': "delete",
        }
        assert client.content() == [("a/b.c", "1"), ("ann", "5")]


def test_a_view_without_a_key_is_a_multiset_for_its_clients() -> None:
    """Fails if copies of a row are not counted: the client then has one row where there are three."""
    with shop() as s:
        s.push(rows=[order(1), order(2), order(3, "bob")])
        client = Follower(s, {"table": "buyers"}).caught_up()
        assert client.content() == [("ann",), ("ann",), ("bob",)]
        assert sorted(client.rows) == [
            '"public"."buyers"/"ann"',
            '"public"."buyers"/"ann"/+2',
            '"public"."buyers"/"bob"',
        ]
        s.push(rows=[order(4), order(5), order(3, "ann")])
        client.step()
        assert client.content() == [("ann",)] * 5
        s.push(rows=[order(6, "bob")], deletes=[1, 2, 3])
        deleted = [one for one in client.step().changes if one["headers"]["operation"] == "delete"]
        assert [one["key"][-2:] for one in deleted] == ["+5", "+4", "+3"]
        assert values(deleted) == [{"customer": "ann"}] * 3  # without a key, the row identifies it
        assert client.content() == [("ann",), ("ann",), ("bob",)]
        late = Follower(s, {"table": "buyers"}).caught_up()
        assert (late.handle, late.rows) == (client.handle, client.rows)


def test_a_table_without_a_key_and_the_dead_letters_are_collections_as_well() -> None:
    with shop() as s:
        s.push("notes", [{"text": "a"}, {"text": "a"}])
        notes = Follower(s, {"table": "notes"}).caught_up()
        errors = Follower(s, {"table": "evertide_errors"}).caught_up()
        s.push("notes", [{"text": "a"}, {"text": None}])
        notes.step()
        assert notes.content() == [("a",), ("a",), ("a",), (None,)]
        assert errors.step().changes == []


def test_now_begins_at_the_end_of_the_log() -> None:
    with shop() as s:
        s.push(rows=[order(1)])
        query = {"table": "orders", "log": "changes_only"}
        now = s.get(offset="now", **{key: value for key, value in query.items() if key != "table"})
        assert (now.status, now.offset, now.is_up_to_date) == (200, "0_inf", True)
        assert now.headers["electric-has-data"] == "false"
        assert [one["headers"]["control"] for one in now.body] == ["up-to-date"]
        t = s.push(rows=[order(2)])
        log = s.get(offset=now.offset, handle=now.handle, log="changes_only")
        assert operations(log.changes) == [("insert", "2")]
        later = s.get(offset="now", log="changes_only")
        assert (later.handle, later.offset) == (now.handle, log.offset)
        assert log.offset.startswith(f"{t + 1}_")
        [end] = s.get(log="changes_only").body  # without initial rows
        assert end["headers"]["control"] == "snapshot-end"


def test_a_large_snapshot_and_a_large_log_come_in_chunks() -> None:
    with shop(options=ShapeOptions(chunk_bytes=1000)) as s:
        s.push(rows=[order(number) for number in range(40)])
        client = Follower(s, {"table": "orders"})
        offsets = []
        while len(client.rows) < 40:
            client.step()
            offsets.append(client.offset)
            assert not client.is_up_to_date
        assert offsets == [f"0_{number}" for number in range(len(offsets))]
        assert len(offsets) > 3
        t = s.push(rows=[order(number, "bob", number) for number in range(60)])
        client.step()
        assert not client.is_up_to_date
        assert client.offset.startswith(f"{t + 1}_")
        client.caught_up()
        assert client.content("id", "customer") == sorted(((str(n), "bob") for n in range(60)), key=repr)


def test_a_log_is_the_same_bytes_from_memory_and_from_the_shard() -> None:
    """However it was committed, merged and read."""
    for table in ("orders", "revenue", "buyers", "notes"):
        with shop(follow=False) as s:
            s.push(rows=[order(number) for number in range(8)])
            s.push("notes", [{"text": "a"}])
            first = s.get(table)
            for number in range(12):
                s.push(rows=[order(number % 5, "bob" if number % 2 else "ann", number)], deletes=[number % 7])
                s.push("notes", [{"text": "ab"[number % 2]}])
                if number % 3 == 0:
                    s.get(table, "0_inf", handle=first.handle)  # the feed reads them
            told = s.get(table, "0_inf", handle=first.handle)
            [shape] = s.service.shapes.live()
            s.service.shapes._feeds[shape.record.shard].drop_tail(shape)
            for shard in s.pipeline._runner.members.open_all().values():
                shard.compact(s.pipeline._writer)
            assert not shape.tail.entries
            again = s.get(table, "0_inf", handle=first.handle)
            assert again.content == told.content
            middle = told.changes[len(told.changes) // 2]["headers"]
            rest = s.get(table, f"{middle['lsn']}_{middle['op_position']}", handle=first.handle)
            assert rest.changes == told.changes[len(told.changes) // 2 + 1 :]


def test_a_new_shape_gets_no_change_that_its_snapshot_contains() -> None:
    """Fails if the feed does not skip the times up to the snapshot."""
    with shop(follow=False) as s:
        s.push(rows=[order(1)])
        Follower(s, {"table": "orders"}).caught_up()
        Follower(s, {"table": "buyers"}).caught_up()
        s.push(rows=[order(2)])  # no feed has read it
        new = Follower(s, {"table": "orders", "where": "id > 0"})
        copies = Follower(s, {"table": "buyers", "where": "customer = 'ann'"})
        assert (len(new.step().changes), len(copies.step().changes)) == (2, 2)
        s.push(rows=[order(3)])
        assert operations(new.step().changes) == [("insert", "3")]
        assert [one["key"][-2:] for one in copies.step().changes] == ["+3"]


def test_a_change_between_the_check_and_the_wait_is_returned_at_once() -> None:
    """Fails if the request does not check again after it registers its waiter: the wake-up came before."""
    with shop(options=ShapeOptions(long_poll_s=1000), follow=False) as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        shapes = s.service.shapes
        known, look = shapes.span_known, shapes.read_span

        def push_after_check(*question: Any) -> Any:
            shapes.span_known = known  # type: ignore[method-assign]
            found = look(*question)
            s.push(rows=[order(2)])
            shapes.follow()
            return found

        shapes.span_known = lambda *_: None  # type: ignore[method-assign]
        shapes.read_span = push_after_check  # type: ignore[method-assign, assignment]
        assert operations(client.step(live=True).changes) == [("insert", "2")]
