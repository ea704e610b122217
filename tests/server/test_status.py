"""Health, status and checkpoints, which are answered however many pushes wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from evertide.errors import SourceAway, SourceFailed
from evertide.json_values import to_json_value
from evertide.pipeline.definition import AwayReason
from evertide.pipeline.status.stored_facts import StoredFacts
from evertide.problem import ComponentState, Problem
from evertide.server.endpoints import push as pushing
from evertide.server.endpoints.health import StatusEndpoints
from evertide.sources.contract import Lag
from tests.pipeline.kit import (
    ORDERS,
    CandidSource,
    ScriptedSource,
    engine,
    open_pipeline,
    storage,
    with_sources,
    without_shard,
)
from tests.server.kit import order, served, shop

ROWS = "/v1/tables/orders/rows"


def test_a_running_pipeline_is_healthy_and_returns_its_whole_status() -> None:
    with shop() as (p, client):
        client.post(ROWS, [order(1)])
        health = client.get("/v1/health")
        assert (health.status, health.body) == (200, {"status": "active"})
        status = client.get("/v1/status").body
        assert status.keys() == to_json_value(p.status()).keys()
        assert (status["state"], status["time"], status["bound"]) == ("running", 1, 1)
        assert {one["name"]: one["upper"] for one in status["collections"]}["revenue"] == 2
        p.pause()
        paused = client.get("/v1/health")
        assert (paused.status, paused.body["status"]) == (200, "paused")


def test_a_stalled_source_is_reported_and_does_not_make_the_service_unhealthy() -> None:
    source = ScriptedSource("files", ("notes",))
    source.error = SourceFailed(source="files", where="/in", why="no such directory")
    with with_sources(source), open_pipeline(storage()) as p, served(p) as client:
        assert client.post(ROWS, [order(1)]).status == 200
        health = client.get("/v1/health")
        assert (health.status, health.body["status"], health.body["error_code"]) == (200, "stalled", "source_failed")
        assert "no such directory" in health.body["why"]


def test_problems_of_sources_are_in_the_status_and_do_not_make_it_unhealthy() -> None:
    source = CandidSource("shop", ("orders",))
    source.lag = Lag(rows=12, seconds=0.5)
    source.error = SourceAway(source="shop", where="there", why="connection refused")
    source.problems = (Problem(ComponentState.RECONNECTING, "source_away", "connection refused", "wait", 5.0, 0.25),)
    with with_sources(source), open_pipeline(storage()) as p, served(p) as client:
        p.advance()
        told = next(one for one in client.get("/v1/status").body["sources"] if one["name"] == "shop")
        assert (told["state"], told["tables"], told["told_at_s"]) == ("reconnecting", ["orders"], None)
        assert told["lag"] == {"bytes": None, "rows": 12, "files": None, "seconds": 0.5}
        assert told["problems"] == [to_json_value(source.problems[0])]
        health = client.get("/v1/health")
        assert (health.status, health.body["status"], health.body["error_code"]) == (200, "reconnecting", "source_away")


def test_views_that_are_hydrating_are_named() -> None:
    with shop() as (p, client):
        views = dict(p.definition.views)
        away = AwayReason(ComponentState.HYDRATING, 0, "the view is computed from its tables", 0.0)
        views["revenue"] = msgspec.structs.replace(views["revenue"], away=away)
        p._runner.members = p._runner.members.move_to(msgspec.structs.replace(p.definition, views=views))
        health = client.get("/v1/health")
        assert (health.status, health.body) == (202, {"status": "hydrating", "views": ["revenue"]})


def test_checkpoints_are_listed_and_can_be_requested() -> None:
    with shop() as (_, client):
        before = client.get("/v1/checkpoints").body["checkpoints"]
        client.post(ROWS, [order(1)])
        made = client.post("/v1/checkpoints").body
        assert made.keys() == {"number", "time", "made_at_s"}
        assert made["time"] == 2
        newest = client.get("/v1/checkpoints").body["checkpoints"][0]
        assert {name: newest[name] for name in made} == made
        assert newest["files"] > 0 < newest["bytes"]
        assert made["number"] > before[0]["number"]
        assert client.post("/v1/checkpoints").body == made, "nothing was committed since"


def test_health_is_answered_while_more_pushes_wait_than_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if pushes wait in the threads that everything else runs in."""
    monkeypatch.setattr(pushing, "_THREADS", 50)
    with shop() as (p, client), ThreadPoolExecutor(60) as threads:
        with p._turn:
            asked = [threads.submit(client.post, ROWS, [order(number)]) for number in range(60)]
            while len(p._pushes._ready) < 50:
                threading.Event().wait(0.01)
            assert client.get("/v1/health").status == 200
        assert {each.result().status for each in asked} == {200}


def test_storage_that_does_not_answer_makes_the_service_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails without a limit: the request would wait for as long as storage calls are retried.

    `/v1/status` has the last known status meanwhile.
    """
    monkeypatch.setattr(StatusEndpoints.__init__, "__defaults__", (0.1,))
    over = threading.Event()

    def hang(_: Any) -> None:
        over.wait(20)

    with shop() as (p, client), monkeypatch.context() as patch:
        patch.setattr(StoredFacts, "read", hang)
        try:
            health = client.get("/v1/health")
            assert (health.status, health.body["error_code"]) == (503, "unavailable")
            status = client.get("/v1/status")
            assert (status.status, status.body["state"], status.body["time"]) == (200, "stalled", p.time)
            assert {one["name"]: one["upper"] for one in status.body["collections"]}["orders"] == p.time + 1
            assert status.body["stored_at_s"] > 0
        finally:
            over.set()


def test_a_pipeline_whose_tables_have_no_shards_is_served() -> None:
    with open_pipeline(storage(), engine("revenue", tables=(without_shard(ORDERS),))) as p, served(p) as client:
        assert client.post(ROWS, [order(1)]).status == 200
        assert [row["amount"] for row in p.view("revenue").to_pylist()] == [10]
