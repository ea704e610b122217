"""Subsets of a shape as they are now, for clients that follow only changes."""

from __future__ import annotations

import json
import socket
from typing import Any

import pyarrow as pa
import pytest

from evertide.rows.changes import DIFF
from evertide.shapes.log.contents import Contents
from tests.shapes.kit import Shop, ids, order, shop


def subset(s: Shop, table: str = "orders", **given: Any) -> list[Any]:
    answer = s.get(table, "now", log="changes_only", **{f"subset__{name}": value for name, value in given.items()})
    assert answer.status == 200, answer.content
    found: list[Any] = answer.body["data"]
    return found


def fill(s: Shop) -> int:
    return s.push(
        rows=[order(1, "ann", 5), order(2, "bob", None), order(3, "ann", 7), order(4, None, 1), order(5, "Bob", 7)]
    )


def test_a_subset_names_the_transaction_at_which_it_was_read() -> None:
    with shop() as s:
        t = fill(s)
        now = s.get(offset="now", log="changes_only")
        t = s.push(rows=[order(6)])
        answer = s.get(offset=now.offset, handle=now.handle, log="changes_only", subset__where="id > 4")
        assert (answer.status, answer.handle, answer.offset) == (200, now.handle, f"{t + 1}_0")
        assert (answer.headers["electric-snapshot"], answer.headers["cache-control"]) == ("true", "no-cache")
        assert json.loads(answer.headers["electric-schema"])["id"]["type"] == "int8"
        assert "etag" not in answer.headers
        metadata = answer.body["metadata"]
        mark = metadata.pop("snapshot_mark")
        assert isinstance(mark, int)
        # It contains all transactions up to t and no later one: those have greater numbers in `txids`.
        assert metadata == {"xmin": str(t + 2), "xmax": str(t + 2), "xip_list": [], "database_lsn": str(t + 1)}
        assert ids(answer.body["data"]) == [5, 6]
        assert answer.body["data"][0] == {
            "key": '"public"."orders"/"5"',
            "value": {"id": "5", "customer": "Bob", "amount": "7"},
            "headers": {"operation": "insert", "relation": ["public", "orders"], "snapshot_mark": mark},
        }
        known = s.ask(
            headers={"If-None-Match": "*"}, table="orders", offset="now", log="changes_only", subset__where="id > 4"
        )
        assert known.status == 200
        s.push(rows=[order(7)])
        [later] = s.get(offset=answer.offset, handle=now.handle, log="changes_only").changes
        assert later["headers"]["txids"][0] >= int(metadata["xmax"])


def test_rows_are_filtered_ordered_and_limited() -> None:
    with shop() as s:
        fill(s)
        assert ids(subset(s, where="customer = $1", params='{"1": "ann"}')) == [1, 3]
        assert ids(subset(s, order_by="id desc")) == [5, 4, 3, 2, 1]
        assert ids(subset(s, order_by='amount, "id" DESC')) == [4, 1, 5, 3, 2]  # NULL last
        assert ids(subset(s, order_by="amount desc, id")) == [2, 3, 5, 1, 4]  # NULL first
        assert ids(subset(s, order_by="amount desc nulls last, id", limit=2)) == [3, 5]
        assert ids(subset(s, order_by="amount NULLS FIRST,id", limit=2, offset=1)) == [4, 1]
        assert ids(subset(s, order_by="id", offset=3)) == [4, 5]
        assert ids(subset(s, order_by="customer", limit=3)) == [5, 1, 3]  # by the bytes of the text
        assert ids(subset(s, where="id = 99")) == []
        # The shape's own clause applies as well, and a column that is not selected can be requested.
        both = s.get(offset="now", where="id < 4", columns="id", subset__where="amount > 1", subset__order_by="amount")
        assert both.body["data"][0]["value"] == {"id": "1"}
        assert ids(both.body["data"]) == [1, 3]


def test_copies_of_rows_without_a_key_are_rows_of_a_subset() -> None:
    with shop() as s:
        fill(s)
        found = subset(s, "buyers", order_by="customer", limit=3)
        assert [one["key"].partition("/")[2] for one in found] == ['"Bob"', '"ann"', '"ann"/+2']
        assert len(subset(s, "buyers", where="customer = 'ann'", order_by="customer", offset=1)) == 1


def test_a_subset_by_post() -> None:
    with shop() as s:
        fill(s)

        def post(body: Any, **query: Any) -> Any:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return s.ask("POST", table="orders", offset="now", log="changes_only", body=content, **query)

        wanted = {"where": "customer = $1", "params": {"1": "ann"}, "order_by": "id desc", "limit": 1}
        answer = post({**wanted, "where_expr": {"op": "x"}, "offset": 0})
        assert (answer.status, ids(answer.body["data"])) == (200, [3])
        assert {"electric-handle", "electric-offset", "electric-schema"} <= answer.headers.keys()
        assert answer.headers["cache-control"] == "no-cache"
        assert ids(post({"subset": {**wanted, "params": ["bob"]}}).body["data"]) == [2]
        assert ids(post({"where": "id = $1", "params": {"1": 4}}).body["data"]) == [4]
        assert post(b"").body[-1]["headers"]["control"] == "up-to-date"  # no conditions: as with GET
        assert post(b"").headers["cache-control"] == "no-cache"
        assert post([1]).body == {"error": "Request body must be a JSON object"}
        broken = post(b"{")
        assert (broken.status, broken.body["error"]) == (400, "Invalid JSON in request body")
        twice = post(rb'{"where": "id = 4", "\u0077here": "id = 2"}')
        assert (twice.status, "repeats" in twice.body["details"]) == (400, True)
        assert (
            s.ask(table="orders", offset="now", subset__where="id = $1", subset__params='{"1":4,"1":2}').status == 400
        )
        assert post(b"[" * 100_000).status == 400
        assert post(b'"' + b"x" * 2_000_000 + b'"').status == 413


def test_errors_of_a_subset_request_are_reported() -> None:
    with shop() as s:
        fill(s)

        def wrong(**given: Any) -> list[str]:
            answer = s.get(offset="now", **given)
            assert answer.status == 400, (given, answer.content)
            return [*answer.body["errors"]]

        needs_order = s.get(offset="now", subset__limit=1)
        assert needs_order.body["errors"] == {
            "subset__order_by": ["order_by is required when limit or offset is present"]
        }
        assert wrong(subset__limit=0, subset__order_by="id") == ["subset__limit"]
        assert wrong(subset__limit="x", subset__order_by="id") == ["subset__limit"]
        assert wrong(subset__offset=-1, subset__order_by="id") == ["subset__offset"]
        assert wrong(subset__params="x") == ["subset__params"]
        assert wrong(subset__params="[" * 5_000) == ["subset__params"]
        assert wrong(subset__where="nope = 1") == ["subset__where"]
        for order_by in ("nope", "id sideways", "id,", ",", "id id", '"id', "id; drop"):
            assert wrong(subset__order_by=order_by) == ["subset__order_by"], order_by
        assert wrong(queryable_columns="id", subset__where="amount = 1") == ["subset__where"]
        assert wrong(queryable_columns="id", subset__order_by="amount") == ["subset__where"]
        assert wrong(queryable_columns="id", columns="id,amount") == ["columns"]
        allowed = s.get(offset="now", queryable_columns="id,amount", columns="id", subset__where="amount = 7")
        assert ids(allowed.body["data"]) == [3, 5]


def test_a_row_with_a_billion_copies_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly as often as a limit says. Fails, by timeout, if all copies are rendered before the first is sent."""
    with shop() as s:
        s.push(rows=[order(1, "again")])
        counted = Contents.read_rows

        def often(*given: Any) -> pa.Table:
            found = counted(*given)
            return found.set_column(found.num_columns - 1, found.schema.field(DIFF), pa.array([10**9]))

        monkeypatch.setattr(Contents, "read_rows", often)
        query = "table=buyers&offset=now&log=changes_only&subset__order_by=customer"
        with socket.create_connection((s.host, s.port), timeout=60) as taking:
            taking.sendall(f"GET /v1/shape?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            taken = b""
            while taken.count(b'"again"') < 100:
                piece = taking.recv(65536)
                assert piece, taken
                taken += piece
        assert len(subset(s, "buyers", order_by="customer", limit=5)) == 5
