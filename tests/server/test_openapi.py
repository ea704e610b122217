"""The OpenAPI document is true for every endpoint and every request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from evertide.server.access.roles import ROLES
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.shapes.service import ShapeService
from tests.pipeline.kit import open_pipeline
from tests.server.access.kit import bearer, guarded
from tests.server.kit import Client, order, shop, stored

SHORT = settings(
    max_examples=6,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

SKIPPED = {"/v1/events", "/v1/shape"}
"""Endless or waiting endpoints, with separate tests (`test_events`, `tests/shapes/test_shape_openapi.py`)."""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Serve all endpoints, with some rows."""
    store = stored(tmp_path_factory.mktemp("everything"))
    with open_pipeline(store) as p, ShapeService(p.collections) as shapes, Server() as server:
        server.start(make_app(p, shapes=shapes))
        client = Client(server.host, server.port)
        client.post("/v1/tables/orders/rows", [order(1), order(2, "bob")])
        yield client
        shapes.drain()


def test_every_endpoint_is_described_and_has_a_role(everything: Client) -> None:
    """Fails if an endpoint is added without a role."""
    found = everything.get("/v1/openapi.json").body
    assert found["openapi"].startswith("3.1")
    described = {(method.upper(), path) for path, one in found["paths"].items() for method in one}
    assert len(described) >= 35
    assert ("GET", "/v1/shape") in described
    ruled = {(rule.method, _bare(rule.path)) for rule in ROLES}
    assert {(method, _bare(path)) for method, path in described} <= ruled
    names = [one["operationId"] for path in found["paths"].values() for one in path.values()]
    assert len(names) == len(set(names))


def _bare(path: str) -> str:
    return "/".join("{}" if each.startswith("{") else each for each in path.split("/"))


def test_a_document_without_shapes_has_none_of_their_endpoints() -> None:
    with shop() as (_, client):
        assert "/v1/shapes" not in client.get("/v1/openapi.json").body["paths"]
        assert client.get("/v1/shapes").status == 404


def test_shapes_are_listed_and_ended(everything: Client) -> None:
    raw = everything.raw("GET", "/v1/shape?table=orders&offset=-1&where=id%20%3C%209&columns=id,amount")
    handle = raw.headers["electric-handle"]
    [found] = [one for one in everything.get("/v1/shapes").body["shapes"] if one["handle"] == handle]
    assert (found["collection"], found["columns"], found["time"]) == ("orders", ["id", "amount"], 1)
    assert "9" in found["where"]
    assert everything.ask("DELETE", f"/v1/shapes/{handle}").body == {"handle": handle}
    assert everything.ask("DELETE", f"/v1/shapes/{handle}").status == 404
    assert everything.raw("GET", f"/v1/shape?table=orders&offset=0_0&handle={handle}&where=id%20%3C%209").status == 409


def operations(describe_api: dict[str, Any]) -> list[tuple[str, str]]:
    return [(method, path) for path, one in describe_api["paths"].items() for method in one if path not in SKIPPED]


def send_random_requests(client: Client, headers: Mapping[str, str]) -> Counter[int]:
    """Send requests of every operation, valid and invalid ones; count the answers by code."""
    describe_api = client.get("/v1/openapi.json").body
    schema = schemathesis.openapi.from_dict(describe_api)
    schema.config.update(base_url=f"http://{client.host}:{client.port}")
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    codes: Counter[int] = Counter()

    for method, path in operations(describe_api):

        def asked(case: Any) -> None:
            codes[case.call_and_validate(checks=checks, timeout=120, headers=dict(headers)).status_code] += 1

        SHORT(given(case=schema[path][method.upper()].as_strategy())(asked))()
    return codes


def test_random_requests_are_answered_as_the_document_says(everything: Client) -> None:
    """No answer is 500, and each has the code, the type and the form of the document."""
    codes = send_random_requests(everything, {})
    assert codes[200] > 20  # most random requests are refused
    assert codes[401] + codes[403] == 0
    assert everything.get("/v1/health").status == 200


def test_random_requests_with_and_without_tokens_are_answered_as_the_document_says() -> None:
    with guarded() as world:
        client = world.client()
        asked = {who: send_random_requests(client, bearer(who) if who else {}) for who in ("", "reader", "admin")}
        assert world.client("admin").get("/v1/status").status == 200
    assert {code for code in asked[""] if code < 400} == {200}  # health and this document
    assert asked[""][401] > asked[""][200]
    assert asked["reader"][401] == 0
    assert asked["reader"][403] > 0
    assert asked["admin"][401] + asked["admin"][403] == 0
