"""Collections, the graph, and the journal over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from evertide.pipeline.definition import AwayReason
from evertide.pipeline.names import ERRORS
from evertide.problem import ComponentState
from evertide.sources.contract import Fault
from tests.pipeline.kit import (
    ORDERS,
    ScriptedSource,
    batch,
    engine,
    open_pipeline,
    storage,
    with_sources,
    without_shard,
)
from tests.server.kit import order, served, shop

ROWS = "/v1/tables/orders/rows"


def by_name(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in found}


def test_collections_have_columns_keys_state_and_exact_row_counts() -> None:
    """Fails if stored changes are counted instead of rows: an update is three of them."""
    with shop() as (_, client):
        client.post(ROWS, [order(1), order(2, "bob")])
        client.post(ROWS, [order(1, amount=7)])
        client.post(ROWS, {"deletes": [2]})
        found = client.get("/v1/collections").body
        assert found["time"] == 3
        orders = by_name(found["collections"])["orders"]
        assert (orders["kind"], orders["key"], orders["rows"], orders["upper"]) == ("table", ["id"], 1, 4)
        assert orders["columns"][0] == {"name": "id", "type": "BIGINT", "is_nullable": False}
        assert orders["source"] | {"position": ""} == {
            "name": "push", "connector": "push", "state": "running", "position": "", "lag": None
        }  # fmt: skip
        revenue = by_name(found["collections"])["revenue"]
        assert (revenue["kind"], revenue["reads"], revenue["source"], revenue["rows"]) == ("view", ["orders"], None, 1)
        assert ERRORS in by_name(found["collections"])
        tables, views = (client.get(f"/v1/{kind}").body["collections"] for kind in ("tables", "views"))
        assert {one["kind"] for one in tables} == {"table"}
        assert [one["name"] for one in views] == ["revenue", "counts"]
        assert client.get("/v1/views/REVENUE").body == revenue


@pytest.mark.parametrize("path", ["/v1/views/orders", "/v1/tables/revenue", "/v1/tables/nothing", "/v1/views/x/rows"])
def test_an_unknown_collection_is_404_and_the_known_ones_are_named(path: str) -> None:
    with shop() as (_, client):
        answer = client.get(path)
        assert (answer.status, answer.body["error_code"]) == (404, "not_found")
        assert "it has " in answer.body["message"]


def test_a_table_without_a_shard_and_a_failed_view_are_listed() -> None:
    with open_pipeline(storage(), engine("revenue", tables=(without_shard(ORDERS),))) as p, served(p) as client:
        client.post(ROWS, [order(1)])
        members = p._runner.members
        away = AwayReason(ComponentState.FAILED, 2, "division by zero", 5.0)
        views = {"revenue": msgspec.structs.replace(p.definition.views["revenue"], away=away)}
        p._runner.members = p._runner.members.move_to(msgspec.structs.replace(p.definition, views=views))
        found = by_name(client.get("/v1/collections").body["collections"])
        assert (found["orders"]["is_kept"], found["orders"]["rows"], found["orders"]["parts"]) == (False, None, 0)
        assert (found["revenue"]["state"], found["revenue"]["why"]) == ("failed", "division by zero")
        [problem] = client.get("/v1/errors").body["problems"]
        assert (problem["of"], problem["error_code"]) == ("view 'revenue'", "view_failed")
        assert client.get(ROWS).body["error_code"] == "invalid_input"
        stale = "view 'revenue' is failed, and its content is that of transaction 1"
        assert client.get("/v1/views/revenue/rows").headers["evertide-stale"] == stale
        assert client.raw("GET", "/v1/views/revenue/changes?since=0").headers["evertide-stale"] == stale
        assert "evertide-stale" not in client.get("/v1/views/revenue/rows?as_of=1").headers
        p._runner.members = members
        assert "evertide-stale" not in client.get("/v1/views/revenue/rows").headers


def test_a_view_whose_query_changed_is_refused_until_it_is_computed() -> None:
    with shop() as (p, client):
        client.post(ROWS, [order(1)])
        members = p._runner.members
        away = AwayReason(ComponentState.HYDRATING, 1, "the view is computed from its tables", 0.0, is_redefined=True)
        views = {**p.definition.views, "revenue": msgspec.structs.replace(p.definition.views["revenue"], away=away)}
        p._runner.members = members.move_to(msgspec.structs.replace(p.definition, views=views))
        for path in ("/v1/views/revenue/rows", "/v1/views/revenue/changes?since=0"):
            answer = client.get(path)
            assert (answer.status, answer.body["error_code"]) == (409, "not_allowed_now")
            assert "its query changed" in answer.body["message"]
        assert client.get("/v1/views/revenue/rows?as_of=1").status == 200
        assert client.get("/v1/collections").status == 200
        p._runner.members = members


def test_the_graph_leads_from_sources_over_tables_to_views() -> None:
    with shop() as (_, client):
        client.post(ROWS, [order(1), order(2, "bob")])
        found = client.get("/v1/graph").body
        nodes = {node["id"]: node for node in found["nodes"]}
        assert set(nodes) == {"source:push", "table:orders", "table:notes", "view:revenue", "view:counts"}
        edges = {(edge["from"], edge["to"]) for edge in found["edges"]}
        assert edges >= {
            ("source:push", "table:orders"),
            ("table:orders", "view:revenue"),
            ("table:notes", "view:counts"),
        }
        assert (nodes["table:orders"]["rows"], nodes["table:orders"]["upper"]) == (2, 2)
        assert nodes["table:orders"]["rows_per_s"] > 0 == nodes["table:notes"]["rows_per_s"]


def test_transactions_and_journal_are_listed_newest_first_page_by_page() -> None:
    with shop() as (p, client):
        for number in range(1, 6):
            client.post(ROWS, [order(number)])
        found = client.get("/v1/transactions?limit=3").body["transactions"]
        assert [one["time"] for one in found] == [5, 4, 3]
        assert {one["rows_in"] for one in found} == {1}
        assert all(one["took_ms"] is not None and one["rows_out"] > 0 for one in found)
        assert [one["time"] for one in client.get("/v1/transactions?before=3&limit=2").body["transactions"]] == [2, 1]
        records = client.get("/v1/journal?limit=2").body["records"]
        assert [one["time"] for one in records] == [5, 4]
        assert records[0]["moved"] == ["push"]
        assert [one["time"] for one in client.get("/v1/journal?before=2").body["records"]] == [1, 0]
        store = p.storage
    with shop(store) as (_, client):
        last = client.get("/v1/transactions?limit=1").body["transactions"]
        assert [(one["time"], one["rows_in"], one["took_ms"]) for one in last] == [(5, 1, None)], (
            "the journal has the number of rows after a restart"
        )


def test_rows_that_did_not_fit_are_listed_with_their_place() -> None:
    source = ScriptedSource("files", ("orders",))
    fault = Fault("orders", "/in/a.csv", 7, "'x' is not a BIGINT", "x,ann,3")
    source.batches.append(batch(ORDERS, [order(1)], [fault, Fault("orders", "/in/a.csv", 9, "no", "y")]))
    with with_sources(source), open_pipeline(storage()) as p, served(p) as client:
        p.advance()
        found = client.get("/v1/errors?limit=1").body
        assert (found["count"], found["is_truncated"], len(found["errors"])) == (2, True, 1)
        told = client.get("/v1/errors").body["errors"]
        assert ("/in/a.csv", 7, "'x' is not a BIGINT") in {(one["place"], one["line"], one["reason"]) for one in told}


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/v1/transactions?limit=0", "parameter 'limit'"),
        ("/v1/transactions?limit=x", "parameter 'limit'"),
        ("/v1/journal?before=-1", "parameter 'before'"),
        ("/v1/errors?limit=10001", "parameter 'limit'"),
        ("/v1/status?x=1", "parameter"),
        ("/v1/journal?limit=1&limit=2", "parameter 'limit'"),
    ],
)
def test_wrong_and_unknown_parameters_are_refused(path: str, where: str) -> None:
    with shop() as (_, client):
        answer = client.get(path)
        assert (answer.status, answer.body["error_code"], answer.body["where"]) == (400, "invalid_input", where)
