"""Hostile requests get 4xx with a reason, never 5xx and never another client's rows; and slow clients."""

from __future__ import annotations

import socket
import string
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from evertide.pipeline.engine import DeclaredTable
from evertide.shapes.options import ShapeOptions
from evertide.sources.generated.seeded import RandomStream
from tests.kit.small_engine import SmallEngine
from tests.shapes.kit import Follower, Shop, order, shop

NAMES: tuple[str, ...] = (
    "table",
    "offset",
    "handle",
    "live",
    "live_sse",
    "cursor",
    "where",
    "params[1]",
    "params[x]",
    "columns",
)
NAMES += ("queryable_columns", "replica", "log", "subset__where", "subset__params", "subset__limit", "secret", "")
NAMES += ("subset__offset", "subset__order_by", "subset__where_expr", "experimental_live_sse", "expired_handle")
VALUES: tuple[str, ...] = (
    "orders",
    "revenue",
    "buyers",
    "-1",
    "now",
    "0_0",
    "0_inf",
    "1_0",
    "2_inf",
    "true",
    "false",
    "",
    "full",
)
VALUES += ("id", '"id"', "id,amount", "id = 1", "id = $1", "1", '{"1": "x"}', "[", "id desc", "default", "changes_only")
VALUES += (
    "\x00",
    "é\u2028😀",
    "%",
    "a" * 300,
    "'",
    '"',
    "--",
    "((((",
    "-",
    "+",
    "9" * 40,
    "9223372036854775808_0",
    "null",
)


def raw(s: Shop, request: bytes) -> bytes:
    with socket.create_connection((s.host, s.port), timeout=60) as connection:
        connection.sendall(request)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found


def random_value(chance: RandomStream) -> str:
    kind = chance.below(3)
    if kind == 0:
        return "".join(string.printable[chance.below(len(string.printable))] for _ in range(chance.below(12)))
    return VALUES[chance.below(len(VALUES))] + (VALUES[chance.below(len(VALUES))] if kind == 1 else "")


def test_every_request_is_answered_with_a_reason_and_never_with_5xx() -> None:
    chance = RandomStream(1)
    options = ShapeOptions(long_poll_s=0.01, sse_s=0.01, keep_alive_s=0.01, ready_s=0.01, deletion=True)
    found: dict[int, int] = {}
    with shop(options=options) as s:
        s.push(rows=[order(1)])
        for number in range(400):
            query: dict[str, Any] = {"table": "orders", "offset": "-1"} if number % 2 else {}
            if number % 3 == 0:
                query |= {"offset": "0_0", "handle": s.get().handle}
            for _ in range(1 + chance.below(4)):
                query[NAMES[chance.below(len(NAMES))]] = random_value(chance)
            method = ("GET", "GET", "GET", "HEAD", "POST", "DELETE")[chance.below(6)]
            body = random_value(chance).encode() if method == "POST" else None
            text = "&".join(f"{quote(name)}={quote(value)}" for name, value in query.items())
            answer = s.ask(method, f"/v1/shape?{text}", body=body)
            assert answer.status < 500, (method, query, body, answer)
            if answer.status == 400:
                assert method == "HEAD" or {"message", "error"} & answer.body.keys(), answer
            found[answer.status] = found.get(answer.status, 0) + 1
    assert {200, 400, 409} <= found.keys(), found


def test_urls_that_are_not_valid_text_are_refused() -> None:
    with shop() as s:
        s.push(rows=[order(1)])
        for query in (
            b"table=%ff&offset=-1",
            b"table=orders&offset=%00",
            b"table=orders&offset=-1&where=%ed%a0%80",
            b"&&=&",
        ):
            answer = raw(s, b"GET /v1/shape?" + query + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 400"), (query, answer)
        assert raw(s, b"GET /v1/shape?table=\xff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").startswith(
            b"HTTP/1.1 400"
        )
        assert raw(s, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_names_of_any_kind_are_sent_in_headers_and_keys() -> None:
    schema = pa.schema([pa.field('sch"lüssel, 名', pa.string(), nullable=False), ("a/b.c", pa.string())])
    table = DeclaredTable("größe/der.welt", schema, key=('sch"lüssel, 名',))
    with shop(made=SmallEngine((table,), [])) as s:
        s.push("größe/der.welt", [{'sch"lüssel, 名': 'x/"y', "a/b.c": None}])
        answer = s.get('"größe/der.welt"', columns='"sch""lüssel, 名"')
        assert answer.status == 200, answer.content
        [row] = answer.changes
        assert row["key"] == '"public"."größe//der..welt"/"x//"y"'
        assert row["value"] == {'sch"lüssel, 名': 'x/"y'}
        assert row["headers"]["relation"] == ["public", "größe/der.welt"]
        assert b"\\u540d" in answer.headers["electric-schema"].encode()


def test_a_slow_client_takes_little_memory_and_delays_no_other() -> None:
    with shop(options=ShapeOptions(long_poll_s=0.1)) as s:
        s.push(rows=[order(number, "x" * 2000, number) for number in range(5000)])
        with socket.create_connection((s.host, s.port)) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(b"GET /v1/shape?table=orders&offset=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert slow.recv(100).startswith(b"HTTP/1.1 200")
            other = Follower(s, {"table": "orders", "where": "id = 7"}).caught_up()
            assert len(other.rows) == 1
            s.push(rows=[order(7, "y")])
            assert other.step().changes
        assert len(Follower(s, {"table": "orders"}).caught_up().rows) == 5000
