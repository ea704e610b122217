"""`txid` in the answer to a push: a number that shapes send, or null if there is nothing to wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from evertide.errors import Unavailable
from evertide.journal import garbage
from evertide.journal.journal import Journal
from evertide.pipeline.transaction.runner import Runner
from tests.pipeline.kit import NOTES, ORDERS, without_shard
from tests.server.kit import Answer, Client, numbered
from tests.server.test_pushing import raising
from tests.shapes.kit import Shop, engine, order, shop

ORDER_ROWS = "/v1/tables/orders/rows"
NOTE_ROWS = "/v1/tables/notes/rows"


@contextmanager
def serving() -> Iterator[tuple[Shop, Client]]:
    with shop() as s:
        yield s, Client(s.host, s.port)


def read_txid(answer: Answer) -> Any:
    """The number in the body, which must be the number in the header."""
    assert answer.status == 200, answer
    headers = {name.lower(): value for name, value in answer.headers.items()}
    txid = answer.body["txid"]
    assert headers.get("evertide-txid") == (None if txid is None else str(txid))
    return txid


def test_the_number_of_a_push_is_that_of_its_changes() -> None:
    with serving() as (s, client):
        begun, view = s.get(), s.get("revenue")
        txids = [read_txid(client.post("/v1/tables/Orders/rows", [order(number)])) for number in (1, 2)]
        changes = s.get(offset="0_0", handle=begun.handle).changes
        assert [one["headers"]["txids"] for one in changes] == [[txid] for txid in txids]
        changes = s.get("revenue", "0_0", handle=view.handle).changes
        assert [one["headers"]["txids"] for one in changes] == [[txid] for txid in txids]


def test_a_push_that_changes_nothing_has_no_number() -> None:
    """Fails if each transaction has a number: a client would wait for a change that is never sent."""
    with serving() as (s, client):
        assert read_txid(client.post(ORDER_ROWS, [order(1)])) is not None
        begun = s.get()
        assert read_txid(client.post(ORDER_ROWS, [order(1)])) is None, "the row is there already"
        assert read_txid(client.post(ORDER_ROWS, {"deletes": [7]})) is None
        assert read_txid(client.post(ORDER_ROWS, {"rows": [order(1)], "deletes": [1]})) is None
        assert read_txid(client.post(ORDER_ROWS, [])) is None
        assert s.get(offset="0_0", handle=begun.handle).changes == []
        both = {"orders": [order(1)], "notes": [{"text": "a"}]}
        answer = client.post("/v1/transactions", {"tables": both})
        assert read_txid(answer) == answer.body["time"] + 1, "one of the tables changed"


def test_a_table_that_another_push_of_the_transaction_changes_does_not_count() -> None:
    with serving() as (s, client):
        client.post(ORDER_ROWS, [order(1)])
        with s.pipeline.transaction() as unchanged:
            unchanged.push("orders", [order(1)])
        with s.pipeline.transaction() as changed:
            changed.push("notes", [{"text": "a"}])
        time = s.pipeline.take(unchanged)
        assert changed.time == time
        assert (s.pipeline.txid_of(unchanged), s.pipeline.txid_of(changed)) == (None, time + 1)


def test_a_transaction_in_several_requests_has_a_number() -> None:
    with serving() as (_, client):
        at = f"/v1/transactions/{client.post('/v1/transactions/begin').body['id']}"
        client.post(f"{at}/tables/orders/rows", [order(1)])
        txid = read_txid(client.post(f"{at}/commit"))
        assert txid is not None
        assert read_txid(client.post(f"{at}/commit")) == txid, "a repeated commit has the same one"


def test_a_repeated_push_has_the_number_of_the_first_one_while_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as (s, client):
        first = read_txid(client.post(ORDER_ROWS, [order(1)], numbered("till", 1)))
        again = client.post(ORDER_ROWS, [order(1)], numbered("till", 1))
        assert (again.body["is_repeated"], read_txid(again)) == (True, first)
        assert read_txid(client.post(ORDER_ROWS, [order(1)], numbered("till", 2))) is None
        assert read_txid(client.post(ORDER_ROWS, [order(1)], numbered("till", 2))) is None
        assert read_txid(client.post(ORDER_ROWS, [order(2)], numbered("till", 3))) is not None
        monkeypatch.setattr(garbage, "_XID_OUTCOMES_KEPT", 0)
        for number in range(10, 16):
            client.post(ORDER_ROWS, [order(number)])
            s.pipeline.checkpoint()
        again = client.post(ORDER_ROWS, [order(2)], numbered("till", 3))
        assert (again.body["is_repeated"], read_txid(again)) == (True, None)


def test_a_push_to_a_table_that_is_not_kept_has_a_number() -> None:
    """Nothing records whether the table changed; its views may have."""
    with shop(made=engine(tables=(ORDERS, without_shard(NOTES)))) as s:
        assert read_txid(Client(s.host, s.port).post(NOTE_ROWS, [{"text": "a"}])) == 2


def test_a_push_whose_transaction_waits_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the journal is read: while the storage is away, that delays the answer."""
    with serving() as (_, client):
        with monkeypatch.context() as patch:
            patch.setattr(Runner, "complete", raising(Unavailable(path="parts", why="away")))
            patch.setattr(Journal, "read_outcome", raising(AssertionError("the journal was read")))
            answer = client.post(ORDER_ROWS, [order(1)])
        assert (answer.status, answer.body["txid"]) == (202, answer.body["time"] + 1)


def test_a_push_is_acknowledged_even_if_its_record_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the error is passed on: the client would push rows again that are there."""
    with serving() as (_, client):
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "read_outcome", raising(Unavailable(path="journal", why="away")))
            answer = client.post(ORDER_ROWS, [order(1)])
        assert read_txid(answer) == answer.body["time"] + 1
