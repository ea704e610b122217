"""The live app in a real browser, on an origin of its own: it shows its changes at once, and waits for their number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.server.access import ListenOptions
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.shapes.service import ShapeService
from tests.kit.small_engine import SmallEngine, SmallView
from tests.pipeline.kit import open_pipeline, rows_of, storage
from tests.server.kit import Client, until
from tests.servers.browser import Page, browser_folder, open_page
from tests.servers.pages import build_example, hosted

TODOS = DeclaredTable(
    "todos",
    pa.schema([pa.field("id", pa.string(), nullable=False), ("title", pa.string()), ("done", pa.bool_())]),
    key=("id",),
)


def count_done(tables: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [{"done": done, "n": n} for done, n in Counter(row["done"] for row in tables["todos"]).items()]


PROGRESS = SmallView(
    "progress", pa.schema([("done", pa.bool_()), ("n", pa.int64())]), ("todos",), count_done, key=("done",)
)


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    browser_folder()
    with build_example("live-app") as page:
        yield page


@dataclass(frozen=True)
class App:
    pipeline: Pipeline
    client: Client
    page: Page

    def add(self, title: str) -> None:
        self.page.do(fill="form input", value=title)
        self.page.do(click="form button")

    def see(self, title: str, state: str) -> None:
        self.page.see(f"li.{state}", title)

    def see_counts(self, text: str) -> None:
        self.page.see('[role="status"]', text)

    def titles(self) -> list[Any]:
        return [row[1:] for row in rows_of(self.pipeline, "todos")]


@contextmanager
def running(built: Path) -> Iterator[App]:
    with (
        hosted(built) as port,
        open_pipeline(storage(), SmallEngine([TODOS], [PROGRESS])) as pipeline,
        ShapeService(pipeline.collections) as service,
        Server(listening=ListenOptions(origins=(f"http://app.example:{port}",))) as server,
    ):
        server.start(make_app(pipeline, shapes=service))
        try:
            with open_page(f"http://app.example:{port}/?server=http://localhost:{server.port}") as page:
                page.see('main:has(ul[aria-busy="false"])')
                yield App(pipeline, Client(server.host, server.port), page)
        finally:
            service.drain()
            server.stop()


def test_a_change_is_shown_at_once_and_confirmed_when_the_shape_has_it(built: Path) -> None:
    with running(built) as app:
        with app.pipeline._turn:  # no transaction is made
            app.add("Buy milk")
            app.see("Buy milk", "saving")
            app.see_counts("0 open, 0 done")
            assert app.titles() == []
        app.see("Buy milk", "saved")
        app.see_counts("1 open, 0 done")
        app.page.do(click="li input")
        app.see_counts("0 open, 1 done")
        app.see("Buy milk", "saved")
        assert app.titles() == [("Buy milk", True)]
        [(number, *_)] = rows_of(app.pipeline, "todos")
        app.client.post("/v1/tables/todos/rows", [{"id": number, "title": "Buy oat milk", "done": True}])
        app.see("Buy oat milk", "saved")
        app.page.do(click="li button")
        app.page.do(gone="li")
        until(lambda: app.titles() == [])


def test_a_change_that_the_server_refuses_is_taken_back(built: Path) -> None:
    with running(built) as app:
        app.add("Kept")
        app.see("Kept", "saved")
        app.pipeline.pause()
        app.add("Refused")
        app.page.see('[role="alert"]', "paused")
        assert app.page.ask("document.querySelectorAll('li').length") == 1
        app.pipeline.resume()
        app.add("Accepted")
        app.see("Accepted", "saved")
        assert sorted(app.titles()) == [("Accepted", False), ("Kept", False)]


def test_a_push_whose_answer_is_lost_is_applied_once(built: Path) -> None:
    """The page sends the same number again."""
    lose = """(() => {
      const real = window.fetch
      window.answers = []
      window.fetch = async (url, options) => {
        const answer = await real(url, options)
        if (options?.method !== "POST") return answer
        window.answers.push(await answer.clone().json())
        if (window.answers.length === 1) throw new TypeError("the answer is lost")
        return answer
      }
    })()"""
    with running(built) as app:
        app.page.ask(lose)
        app.add("Once")
        app.see("Once", "saved")
        first, second = json.loads(app.page.ask("JSON.stringify(window.answers)"))
        assert second == {**first, "is_repeated": True}


def test_a_change_that_is_there_already_is_confirmed(built: Path) -> None:
    """Fails if the answer has a number: no shape ever sends it, and the page would wait for a minute."""
    with running(built) as app:
        app.add("Done twice")
        app.see("Done twice", "saved")
        [(number, title, _)] = rows_of(app.pipeline, "todos")
        other = f"""(async () => {{
          const real = window.fetch
          window.fetch = async (url, options) => {{
            if (options?.method === "POST") {{
              window.fetch = real
              const rows = [{{ id: "{number}", title: "{title}", done: true }}]
              await real(url.replace("transactions", "tables/todos/rows"),
                {{ method: "POST", headers: {{ "Content-Type": "application/json" }}, body: JSON.stringify(rows) }})
            }}
            const answer = await real(url, options)
            if (options?.method === "POST") window.txid = (await answer.clone().json()).txid
            return answer
          }}
        }})()"""
        app.page.ask(other)
        app.page.do(click="li input")
        app.see_counts("0 open, 1 done")
        app.see("Done twice", "saved")
        assert app.page.ask("window.txid") is None
        assert app.titles() == [("Done twice", True)]
