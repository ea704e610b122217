"""Every endpoint with every role, generated from the actual routes, so that a new endpoint is always tested."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from evertide.metrics.metrics import Metrics
from evertide.pgexpr.restriction import read_restriction
from evertide.pipeline.reading.reader import StorageReader
from evertide.server.access import ROLES, Access, Gate, Role, Rule, Token
from evertide.server.app import make_app
from evertide.server.shapes_app import make_shapes_app
from evertide.shapes.service import ShapeService
from tests.cli.kit import make_storage
from tests.pipeline.kit import open_pipeline, storage
from tests.server.access.kit import ACCESS, ENDED, RESTRICTIONS, TEXTS, WRONG, Asker, bearer
from tests.shapes.kit import engine

SHAPE_METHODS = ("GET", "POST", "DELETE", "OPTIONS")
NONE, READ, WRITE, ADMIN = range(4)
ABLE = {"reader": READ, "writer": WRITE, "admin": ADMIN}

EXPECTED = {
    "GET /": NONE,
    "GET /console/{path:path}": NONE,
    "GET /metrics": READ,
    "GET /v1/checkpoints": READ,
    "GET /v1/collections": READ,
    "GET /v1/errors": READ,
    "GET /v1/events": READ,
    "GET /v1/graph": READ,
    "GET /v1/health": NONE,
    "GET /v1/health/live": NONE,
    "GET /v1/health/ready": NONE,
    "GET /v1/journal": READ,
    "GET /v1/logs": ADMIN,
    "GET /v1/openapi.json": NONE,
    "GET /v1/shape": READ,
    "GET /v1/shapes": READ,
    "GET /v1/status": READ,
    "GET /v1/tables": READ,
    "GET /v1/tables/{name}": READ,
    "GET /v1/tables/{name}/changes": READ,
    "GET /v1/tables/{name}/rows": READ,
    "GET /v1/transactions": READ,
    "GET /v1/transactions/{id}": WRITE,
    "GET /v1/views": READ,
    "GET /v1/views/{name}": READ,
    "GET /v1/views/{name}/changes": READ,
    "GET /v1/views/{name}/explain": READ,
    "GET /v1/views/{name}/rows": READ,
    "POST /v1/checkpoints": ADMIN,
    "POST /v1/pause": ADMIN,
    "POST /v1/query": READ,
    "POST /v1/resume": ADMIN,
    "POST /v1/shape": READ,
    "POST /v1/tables/{name}/rows": WRITE,
    "POST /v1/transactions": WRITE,
    "POST /v1/transactions/begin": WRITE,
    "POST /v1/transactions/{id}/abort": WRITE,
    "POST /v1/transactions/{id}/commit": WRITE,
    "POST /v1/transactions/{id}/tables/{table}/rows": WRITE,
    "POST /v1/views/{name}/retry": ADMIN,
    "DELETE /v1/shape": ADMIN,
    "DELETE /v1/shapes/{handle}": ADMIN,
    "OPTIONS /v1/shape": NONE,
}
"""The expected roles: clients rely on them."""

FOR_RESTRICTED = {
    "GET /v1/shape",
    "POST /v1/shape",
    "GET /v1/tables/{name}/changes",
    "GET /v1/tables/{name}/rows",
    "GET /v1/views/{name}/changes",
    "GET /v1/views/{name}/rows",
}


def endpoints(app: Starlette) -> Iterator[tuple[str, str]]:
    for route in app.routes:
        assert isinstance(route, Route), f"{route}: the table of roles knows routes only"
        for method in sorted(route.methods or SHAPE_METHODS):
            if method != "HEAD":
                yield method, route.path


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """All endpoints of both apps."""
    folder = make_storage(Path(tmp_path_factory.mktemp("roles")) / "s", 1)
    with open_pipeline(storage(), engine()) as pipeline:
        service = ShapeService(pipeline.collections)
        found = {*endpoints(make_app(pipeline, shapes=service, metrics=Metrics()))}
    with StorageReader.open(str(folder)) as reader:
        found |= {*endpoints(make_shapes_app(reader, ShapeService(reader.collections)))}
    return sorted(found)


@pytest.fixture(scope="module")
def gate(known: list[tuple[str, str]]) -> Asker:
    """All endpoints, with a handler that only answers."""

    async def there(request: Request) -> Response:
        token = request.state.token
        return JSONResponse({"token": token.name if token is not None else None})

    app = Starlette(routes=[Route(path, there, methods=[method]) for method, path in known])
    return Asker(Gate(app, ACCESS))


def fill_path(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "x", path)


def strip_names(path: str) -> str:
    """Remove the names of parameters from the path."""
    return re.sub(r"\{(\w+)(:\w+)?\}", r"{\2}", path)


def expected(method: str, path: str) -> int:
    by_form = {strip_names(each): role for each, role in EXPECTED.items()}
    return by_form[strip_names(f"{method} {path}")]


def test_every_endpoint_has_a_rule_with_the_expected_role(known: list[tuple[str, str]]) -> None:
    """Fails for an endpoint that was added without a role."""
    lines: dict[str, list[Rule]] = {}
    for rule in ROLES:
        lines.setdefault(strip_names(f"{rule.method} {rule.path}"), []).append(rule)
    for method, path in known:
        found = lines.get(strip_names(f"{method} {path}"))
        assert found is not None, f"{method} {path} has no rule in evertide.server.access.roles"
        assert len(found) == 1
        assert (found[0].role or 0) == expected(method, path), (method, path)


def test_every_rule_belongs_to_an_endpoint(known: list[tuple[str, str]]) -> None:
    """An unused rule would open an endpoint that is added there later."""
    there = {strip_names(f"{method} {path}") for method, path in known}
    assert {strip_names(f"{rule.method} {rule.path}") for rule in ROLES} == there
    assert {strip_names(each) for each in EXPECTED} == there


def test_every_endpoint_admits_the_roles_of_its_rule(known: list[tuple[str, str]], gate: Asker) -> None:
    for method, path in known:
        needed, where = expected(method, path), fill_path(path)
        for who, able in ABLE.items():
            answer = gate.request(method, where, headers=bearer(who))
            if able >= needed:
                name = None if needed == NONE else who
                assert (answer.status_code, answer.json()) == (200, {"token": name}), (method, path, who)
            else:
                assert answer.status_code == 403, (method, path, who)
                body = answer.json()
                assert (body["error_code"], body["role"]) == ("forbidden", {2: "write", 3: "admin"}[needed])
                assert f'scope="{body["role"]}"' in answer.headers["www-authenticate"]


def test_every_endpoint_refuses_missing_wrong_and_expired_tokens(known: list[tuple[str, str]], gate: Asker) -> None:
    given = [{}, bearer(WRONG), bearer(ENDED), {"Authorization": "Basic YWRtaW46YWRtaW4="}, {"Authorization": "Bearer"}]
    for method, path in known:
        for headers in given:
            answer = gate.request(method, fill_path(path), headers=headers)
            if expected(method, path) == NONE:
                assert (answer.status_code, answer.json()) == (200, {"token": None})
                continue
            assert (answer.status_code, answer.json()["error_code"]) == (401, "unauthorized"), (method, path, headers)
            assert answer.headers["www-authenticate"] == 'Bearer realm="evertide"'
            assert answer.headers["cache-control"] == "no-store"
            assert WRONG not in answer.text
            assert ENDED not in answer.text


def test_a_restricted_token_reaches_only_endpoints_that_apply_restrictions(
    known: list[tuple[str, str]], gate: Asker
) -> None:
    forms = {strip_names(each) for each in FOR_RESTRICTED}
    for method, path in known:
        is_open = expected(method, path) == NONE or strip_names(f"{method} {path}") in forms
        for who in RESTRICTIONS:
            answer = gate.request(method, fill_path(path), headers=bearer(who))
            assert answer.status_code == (200 if is_open else 403), (method, path, who)


def test_an_address_without_a_rule_needs_an_admin(gate: Asker) -> None:
    """Also a method that an address does not support, and an unknown one."""
    asked = [("GET", "/v1/new"), ("PUT", "/v1/status"), ("BREW", "/v1/health"), ("TRACE", "/"), ("POST", "/metrics")]
    for method, path in [*asked, ("OPTIONS", "/v1/status"), ("GET", "/v1/health/"), ("GET", "/V1/HEALTH")]:
        assert gate.request(method, path).status_code == 401, path
        assert gate.request(method, path, headers=bearer("writer")).status_code == 403, path
        assert gate.request(method, path, headers=bearer("admin")).status_code in (200, 307, 404, 405), path


def test_of_two_matching_rules_the_stricter_one_applies() -> None:
    async def there(_: Request) -> Response:
        return Response()

    lines = (Rule("GET", "/a/{x}", None, is_restricted=True), *ROLES, Rule("GET", "/a/b", ROLES[-1].role))
    app = Starlette(routes=[Route("/a/{x}", there)])
    client = Asker(Gate(app, ACCESS, lines))
    assert client.request("GET", "/a/c").status_code == 200
    assert client.request("GET", "/a/b").status_code == 401
    assert client.request("GET", "/a/b", headers=bearer("writer")).status_code == 403


def test_an_unauthenticated_request_sees_nothing_even_if_a_handler_forgets() -> None:
    async def there(request: Request) -> Response:
        return JSONResponse(read_restriction(request.scope).allows("orders"))

    app = Starlette(routes=[Route("/v1/health", there), Route("/v1/status", there)])
    assert Asker(Gate(app, ACCESS)).request("GET", "/v1/health").json() is False
    assert Asker(Gate(app, ACCESS)).request("GET", "/v1/status", bearer("reader")).json() is True
    assert Asker(Gate(app, Access())).request("GET", "/v1/health").json() is True


@pytest.mark.parametrize(
    ("path", "after"),
    [
        ("/v1/shape", Access((Token.of("x", Role.ADMIN, WRONG),))),
        ("/v1/transactions/1", Access((Token.of("x", Role.READ, TEXTS["writer"]),))),
        ("/v1/shape", Access((Token.of("x", Role.READ, TEXTS["writer"], RESTRICTIONS["ann"]),))),
        ("/v1/shape", ACCESS),
    ],
    ids=["gone", "another role", "restricted", "the same"],
)
@pytest.mark.parametrize("media", ["text/event-stream", "text/csv"])
def test_only_an_endless_stream_ends_when_its_token_loses_access(path: str, after: Access, media: str) -> None:
    """An answer that ends by itself is sent whole. Fails if the gate checks only once."""

    async def there(_: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"1"
            own._access = after
            yield b"2"
            yield b"3"

        return StreamingResponse(pieces(), media_type=media)

    own = Gate(Starlette(routes=[Route(path, there)]), ACCESS)
    answer = Asker(own).request("GET", path, bearer("writer"))
    is_cut = after is not ACCESS and media == "text/event-stream"
    assert (answer.status_code, answer.content) == (200, b"1" if is_cut else b"123")
