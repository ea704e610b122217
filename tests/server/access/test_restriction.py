"""What a token is restricted to: whatever it asks for, and however, it sees nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import Forbidden, InvalidInput
from evertide.pgexpr.restriction import NOTHING, UNRESTRICTED, Restriction
from evertide.server.access import Access, Role, Token
from tests.server.access.kit import ACCESS, TEXTS, Guarded, bearer, guarded
from tests.shapes.kit import Follower, ids, order

SUBSET = {"subset__order_by": "id", "subset__limit": 10}


@pytest.fixture(scope="module")
def g() -> Iterator[Guarded]:
    with guarded() as made:
        yield made


def seen(answer: Any) -> list[int]:
    assert answer.status == 200, answer.content
    return sorted(ids(answer.changes))


def test_everybody_sees_his_own_rows_and_has_a_shape_of_his_own(g: Guarded) -> None:
    answers = {who: g.shape(who) for who in ("reader", "ann", "bob")}
    assert seen(answers["reader"]) == [1, 2, 3, 4]
    assert seen(answers["ann"]) == [1, 3]
    assert seen(answers["bob"]) == [2, 4]
    asked = {"reader": g.shape("reader", where="customer = 'ann'")}
    assert seen(asked["reader"]) == [1, 3]
    handles = [one.handle for one in (*answers.values(), *asked.values())]
    assert len(set(handles)) == 4  # the same rows, and yet not the same shape


@pytest.mark.parametrize(
    "query",
    [
        {"where": "true"},
        {"where": "1 = 1 OR customer = 'bob'"},
        {"where": "customer = 'bob' OR true"},
        {"where": "true) OR (true"},
        {"where": "true) -- "},
        {"where": "customer = $1", "params[1]": "bob"},
        {"where": "true OR customer = $1", "params[1]": "ann' OR '1'='1"},
        {"where": "NOT (customer = 'ann')"},
        {"where": "customer IN ('ann', 'bob')"},
        {"where": "customer IS NOT NULL", "replica": "full"},
        {"replica": "full"},
        {"log": "full", "columns": "id,amount"},
        {"columns": "id"},
        {"table": '"orders"'},
        {"table": "public.orders"},
        {"table": '"public"."orders"'},
        {"table": "ORDERS"},
        {"table": "Public.Orders"},
        {"table": " orders "},
        {"secret": TEXTS["ann"]},
        {"restriction": "", "where": ""},
        SUBSET,
        {**SUBSET, "subset__where": "true OR customer = 'bob'"},
        {**SUBSET, "subset__where": "customer = $1", "subset__params": '{"1": "bob"}'},
        {**SUBSET, "log": "changes_only"},
    ],
    ids=str,
)
def test_nothing_in_a_request_reaches_into_the_restriction(g: Guarded, query: dict[str, Any]) -> None:
    answer = g.shape("ann", **query)
    assert answer.status in (200, 400), answer.content
    assert b"bob" not in answer.content.replace(b"'bob'", b"")
    assert b"9876501000" not in answer.content
    if answer.status == 200:
        body = answer.body["data"] if isinstance(answer.body, dict) else answer.changes
        assert {int(one["value"]["id"]) for one in body} <= {1, 3}


def test_other_collections_are_not_there_and_nobody_tells_which_there_are(g: Guarded) -> None:
    """Also views over a table of which only some rows may be seen."""
    for table in ("revenue", "buyers", "notes", "evertide_errors", '"REVENUE"', "public.revenue", "no_such_table"):
        answer = g.shape("ann", table=table)
        assert (answer.status, answer.body["error_code"]) == (403, "forbidden"), table
        assert "buyers" not in answer.body["message"].replace(f"collection {table!r}", "")
    assert g.shape("ann", table="other.orders").status == 400
    assert g.shape("totals", table="revenue").status == 200
    assert g.shape("totals").status == 403


def test_a_handle_of_somebody_else_leads_nowhere(g: Guarded) -> None:
    others = g.shape("reader")
    for offset in ("0_0", others.offset):
        answer = g.shape("ann", offset=offset, handle=others.handle)
        assert answer.status == 409
        assert answer.handle != others.handle
        assert b"bob" not in answer.content
    assert seen(g.shape("ann", handle=others.handle)) == [1, 3]
    live = g.shape("bob", offset="0_0", handle=g.shape("ann").handle, live="true")
    assert live.status == 409
    assert g.shop.ask("DELETE", headers=bearer("ann"), handle=others.handle).status == 403
    assert g.shape("reader", offset="0_0", handle=others.handle).status == 200


def test_a_clause_that_does_not_fit_lets_nothing_through(g: Guarded) -> None:
    answer = g.shape("broken")
    assert (answer.status, answer.body["error_code"]) == (403, "forbidden")
    assert "no_such_column" in answer.body["why"]
    assert g.client("broken").get("/v1/tables/orders/rows").status == 403
    assert g.client("broken").get("/v1/tables/orders/changes?since=0").status == 403


def test_what_does_not_fit_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    lost = Token.of("lost", Role.READ, "lost-token-0123456789", Restriction.to({}, frozenset({"orders", "nowhere"})))
    with guarded(Access.of([*ACCESS.tokens, lost])):
        told = [record.message for record in caplog.records if record.name.endswith("restriction_check")]
    assert len(told) == 2
    assert "'broken' cannot read the collection 'orders'" in told[0]
    assert "'lost' is restricted to the collection 'nowhere', which does not exist" in told[1]


def test_rows_and_changes_keep_to_it_as_well(g: Guarded) -> None:
    rows = g.client("ann").get("/v1/tables/orders/rows").body["rows"]
    assert [row[:2] for row in sorted(rows)] == [[1, "ann"], [3, "ann"]]
    every = g.client("reader").get("/v1/tables/Orders/rows").body["rows"]
    assert len(every) == 4
    for path in ("where=true", "where=customer%20%3D%20'bob'%20OR%20true", "columns=amount", "as_of=0"):
        answer = g.client("ann").get(f"/v1/tables/ORDERS/rows?{path}")
        assert "9876501000" not in json.dumps(answer.body), path
    client = g.client("ann")
    told = g.shop.ask(path="/v1/tables/orders/changes", headers=bearer("ann"), since="-1").content.decode()
    found = [json.loads(line) for line in told.splitlines()]
    assert [line["row"]["customer"] for line in found if "row" in line] == ["ann", "ann"]
    for path in ("/v1/views/revenue/rows", "/v1/views/orders/rows", "/v1/tables/notes/rows", "/v1/tables/nope/rows"):
        refused = client.get(path)
        assert (refused.status, refused.body["error_code"]) == (403, "forbidden")
        assert "buyers" not in json.dumps(refused.body)


def test_a_row_that_leaves_the_restriction_is_told_as_it_was_seen() -> None:
    """With `replica=full` an update tells old and new: the new one is not for this token."""
    with guarded() as g:
        shop = g.shop
        follower = Follower(shop, {"table": "orders", "replica": "full", "secret": TEXTS["ann"]}).caught_up()
        assert follower.content("id") == [("1",), ("3",)]
        shop.push(rows=[order(1, "bob", 987650100099), order(2, "ann", 55)])
        told = shop.get(offset=follower.offset, handle=follower.handle, replica="full", secret=TEXTS["ann"])
        assert b"bob" not in told.content
        assert b"9876501000" not in told.content
        follower.caught_up()
        assert follower.content("id") == [("2",), ("3",)]


def test_what_was_asked_for_with_a_header_is_not_kept_for_others(g: Guarded) -> None:
    """A cache in between knows the address only. Fails if the answer stays `public`."""
    for query in ({}, {"offset": "now"}, {"offset": "0_0", "handle": "none"}):
        answer = g.shape("ann", **query)
        assert "public" not in answer.headers["cache-control"]
        assert answer.headers["vary"] == "Origin, Authorization"
    assert "public" in g.shop.get(secret=TEXTS["ann"]).headers["cache-control"]


def test_restrictions_are_checked_when_they_are_made() -> None:
    schema = pa.schema([("region", pa.string())])
    made = Restriction.to({"Orders": "region = 'eu'"}, frozenset({"orders", "Totals"}))
    assert (made.allows("ORDERS"), made.allows("totals"), made.allows("other")) == (True, True, False)
    assert made.clause("totals", schema) is None
    clause = made.clause("orders", schema)
    assert clause is not None
    assert clause.matches(pa.table({"region": ["eu", "us", None]})).to_pylist() == [True, False, False]
    with pytest.raises(Forbidden):
        made.clause("other", schema)
    with pytest.raises(Forbidden):
        NOTHING.check("orders")
    assert UNRESTRICTED.allows("anything")
    with pytest.raises(InvalidInput, match="not among the collections"):
        Restriction.to({"orders": "true"}, frozenset({"totals"}))
    with pytest.raises(InvalidInput, match="twice"):
        Restriction.to({"orders": "true", "Orders": "false"}, None)
