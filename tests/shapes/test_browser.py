"""The example page in a real browser shows what is committed in a real PostgreSQL."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evertide.pipeline.engine import DeclaredTable
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.shapes.service import ShapeService
from tests.kit.small_engine import SmallEngine, SmallView
from tests.pipeline.kit import open_pipeline, storage
from tests.servers.browser import Page, browser_folder, open_page
from tests.servers.pages import build_example, hosted
from tests.sources.postgres.server import Database, running_logical

Row = dict[str, Any]
INT = pa.int64()
BID = pa.schema([pa.field("id", INT, nullable=False), ("auction", INT), ("price", INT), ("channel", pa.string())])
SELLER = pa.schema(
    [pa.field("auction", INT, nullable=False), ("name", pa.string()), ("city", pa.string()), ("state", pa.string())]
)
TABLES = (
    "CREATE TABLE bid (id bigint PRIMARY KEY, auction bigint, price bigint, channel text)",
    "CREATE TABLE local_sellers (auction bigint PRIMARY KEY, name text, city text, state text)",
    "INSERT INTO bid VALUES (1, 7, 100, 'Google'), (2, 7, 300, 'Apple'), (3, 8, 500, 'Google')",
    "INSERT INTO local_sellers VALUES (7, 'Ann Ash', 'Portland', 'OR'), (8, 'Bob Birch', 'Boise', 'ID')",
)


def channels(tables: Mapping[str, list[Row]]) -> list[Row]:
    found: dict[str, list[Row]] = {}
    for row in tables["bid"]:
        found.setdefault(row["channel"], []).append(row)
    return [
        {"channel": name, "bids": len(rows), "bidders": len(rows), "auctions": len({row["auction"] for row in rows})}
        for name, rows in found.items()
    ]


def category_prices(tables: Mapping[str, list[Row]]) -> list[Row]:
    prices = [row["price"] for row in tables["bid"]]
    return [{"category": 10, "average": sum(prices) / max(1, len(prices)), "auctions": len(prices)}]


def large_bids(tables: Mapping[str, list[Row]]) -> list[Row]:
    return [
        {"auction": row["auction"], "bidder": row["id"], "euros": str(row["price"]), "channel": row["channel"]}
        for row in tables["bid"]
        if row["price"] > 1_000_000
    ]


VIEWS = [
    SmallView(
        "channels",
        pa.schema([("channel", pa.string()), ("bids", INT), ("bidders", INT), ("auctions", INT)]),
        ("bid",),
        channels,
        key=("channel",),
    ),
    SmallView(
        "category_prices",
        pa.schema([("category", INT), ("average", pa.float64()), ("auctions", INT)]),
        ("bid",),
        category_prices,
        key=("category",),
    ),
    SmallView(
        "large_bids",
        pa.schema([("auction", INT), ("bidder", INT), ("euros", pa.string()), ("channel", pa.string())]),
        ("bid",),
        large_bids,
    ),
]


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    with build_example("dashboard") as page:
        yield page


def shows(page: Page, view: str, *texts: str) -> None:
    """Wait until a row of a table has these cells."""
    cells = "".join(f":has(td:text-is({json.dumps(text)}))" for text in texts)
    page.see(f'[data-view="{view}"] tr{cells}')


@contextmanager
def followed(db: Database) -> Iterator[str]:
    """A pipeline that follows the database, as `evertide run --listen` runs and serves it, but without Spark."""
    options = {"url": db.dsn, "slot": db.slot}
    tables = [
        DeclaredTable("bid", BID, ("id",), "postgres", options),
        DeclaredTable("local_sellers", SELLER, ("auction",), "postgres", options),
    ]
    with (
        open_pipeline(storage(), SmallEngine(tables, VIEWS)) as pipeline,
        Server() as server,
        ShapeService(pipeline.collections) as service,
    ):
        running = threading.Thread(target=pipeline.run)
        running.start()
        server.start(make_app(pipeline, shapes=service))
        try:
            yield server.address
        finally:
            service.drain()
            server.stop()
            pipeline.stop()
            running.join()


def test_a_change_in_postgresql_appears_on_the_page(built: Path) -> None:
    browser_folder()
    with running_logical() as server, hosted(built) as port:
        db = Database(server, "page")
        try:
            db.run(*TABLES)
            with followed(db) as served, open_page(f"http://127.0.0.1:{port}/?server={served}") as page:
                page.do(see='[role="status"]', text="live")
                shows(page, "channels", "Google", "2")
                shows(page, "local_sellers", "Ann Ash", "Portland")
                db.run("INSERT INTO bid VALUES (4, 9, 1100, 'Google')")
                shows(page, "channels", "Google", "3")
                page.do(see='[data-tile="bids"]', text="4")
                page.do(see='svg[aria-label^="Average"] text', text="500")
                db.run("UPDATE bid SET channel = 'Baidu' WHERE id = 2", "DELETE FROM bid WHERE id = 3")
                shows(page, "channels", "Baidu", "1")
                shows(page, "channels", "Google", "2")
                db.run("INSERT INTO bid VALUES (5, 77, 2000000, 'Apple')")
                shows(page, "large_bids", "77", "2,000,000")
                page.do(choose="select", value="ID")
                shows(page, "local_sellers", "Bob Birch", "Boise")
                db.run("UPDATE local_sellers SET state = 'ID', city = 'Nampa' WHERE auction = 7")
                shows(page, "local_sellers", "Ann Ash", "Nampa")
                if shots := os.environ.get("EVERTIDE_SHOTS"):  # a picture for people
                    for width, dark in ((1200, False), (1200, True), (390, False)):
                        page.do(shot=f"{shots}/{width}-{'dark' if dark else 'light'}.png", width=width, dark=dark)
        finally:
            db.close()
