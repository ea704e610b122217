"""A shop with tokens of every kind, behind a real socket, and requests that tests write byte by byte."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx
from starlette.types import ASGIApp

from evertide.pgexpr.restriction import Restriction
from evertide.server.access import Access, ListenOptions, Role, Token
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.shapes.service import ShapeService
from tests.pipeline.kit import open_pipeline, storage
from tests.server.kit import Client
from tests.shapes.kit import OPTIONS, Shop, engine, order

TEXTS = {
    "reader": "reader-token-0123456789",
    "writer": "writer-token-0123456789",
    "admin": "admin-token-0123456789",
    "ann": "ann-token-0123456789",
    "bob": "bob-token-0123456789",
    "totals": "totals-token-0123456789",
    "broken": "broken-token-0123456789",
}
ENDED = "ended-token-0123456789"
WRONG = "wrong-token-0123456789"
ROLES = {"reader": Role.READ, "writer": Role.WRITE, "admin": Role.ADMIN}
RESTRICTIONS = {
    "ann": Restriction.to({"Orders": "customer = 'ann'"}, None),
    "bob": Restriction.to({"orders": "customer = 'bob'"}, None),
    "totals": Restriction.to({}, frozenset({"revenue"})),
    "broken": Restriction.to({"orders": "no_such_column = 1"}, None),
}
ACCESS = Access(
    (
        *(Token.of(name, role, TEXTS[name]) for name, role in ROLES.items()),
        *(Token.of(name, Role.READ, TEXTS[name], restriction) for name, restriction in RESTRICTIONS.items()),
        Token("ended", Role.ADMIN, Token.of("x", Role.READ, ENDED).digest, ends_at_s=1_000_000_000),
    )
)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TEXTS.get(name, name)}"}


@dataclass(frozen=True)
class Asker:
    """Sends requests to an app without a socket."""

    app: ASGIApp

    def request(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, path, headers=dict(headers or {}))

        return anyio.run(ask)


@dataclass(frozen=True)
class Guarded:
    shop: Shop

    def client(self, name: str = "") -> Client:
        return Client(self.shop.host, self.shop.port, token=TEXTS.get(name, name))

    def shape(self, who: str, **query: Any) -> Any:
        """Request a shape with the token in the header."""
        given = {"table": "orders", "offset": "-1", **query}
        return self.shop.ask(headers=bearer(who), **given)


@contextmanager
def guarded(access: Access | None = ACCESS, listening: ListenOptions | None = None) -> Iterator[Guarded]:
    """Serve four orders, of ann and of bob, without a follower thread: requests read what was committed."""
    access = access or Access()
    with open_pipeline(storage(), engine()) as pipeline, ShapeService(pipeline.collections, OPTIONS) as service:
        pipeline.push(
            "orders", [order(1, "ann"), order(2, "bob", 987650100077), order(3, "ann"), order(4, "bob", 987650100078)]
        )
        pipeline.commit()
        with Server(listening=listening or ListenOptions(access=access)) as server:
            server.start(make_app(pipeline, shapes=service, access=access))
            try:
                yield Guarded(Shop(pipeline, service, server.host, server.port))
            finally:
                service.drain()


def raw(client: Client, head: str, headers: Mapping[str, str] | list[tuple[str, str]] = (), body: bytes = b"") -> bytes:  # type: ignore[assignment]
    """Return the answer to a request with this exact head."""
    given = [*headers.items()] if isinstance(headers, Mapping) else [*headers]
    if not any(name.lower() == "host" for name, _ in given):
        given.append(("Host", "localhost"))
    text = "".join(f"{name}: {value}\r\n" for name, value in [*given, ("Connection", "close")])
    with socket.create_connection((client.host, client.port), timeout=30) as made:
        made.sendall(f"{head} HTTP/1.1\r\n{text}\r\n".encode("latin-1") + body)
        found = b""
        while piece := made.recv(65536):
            found += piece
    return found
