"""Pages of other origins: listed ones may use the API, others are refused. By raw requests, and in a real browser."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import evertide.server
from evertide.errors import InvalidInput
from evertide.server.access import ListenOptions
from evertide.server.access.origins import parse_origin
from evertide.server.server import Server
from evertide.shapes.http.answers import EXPOSED_HEADERS
from tests.server.access.kit import ACCESS, TEXTS, Guarded, bearer, guarded, raw
from tests.server.kit import Client, order
from tests.servers.browser import open_page
from tests.servers.pages import hosted

APP = "https://app.example"
EVIL = "https://evil.example"
ROWS = "/v1/tables/orders/rows"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}


@pytest.fixture(scope="module")
def unguarded() -> Iterator[Guarded]:
    with guarded(None, ListenOptions(origins=(APP, "http://localhost:5173"))) as made:
        yield made


@pytest.fixture(scope="module")
def with_tokens() -> Iterator[Guarded]:
    with guarded(listening=ListenOptions(access=ACCESS, origins=(APP,))) as made:
        yield made


def read(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = [line.partition(": ")[::2] for line in lines[1:]]
    names = [name.lower() for name, _ in headers]
    assert len({*names}) == len(names), f"a header is there twice: {names}"
    return int(lines[0].split(" ")[1]), {name.lower(): value for name, value in headers}, body


def ask(g: Guarded, line: str, origin: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Any:
    given = {"Origin": origin, **(headers or {}), **({"Content-Length": str(len(body))} if body else {})}
    return read(raw(g.client(), line, given, body))


def push(g: Guarded, origin: str, rows: list[Any], **headers: str) -> Any:
    given = {"Content-Type": "application/json", **headers}
    return ask(g, f"POST {ROWS}", origin, given, json.dumps(rows).encode())


def list_names(text: str) -> set[str]:
    return {name.strip().lower() for name in text.split(",")}


@pytest.mark.parametrize("path", [ROWS, "/v1/transactions/begin", "/v1/query", "/v1/shape", "/v1/shapes/x"])
def test_a_preflight_of_a_listed_origin_is_answered_without_a_token(with_tokens: Guarded, path: str) -> None:
    """Fails if authentication comes first: browsers send no token with a preflight request."""
    status, headers, body = ask(with_tokens, f"OPTIONS {path}", APP, PREFLIGHT)
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-origin"] == APP
    assert list_names(headers["vary"]) == {"origin"}
    assert list_names(headers["access-control-allow-methods"]) == {"get", "head", "post", "delete"}
    sent = {"authorization", "content-type", "evertide-producer", "evertide-sequence", "if-none-match"}
    assert sent <= list_names(headers["access-control-allow-headers"])
    assert "*" not in headers["access-control-allow-headers"] + headers["access-control-allow-methods"]
    assert headers["access-control-max-age"] == "7200"
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize(
    "origin", [EVIL, "null", "http://app.example", f"{APP}:8443", f"{APP}.evil.example", "https://app"]
)
def test_other_origins_are_refused_as_without_the_option(unguarded: Guarded, with_tokens: Guarded, origin: str) -> None:
    """Fails if the origin is echoed without a look at the list, or compared in part."""
    before = unguarded.shop.pipeline.time
    status, headers, _ = ask(unguarded, f"OPTIONS {ROWS}", origin, PREFLIGHT)
    assert (status, "access-control-allow-origin" in headers) == (403, False)
    for media in ("application/json", "text/plain"):
        status, headers, _ = push(unguarded, origin, [order(99)], **{"Content-Type": media})
        assert (status, "access-control-allow-origin" in headers) == (403, False)
    assert ask(unguarded, "GET /v1/status", origin)[0] == 403
    assert unguarded.shop.pipeline.time == before
    status, headers, _ = ask(with_tokens, f"OPTIONS {ROWS}", origin, PREFLIGHT)
    assert (status, "access-control-allow-origin" in headers) == (401, False)
    status, headers, _ = ask(with_tokens, "GET /v1/status", origin, bearer("reader"))
    assert (status, "access-control-allow-origin" in headers) == (200, False), "the token decides, and no page reads it"


def test_a_page_of_a_listed_origin_pushes_and_reads_the_answer(unguarded: Guarded, with_tokens: Guarded) -> None:
    for g, headers in ((unguarded, {}), (with_tokens, bearer("writer"))):
        status, answered, body = push(g, APP, [order(7)], **headers, **{"Sec-Fetch-Site": "cross-site"})
        assert (status, answered["access-control-allow-origin"]) == (200, APP)
        assert json.loads(body)["txid"] == int(answered["evertide-txid"])
        assert {"evertide-txid", "evertide-time", "retry-after"} <= list_names(
            answered["access-control-expose-headers"]
        )
        assert "origin" in list_names(answered["vary"])
        assert "access-control-allow-credentials" not in answered


def test_a_listed_origin_can_read_why_it_is_refused(with_tokens: Guarded) -> None:
    """Fails if the headers are added behind the gate: the page would see a network error."""
    for expected, headers in ((401, {}), (403, bearer("reader"))):
        status, answered, _ = push(with_tokens, APP, [order(7)], **headers)
        assert (status, answered["access-control-allow-origin"]) == (expected, APP)


def test_a_shape_for_a_listed_origin_has_the_headers_of_both(with_tokens: Guarded) -> None:
    line = "GET /v1/shape?table=orders&offset=-1"
    status, headers, _ = ask(with_tokens, line, APP, bearer("reader"))
    assert (status, headers["access-control-allow-origin"]) == (200, APP)
    assert list_names(headers["vary"]) == {"origin", "authorization"}
    assert list_names(EXPOSED_HEADERS) <= list_names(headers["access-control-expose-headers"])
    status, headers, _ = ask(with_tokens, line, EVIL, bearer("reader"))
    assert (status, headers["access-control-allow-origin"]) == (200, EVIL), "any page may read shapes, with a token"


def test_answers_depend_on_the_origin_only_if_one_is_listed(unguarded: Guarded) -> None:
    """Without `Vary`, a cache might give an answer without the headers to the page of a listed origin."""
    _, headers, _ = read(raw(unguarded.client(), "GET /v1/status"))
    assert list_names(headers["vary"]) == {"origin"}
    assert "vary" not in read(raw(unguarded.client(), "GET /"))[1]
    with guarded() as g:
        assert "vary" not in read(raw(g.client("reader"), "GET /v1/status", bearer("reader")))[1]


def test_an_options_request_that_is_no_preflight_needs_a_token(with_tokens: Guarded) -> None:
    assert ask(with_tokens, f"OPTIONS {ROWS}", APP)[0] == 401


def test_a_page_can_read_that_the_server_is_starting() -> None:
    with Server(listening=ListenOptions(origins=(APP,))) as server:
        server.begin()
        client = Client(server.host, server.port)
        status, headers, _ = read(raw(client, "GET /v1/status", {"Origin": APP}))
        assert (status, headers["access-control-allow-origin"]) == (503, APP)
        assert read(raw(client, f"OPTIONS {ROWS}", {"Origin": APP, **PREFLIGHT}))[0] == 204


def test_every_header_of_ours_is_exposed(unguarded: Guarded) -> None:
    """Every `Evertide-...` header that the server's modules name is one that pages may send or read."""
    modules = Path(evertide.server.__file__).parent.parent.rglob("*.py")
    trees = [ast.parse(path.read_text()) for path in modules if "sinks" not in path.parts]
    texts = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    used = {text.lower() for text in texts if isinstance(text, str) and re.fullmatch(r"Evertide-[A-Z]\w+", text)}
    assert {"evertide-txid", "evertide-producer"} <= used
    _, preflight, _ = ask(unguarded, f"OPTIONS {ROWS}", APP, PREFLIGHT)
    _, answer, _ = ask(unguarded, "GET /v1/status", APP)
    known = list_names(preflight["access-control-allow-headers"]) | list_names(answer["access-control-expose-headers"])
    assert used <= known


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://app.example", "https://app.example"),
        ("HTTPS://App.Example/", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("http://app.example:80", "http://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("http://[::1]:5173", "http://[::1]:5173"),
        ("capacitor://localhost", "capacitor://localhost"),
    ],
)
def test_origins_are_spelled_as_browsers_send_them(text: str, origin: str) -> None:
    assert parse_origin(text) == origin
    assert ListenOptions(origins=(text,)).origins == (origin,)


@pytest.mark.parametrize(
    "text",
    ["", "*", "null", "app.example", "https://", "https://*.app.example", "https://a/b", "https://a?b", "https://u@a",
     "https://a:x", "https://münchen.example", "https://a b", "//a", "https://:443"],
)  # fmt: skip
def test_texts_that_are_no_origin_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="origin"):
        ListenOptions(origins=(text,))


FETCH = """(async () => {{
  try {{
    const answer = await fetch("{url}", {{ method: "POST", body: '{body}', headers: {headers} }})
    return [answer.status, (await answer.json()).txid, answer.headers.get("Evertide-Txid")]
  }} catch (error) {{
    return error.name
  }}
}})()"""
PLAIN = "fetch('{url}', {{ method: 'POST', mode: 'no-cors', body: '[]' }}).then(answer => answer.type)"


def test_a_browser_lets_the_listed_page_push_and_no_other_one(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>app</title><link rel=icon href=data:,>")
    with hosted(tmp_path) as port:
        listening = ListenOptions(access=ACCESS, origins=(f"http://app.example:{port}",))
        for access, listening_options in ((None, ListenOptions(origins=listening.origins)), (ACCESS, listening)):
            with guarded(access, listening_options) as g, open_page(f"http://app.example:{port}/") as page:
                pipeline, url = g.shop.pipeline, f"http://localhost:{g.shop.port}{ROWS}"
                headers = {
                    "Content-Type": "application/json",
                    "Evertide-Producer": "page",
                    "Evertide-Sequence": "1",
                    **({} if access is None else {"Authorization": f"Bearer {TEXTS['writer']}"}),
                }
                fetch = FETCH.format(url=url, body=json.dumps([order(50)]), headers=json.dumps(headers))
                time = pipeline.time + 1
                assert page.ask(fetch) == [200, time + 1, str(time + 1)]
                page.do(go=f"http://evil.example:{port}/")
                answer = page.send(ask=fetch)
                assert answer["told"] == "TypeError", "the browser does not send the request"
                assert any("CORS policy" in error for error in answer["errors"])
                assert page.ask(PLAIN.format(url=url)) == "opaque", "such a request needs no preflight"
                assert pipeline.time == time
