"""A shop whose collections are served as shapes over a real socket, and clients that follow them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.server.access import Access, ListenOptions
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.settings import Settings
from evertide.shapes.options import ShapeOptions
from evertide.shapes.service import ShapeService
from evertide.store.memory import MemoryBlob
from evertide.store.open import Storage
from tests.kit.small_engine import SmallEngine, SmallView
from tests.pipeline.kit import NOTES, ORDERS, SETTINGS, by_customer, open_pipeline, storage

Row = dict[str, Any]
BLOBS = replace(SETTINGS, inline_bytes_max=1)
"""Each commit writes separate blobs."""
OPTIONS = ShapeOptions(long_poll_s=0.3, sse_s=0.6, keep_alive_s=0.2, ready_s=0.2, deletion=True)


def doubled(tables: Mapping[str, list[Row]]) -> list[Row]:
    """A view without a key, with duplicate rows."""
    return [{"customer": row["customer"]} for row in tables["orders"]]


VIEWS = [
    SmallView(
        "revenue",
        pa.schema([("customer", pa.string()), ("amount", pa.int64())]),
        ("orders",),
        by_customer,
        key=("customer",),
    ),
    SmallView("buyers", pa.schema([("customer", pa.string())]), ("orders",), doubled),
]


def engine(*views: SmallView, tables: tuple[DeclaredTable, ...] = (ORDERS, NOTES)) -> SmallEngine:
    return SmallEngine(tables, views or VIEWS)


class Lossy(MemoryBlob):
    """Hides the parts of a collection that are written while hiding is switched on."""

    def __init__(self) -> None:
        super().__init__()
        self._collection = ""
        self.hidden: dict[str, bytes] = {}

    def put(self, key: str, content: bytes) -> None:
        super().put(key, content)
        if self._collection and key.startswith(f"parts/{self._collection}"):
            self.hidden[key] = content
            super().delete(key)

    @contextmanager
    def losing(self, collection: str) -> Iterator[None]:
        self._collection = collection
        try:
            yield
        finally:
            self._collection = ""

    def bring_back(self) -> None:
        for key, content in self.hidden.items():
            super().put(key, content)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.content)

    @property
    def handle(self) -> str:
        return self.headers["electric-handle"]

    @property
    def offset(self) -> str:
        return self.headers["electric-offset"]

    @property
    def is_up_to_date(self) -> bool:
        return "electric-up-to-date" in self.headers

    @property
    def changes(self) -> list[Any]:
        """The messages without control messages."""
        return [message for message in self.body if "key" in message]


@dataclass(frozen=True)
class Shop:
    pipeline: Pipeline
    service: ShapeService
    host: str
    port: int

    def ask(
        self,
        method: str = "GET",
        path: str = "/v1/shape",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        **query: Any,
    ) -> Answer:
        """Parameters named like Python keywords have a leading underscore."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            text = urlencode({name.lstrip("_"): value for name, value in query.items()})
            connection.request(method, f"{path}?{text}" if text else path, body, dict(headers or {}))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, table: str = "orders", offset: str = "-1", **query: Any) -> Answer:
        return self.ask(table=table, offset=offset, **query)

    def push(self, table: str = "orders", rows: list[Row] | None = None, deletes: Any = ()) -> int:
        self.pipeline.push(table, rows or [], deletes=deletes)
        return self.pipeline.commit()


@contextmanager
def shop(
    store: Storage | None = None,
    options: ShapeOptions = OPTIONS,
    *,
    settings: Settings = SETTINGS,
    made: SmallEngine | None = None,
    follow: bool = True,
    access: Access | None = None,
    role: ProcessRole = ProcessRole.ALONE,
    listen: str = "127.0.0.1:0",
) -> Iterator[Shop]:
    """Without `follow`, no background thread runs."""
    with open_pipeline(store or storage(), made or engine(), settings=settings, role=role) as pipeline:
        service = ShapeService(pipeline.collections, options)
        with Server(listen, ListenOptions(access=access or Access())) as server:
            server.start(make_app(pipeline, shapes=service, access=access))
            if follow:
                service.start()
            try:
                yield Shop(pipeline, service, server.host, server.port)
            finally:
                service.drain()
                server.stop()
                service.stop()


def order(number: int, customer: str | None = "ann", amount: int | None = 10) -> Row:
    return {"id": number, "customer": customer, "amount": amount}


def operations(messages: list[Any]) -> list[tuple[str, str]]:
    """The operation and the row of each change."""
    return [(one["headers"]["operation"], one["key"].rpartition("/")[2].strip('"')) for one in messages]


def values(messages: list[Any]) -> list[Any]:
    return [one["value"] for one in messages]


def ids(messages: list[Any]) -> list[int]:
    return [int(one["value"]["id"]) for one in messages]


@dataclass
class Follower:
    """A client that materializes a shape and keeps the offset to continue from."""

    shop: Shop
    query: dict[str, Any]
    handle: str = ""
    offset: str = "-1"
    rows: dict[str, Row] = field(default_factory=dict)
    refetched: int = 0
    is_up_to_date: bool = False
    again: str = ""
    """The last transaction received from a stream: a part of it may be sent again."""

    def step(self, *, live: bool = False) -> Answer:
        """Send one request."""
        asked = {**self.query, "offset": self.offset}
        if self.handle and self.offset != "-1":
            asked["handle"] = self.handle
        if live:
            asked["live"] = "true"
        answer = self.shop.ask(**asked)
        self.take(answer)
        return answer

    def take(self, answer: Answer) -> None:
        if answer.status == 409:
            assert answer.body == [{"headers": {"control": "must-refetch"}}]
            self.rows, self.offset, self.handle, self.is_up_to_date = {}, "-1", "", False
            self.refetched += 1
            return
        assert answer.status == 200, (answer.status, answer.content)
        assert self.handle in ("", answer.handle)
        self.handle, self.offset = answer.handle, answer.offset
        for message in answer.body:
            self.apply(message)
        self.is_up_to_date = answer.is_up_to_date
        assert self.is_up_to_date == (bool(answer.body) and answer.body[-1]["headers"].get("control") == "up-to-date")

    def apply(self, message: Any) -> None:
        operation = message["headers"].get("operation")
        if message["headers"].get("lsn", "-") == self.again:
            if operation == "insert":
                self.rows.pop(message["key"], None)
            elif message["key"] not in self.rows:
                return
        if operation == "insert":
            assert message["key"] not in self.rows, message
            self.rows[message["key"]] = dict(message["value"])
        elif operation == "update":
            self.rows[message["key"]].update(message["value"])
        elif operation == "delete":
            del self.rows[message["key"]]

    def caught_up(self) -> Follower:
        """Send requests until the client is up to date."""
        while True:
            self.step()
            if self.is_up_to_date:
                return self

    def content(self, *columns: str) -> list[tuple[Any, ...]]:
        return sorted((tuple(row[name] for name in columns or row) for row in self.rows.values()), key=repr)
