"""The OpenAPI description of `/v1/shape`: the answer to any request is one that it lists.

Hypothesis generates requests from the description, some with meaningful values, for all methods. No answer is 5xx, none
takes long, and none increases the server's memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evertide.shapes.http.openapi import describe_shape_paths
from evertide.shapes.protocol.requests import _SUBSET_FIELDS, parse_request
from tests.shapes.kit import OPTIONS, Shop, order, shop

[(PATH, METHODS)] = describe_shape_paths().items()
NAMES = sorted({one["name"] for operation in METHODS.values() for one in operation["parameters"]})
SENSIBLE: dict[str, list[str]] = {
    "table": ["orders", "revenue", "buyers", "public.orders", '"orders"', "nope", "public.", "a.b.c"],
    "offset": ["-1", "now", "0_0", "0_inf", "1_0", "3_inf", "18446744073709551616_0", "9_"],
    "handle": ["0" * 32 + "-1", "x"],
    "where": ["id = 1", "id > $1", "customer LIKE '%a'", "1 / 0 = 1", "id = ANY ($1)", "(" * 60, "now() > 1"],
    "columns": ["id", "id,customer", "customer", '"id", amount', ","],
    "subset__where": ["amount > 1", "$1 = id", "x"],
    "subset__params": ['{"1": "2"}', "[]", "{"],
    "subset__order_by": ["id", "id desc nulls first, customer", "nope", "id;"],
}
ANY = st.text(st.characters(codec="utf-8"), max_size=40)


def values(name: str) -> st.SearchStrategy[str]:
    kinds = [schema for schema in schemas(name) if "enum" in schema]
    named = [*SENSIBLE.get(name, []), *(one for schema in kinds for one in schema["enum"]), "", "1", "true"]
    return st.one_of(st.sampled_from(named), ANY)


def schemas(name: str) -> list[dict[str, Any]]:
    return [one["schema"] for each in METHODS.values() for one in each["parameters"] if one["name"] == name]


QUERY = st.lists(st.sampled_from(NAMES), max_size=6, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: values(name) for name in ["table", "offset", *names]})
)
SUBSET = {"where": ANY, "params": st.dictionaries(ANY, ANY), "order_by": ANY, "limit": st.integers()}
BODY = st.one_of(
    st.binary(max_size=60), st.fixed_dictionaries({}, optional=SUBSET).map(lambda told: json.dumps(told).encode())
)
TOLD = st.characters(min_codepoint=0x20, max_codepoint=0x7E)
HEADERS = st.dictionaries(
    st.sampled_from(["if-none-match", "origin", "accept", "authorization", "content-type", "range", "x-other"]),
    st.text(TOLD, max_size=30),
    max_size=3,
)


@pytest.fixture(scope="module")
def s() -> Iterator[Shop]:
    quick = OPTIONS.__class__(long_poll_s=0.01, sse_s=0.01, keep_alive_s=0.01, ready_s=0.01, shapes_max=50)
    with shop(options=quick) as made:
        made.push(rows=[order(1), order(2, "bob", 3)])
        yield made


def send_request(
    s: Shop, method: str, query: dict[str, str], headers: dict[str, str], body: bytes
) -> tuple[int, bytes]:
    """Call the endpoint directly, without a server, so that many requests take little time."""
    got: list[Any] = []
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if sent:
            return sent.pop()
        await asyncio.sleep(3600)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        got.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": urlencode(query).encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "state": {},
    }
    asyncio.run(asyncio.wait_for(s.service.endpoint(scope, receive, send), 60))
    return got[0]["status"], b"".join(message.get("body", b"") for message in got)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(method=st.sampled_from([*METHODS, "head", "options"]), query=QUERY, headers=HEADERS, body=BODY)
def test_every_answer_is_described_in_the_document(
    s: Shop, method: str, query: dict[str, str], headers: dict[str, str], body: bytes
) -> None:
    status, content = send_request(s, method.upper(), query, headers, body if method == "post" else b"")
    described = METHODS.get(method, METHODS["get"])["responses"]
    assert str(status) in described or (method == "options" and status == 204), content
    assert status < 500, content
    if 400 <= status < 500 and status != 409:
        assert {"message", "error"} & json.loads(content).keys(), content


def test_random_requests_do_not_increase_memory(s: Shop) -> None:
    """Thousands of distinct clauses, most of them invalid."""

    def once(number: int) -> None:
        send_request(
            s, "GET", {"table": "orders", "offset": "-1", "where": f"id = {number} AND nope = {'x' * 2000}"}, {}, b""
        )

    for number in range(300):
        once(number)
    before = psutil.Process().memory_info().rss
    for number in range(1_000):
        once(1_000 + number)
    assert psutil.Process().memory_info().rss - before < 32 * 2**20


def test_every_supported_parameter_is_described() -> None:
    body = METHODS["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert {*body, "where_expr", "order_by_expr"} == {*_SUBSET_FIELDS}, (
        "clients send the last two, and the server ignores them"
    )
    assert {f"subset__{name}" for name in body} == {name for name in NAMES if name.startswith("subset__")}
    whole = {
        **dict.fromkeys(NAMES, ""),
        "table": "orders",
        "offset": "1_0",
        "handle": "h",
        "live": "true",
        "live_sse": "true",
        "cursor": "5",
        "where": "id = $1",
        "params[1]": "1",
        "columns": "id",
        "queryable_columns": "id",
        "replica": "full",
        "log": "changes_only",
        "subset__where": "id = 1",
        "subset__params": "{}",
        "subset__order_by": "id",
        "subset__limit": "1",
        "subset__offset": "1",
    }
    found = parse_request(whole)
    assert all((found.handle, found.is_live, found.is_sse, found.cursor, found.where, found.params, found.columns))
    assert all((found.queryable, found.is_full, found.is_changes_only, found.subset))
    assert whole.keys() == {*NAMES}
