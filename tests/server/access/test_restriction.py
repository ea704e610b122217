"""Restricted tokens see only what their restriction allows, for every request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from evertide.errors import Damaged, Forbidden, InvalidInput
from evertide.pgexpr.restriction import NOTHING, UNRESTRICTED, Restriction
from evertide.pipeline.definition import AwayReason, ViewRecord
from evertide.problem import ComponentState
from evertide.server.access import Access, Role, Token
from evertide.shapes.log.shape_definition import resolve_subject
from evertide.shapes.protocol.requests import Identifier, Refusal
from tests.server.access.kit import ACCESS, RESTRICTIONS, TEXTS, Guarded, bearer, guarded
from tests.shapes.kit import Follower, ids, order

SUBSET = {"subset__order_by": "id", "subset__limit": 10}


@pytest.fixture(scope="module")
def g() -> Iterator[Guarded]:
    with guarded() as made:
        yield made


def read_ids(answer: Any) -> list[int]:
    assert answer.status == 200, answer.content
    return sorted(ids(answer.changes))


def test_each_token_sees_its_own_rows_and_has_its_own_shape(g: Guarded) -> None:
    answers = {who: g.shape(who) for who in ("reader", "ann", "bob")}
    assert read_ids(answers["reader"]) == [1, 2, 3, 4]
    assert read_ids(answers["ann"]) == [1, 3]
    assert read_ids(answers["bob"]) == [2, 4]
    asked = {"reader": g.shape("reader", where="customer = 'ann'")}
    assert read_ids(asked["reader"]) == [1, 3]
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
def test_no_part_of_a_request_changes_the_restriction(g: Guarded, query: dict[str, Any]) -> None:
    answer = g.shape("ann", **query)
    assert answer.status in (200, 400), answer.content
    assert b"bob" not in answer.content.replace(b"'bob'", b"")
    assert b"9876501000" not in answer.content
    if answer.status == 200:
        body = answer.body["data"] if isinstance(answer.body, dict) else answer.changes
        assert {int(one["value"]["id"]) for one in body} <= {1, 3}


def test_other_collections_are_hidden_and_never_listed(g: Guarded) -> None:
    """Also views over a table of which only some rows are visible."""
    for table in ("revenue", "buyers", "notes", "evertide_errors", '"REVENUE"', "public.revenue", "no_such_table"):
        answer = g.shape("ann", table=table)
        assert (answer.status, answer.body["error_code"]) == (403, "forbidden"), table
        assert "buyers" not in answer.body["message"].replace(f"collection {table!r}", "")
    assert g.shape("ann", table="other.orders").status == 400
    assert g.shape("totals", table="revenue").status == 200
    assert g.shape("totals").status == 403


def test_a_handle_of_another_token_is_refused(g: Guarded) -> None:
    others = g.shape("reader")
    for offset in ("0_0", others.offset):
        answer = g.shape("ann", offset=offset, handle=others.handle)
        assert answer.status == 409
        assert answer.handle != others.handle
        assert b"bob" not in answer.content
    assert read_ids(g.shape("ann", handle=others.handle)) == [1, 3]
    live = g.shape("bob", offset="0_0", handle=g.shape("ann").handle, live="true")
    assert live.status == 409
    assert g.shop.ask("DELETE", headers=bearer("ann"), handle=others.handle).status == 403
    assert g.shape("reader", offset="0_0", handle=others.handle).status == 200


def test_a_restriction_that_does_not_fit_its_collection_allows_no_rows(g: Guarded) -> None:
    answer = g.shape("broken")
    assert (answer.status, answer.body["error_code"]) == (403, "forbidden")
    assert "no_such_column" in answer.body["why"]
    assert g.client("broken").get("/v1/tables/orders/rows").status == 403
    assert g.client("broken").get("/v1/tables/orders/changes?since=0").status == 403


def test_a_restriction_that_does_not_fit_is_reported_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    lost = Token.of("lost", Role.READ, "lost-token-0123456789", Restriction.to({}, frozenset({"orders", "nowhere"})))
    with guarded(Access((*ACCESS.tokens, lost))):
        told = [record.message for record in caplog.records if record.name.endswith("access.access")]
    assert len(told) == 2
    assert "'broken' cannot read the collection 'orders'" in told[0]
    assert "'lost' is restricted to the collection 'nowhere', which does not exist" in told[1]


def test_rows_and_changes_respect_the_restriction(g: Guarded) -> None:
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


def test_a_row_that_leaves_the_restriction_is_deleted_with_its_old_values() -> None:
    """With `replica=full` an update has old and new rows: the new one is outside of the restriction."""
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


def test_positions_do_not_count_rows_that_the_token_may_not_see() -> None:
    """Fails if a position counts all changes of the collection, as it does without a restriction."""
    with guarded() as g:
        follower = Follower(g.shop, {"table": "orders", "secret": TEXTS["ann"]}).caught_up()
        g.shop.push(rows=[*(order(number, "bob") for number in range(10, 20)), order(20, "ann"), order(21, "ann")])
        told = g.shop.get(offset=follower.offset, handle=follower.handle, secret=TEXTS["ann"])
        assert [one["headers"]["op_position"] for one in told.changes] == [0, 2]
        assert told.offset.partition("_")[2] == "2"
        follower.caught_up()
        assert follower.content("id") == [("1",), ("20",), ("21",), ("3",)]


def test_a_restricted_token_does_not_see_why_a_view_has_no_content() -> None:
    """The reason may contain a value of a table that the token may not see."""
    away = AwayReason(ComponentState.FAILED, 1, "the value 'hidden' is no number", since_s=0)
    view = ViewRecord(b"", "", ("orders",), shard="", away=away)
    members = SimpleNamespace(definition=SimpleNamespace(tables={}, views={"totals": view}))
    for restriction, is_told in [(UNRESTRICTED, True), (Restriction.to({}, frozenset({"totals"})), False)]:
        with pytest.raises(Refusal) as refused:
            resolve_subject(cast("Any", members), (Identifier("totals"),), restriction)
        assert ("hidden" in refused.value.body["message"]) == is_told


def test_an_answer_to_a_token_in_a_header_is_not_cached_for_others(g: Guarded) -> None:
    """A cache knows only the URL. Fails if the answer stays `public`."""
    for query in ({}, {"offset": "now"}, {"offset": "0_0", "handle": "none"}):
        answer = g.shape("ann", **query)
        assert "public" not in answer.headers["cache-control"]
        assert answer.headers["vary"] == "Origin, Authorization"
    assert "public" in g.shop.get(secret=TEXTS["ann"]).headers["cache-control"]


def test_invalid_restrictions_are_refused_when_they_are_created() -> None:
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
    with pytest.raises(InvalidInput, match="add the collection to 'collections'"):
        Restriction.to({"orders": "true"}, frozenset({"totals"}))
    with pytest.raises(InvalidInput, match="differ only in upper and lower case"):
        Restriction.to({"orders": "true", "Orders": "false"}, None)


def test_an_error_of_the_storage_shows_no_path_to_a_restricted_token() -> None:
    """A time that is no longer kept, asked for with and without a restriction."""
    with guarded() as g:
        for number in range(5, 8):
            g.shop.push(rows=[order(number)])
            g.shop.pipeline.checkpoint()
        paths = ("/v1/tables/orders/rows?as_of=0", "/v1/tables/orders/changes?since=-1&until=0")
        for path in paths:
            whole, some = g.client("reader").get(path), g.client("ann").get(path)
            assert (whole.status, some.status) == (410, 410)
            assert "shard" in whole.body["message"]
            assert "shard" not in str(some.body)
            assert (some.body["error_code"], some.body["since"]) == ("time_compacted", whole.body["since"])
    damaged = Damaged(path="/data/shop.evertide/shards/7", why="the checksum does not match")
    assert "shop.evertide" not in str(RESTRICTIONS["ann"].error_json(damaged))
    assert "shop.evertide" in str(UNRESTRICTED.error_json(damaged))
