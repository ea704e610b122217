"""Attempts to bypass the gate, each at a real socket."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest

from evertide.server.access import access as access_module
from tests.server.access.kit import ACCESS, ENDED, TEXTS, WRONG, Guarded, bearer, guarded, raw
from tests.server.kit import order

ADMIN, READER, WRITER = TEXTS["admin"], TEXTS["reader"], TEXTS["writer"]
ROWS = "/v1/tables/orders/rows"


@pytest.fixture(scope="module")
def g() -> Iterator[Guarded]:
    with guarded() as made:
        yield made


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/status", "//v1/status", "/v1//status", "/v1/./status", "/v1/health/../status", "/v1/%73tatus"),
        *(
            "/v1%2fstatus",
            "/v1/status/",
            "/v1/status;/v1/health",
            "/v1/status?/v1/health",
            "/v1/status%3f",
            "/V1/status",
        ),
        *("/v1/health%2f..%2fstatus", "/console/../v1/status", "/console/..%2fv1/status", "/v1/status%00/v1/health"),
        *("/v1/tables/orders%2frows", "/v1/tables/orders/rows", "/v1/health#/../status", "/v1\\status", "*"),
        *("http://localhost/v1/status", "http://localhost/v1/health/../status", "http://x@localhost/v1/status"),
        *("/v1/status?secret=" + ADMIN, "/v1/status?token=" + ADMIN, "/v1/shape%2f?secret=" + ADMIN),
        "/v1/shape/?secret=" + ADMIN,
    ],
)
def test_no_spelling_of_the_address_bypasses_the_gate(g: Guarded, path: str) -> None:
    for method in ("GET", "HEAD", "POST"):
        answer = raw(g.client(), f"{method} {path}")
        is_page = b"<html" in answer or b"content-security-policy" in answer  # files of the console hold no data
        is_health = answer.endswith((b'{"status":"active"}', b"\r\n\r\n"))
        assert is_page or is_health or status(answer) in (400, 401, 403, 404), (method, path, answer)
        assert b"customer" not in answer
        assert b"ann" not in answer
    assert ADMIN.encode() not in answer


def test_a_header_cannot_override_the_method(g: Guarded) -> None:
    """A reader that sends GET, with headers that ask for POST."""
    before = g.shop.pipeline.time
    for header in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
        given = {**bearer("reader"), header: "POST", "Content-Type": "application/json"}
        answer = raw(g.client(), f"GET {ROWS}?_method=POST", given)
        assert status(answer) in (200, 400)
    assert g.client("reader").post(ROWS, [order(9)]).status == 403
    assert g.client("reader").ask("HEAD", "/v1/logs").status == 403
    assert g.client("").ask("HEAD", "/v1/status").status == 401
    assert g.client("").ask("OPTIONS", "/v1/status").status == 401
    assert g.shop.pipeline.time == before


def test_several_tokens_are_accepted_only_if_they_are_equal(g: Guarded) -> None:
    def asked(path: str, *tokens: str) -> int:
        return status(raw(g.client(), f"GET {path}", [("Authorization", f"Bearer {one}") for one in tokens]))

    assert asked("/v1/status", READER) == 200
    assert asked("/v1/status", READER, READER) == 200
    assert asked("/v1/status", READER, WRONG) == asked("/v1/status", WRONG, READER) == 401
    assert asked("/v1/status", READER, ADMIN) == 401
    shape = "/v1/shape?table=orders&offset=-1"
    assert asked(f"{shape}&secret={READER}") == asked(f"{shape}&secret={READER}", READER) == 200
    assert asked(f"{shape}&api_secret={READER}") == 200
    assert asked(f"{shape}&secret={WRONG}&secret={READER}") == asked(f"{shape}&secret={READER}&secret={WRONG}") == 401
    assert asked(f"{shape}&secret={READER}", TEXTS["ann"]) == 401
    assert asked(f"{shape}&secret={READER}&api_secret={ADMIN}") == 401


def test_a_token_in_the_url_is_accepted_for_shapes_only(g: Guarded) -> None:
    for name in ("secret", "api_secret", "token", "access_token"):
        answer = raw(g.client(), f"GET /v1/status?{name}={READER}")
        assert status(answer) == 401
        assert b"send it in the header" in answer
        assert READER.encode() not in answer
    assert status(raw(g.client(), f"GET /v1/shape?table=orders&offset=-1&token={READER}")) == 401


@pytest.mark.parametrize(
    "value",
    [
        *("", "Bearer", "Bearer ", READER, f"Basic {READER}", f"Token {READER}", f"Bearer{READER}", f"Bearer,{READER}"),
        *(f"Bearer {READER[:-1]}", f"Bearer {READER}x", f"Bearer {READER.upper()}", f"Bearer {READER}, {READER}"),
        *(f"Bearer {WRONG}", f"Bearer {ENDED}", f"Bearer \xff{READER}", f'Bearer "{READER}"', "Bearer " + "x" * 9000),
        f"Bearer {ACCESS.tokens[0].digest.hex()}",
    ],
)
def test_malformed_tokens_are_refused(g: Guarded, value: str) -> None:
    answer = raw(g.client(), "GET /v1/status", {"Authorization": value})
    assert status(answer) == 401
    assert READER.encode() not in answer


def test_the_scheme_may_have_any_case(g: Guarded) -> None:
    for scheme in ("bearer", "BEARER", "Bearer "):
        assert status(raw(g.client(), "GET /v1/status", {"Authorization": f"{scheme} {READER}"})) == 200


def test_proxy_headers_do_not_bypass_the_gate(g: Guarded) -> None:
    given = {"X-Forwarded-For": "127.0.0.1", "X-Original-URL": "/v1/health", "X-Rewrite-URL": "/v1/health"}
    assert status(raw(g.client(), "GET /v1/status", {**given, "X-Forwarded-Proto": "https"})) == 401


def test_a_second_request_on_the_same_connection_needs_a_token(g: Guarded) -> None:
    """Also if it is hidden in the body of the first."""
    hidden = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"
    given = {**bearer("reader"), "Content-Length": "0"}
    answer = raw(g.client(), "GET /v1/status", {**given, "Connection": "keep-alive"}, hidden)
    assert answer.count(b"HTTP/1.1 200") == 1
    both = [*bearer("writer").items(), ("Transfer-Encoding", "chunked"), ("Content-Length", "5")]
    assert status(raw(g.client(), f"POST {ROWS}", both, b"0\r\n\r\n" + hidden)) == 400


def test_a_token_in_a_trailer_is_ignored(g: Guarded) -> None:
    """Fails if the fields after a chunked body are appended to the headers."""
    body = f"0\r\nAuthorization: Bearer {READER}\r\n\r\n".encode()
    assert status(raw(g.client(), "GET /v1/status", {"Transfer-Encoding": "chunked"}, body)) == 401


def test_every_token_is_compared_and_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the search ends with the first match, or compares by `==`."""
    compared: list[Any] = []

    def counted(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(access_module, "hmac", type("hmac", (), {"compare_digest": staticmethod(counted)}))
    for text in (ACCESS.tokens[0].name and READER, WRONG, ""):
        compared.clear()
        found = ACCESS.find(text)
        assert (found is not None) == (text == READER)
        assert [other for _, other in compared] == [token.digest for token in ACCESS.tokens]


def test_without_tokens_every_client_may_do_everything() -> None:
    with guarded(None) as g:
        assert g.client().get("/v1/status").status == 200
        assert g.client().post(ROWS, [order(9)]).status == 200
        assert g.client(WRONG).get("/v1/status").status == 200


def test_each_role_may_do_what_it_permits_at_the_real_app(g: Guarded) -> None:
    assert g.client("reader").get("/v1/status").status == 200
    assert g.client("reader").post("/v1/checkpoints").status == 403
    assert g.client("writer").post(ROWS, [order(1, "ann")]).status == 200
    refused = g.client("writer").post("/v1/checkpoints")
    assert (refused.status, refused.body["role"]) == (403, "admin")
    assert "'writer' has the role write" in refused.body["why"]
    assert json.dumps(refused.body).count(WRITER) == 0
    assert g.client("admin").post("/v1/checkpoints").status == 200
    assert g.client("").get("/v1/health").status == 200
