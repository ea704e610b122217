"""Every screen of the console with the demo: its script on a real Spark, and a real browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from evertide.cli.commands.demo import read_demo_script
from evertide.logs import Ring
from evertide.pipeline.pipeline import Pipeline
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.settings import Settings
from evertide.shapes.service import ShapeService
from tests.servers.browser import Page, browser_folder, open_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)  # the first one opens a pipeline with nine views

EVENTS = 400
VIEWS = ("large_bids", "local_sellers", "category_prices", "hot_items", "top_bids", "channels", "unwanted", "sellers")


@pytest.fixture(scope="module")
def demo(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The running demo after some transactions, each small, so that a busy machine keeps up."""
    browser_folder()
    storage = str(tmp_path_factory.mktemp("demo"))
    script = read_demo_script(100).replace("events_per_transaction '10000'", f"events_per_transaction '{EVENTS}'")
    settings = Settings(checkpoint_interval_s=1, stall_after_s=600)
    with (
        Ring(storage) as logs,
        Pipeline.open(script, storage, spark=spark, settings=settings) as pipeline,
        ShapeService(pipeline.collections) as shapes,
        Server() as server,
    ):
        pipeline.run(transactions=2)
        server.start(make_app(pipeline, shapes=shapes, logs=logs))
        running = threading.Thread(target=pipeline.run)
        running.start()
        try:
            yield server.address
        finally:
            shapes.drain()
            server.stop()
            pipeline.stop()
            running.join()


@pytest.fixture(scope="module")
def browser(demo: str) -> Iterator[Page]:
    with open_page(demo) as page:
        page.do(width=1280, height=900, still=True)
        yield page


def go(page: Page, name: str) -> None:
    """Open a screen by clicking."""
    page.do(click=f'nav a[href="#/{name}"]')
    page.see(f'main[data-screen="{name}"]')
    page.do(gone="main .spinner")


def number(page: Page, selector: str) -> int:
    return int(page.ask(f"document.querySelector({json.dumps(selector)}).textContent.replaceAll(',', '')"))


def test_the_overview_shows_the_state_and_advances(browser: Page) -> None:
    browser.see(".health", "Everything is up to date and running")
    browser.see(".connection.live")
    browser.see('[data-tile="Stored"]', "3 tables, 9 views")
    browser.see('svg[aria-label^="Rows a second"] path.area')
    browser.see('svg[aria-label^="How long each transaction took"] rect.bar')
    before = number(browser, "[data-time]")
    browser.see(f'[data-time]:not([data-time="{before}"])')
    assert number(browser, "[data-time]") > before


def test_the_pipeline_can_be_paused_and_resumed(browser: Page) -> None:
    go(browser, "overview")
    browser.ask("window.confirm = () => true")
    browser.do(click='button:text-is("Pause")')
    browser.see(".health", "Paused: the pipeline starts no new transactions")
    browser.do(click='button:text-is("Resume")')
    browser.see(".health", "Everything is up to date and running")


def test_the_flow_shows_what_flows_and_how_a_view_is_maintained(browser: Page) -> None:
    go(browser, "flow")
    for name in ("nexmark", "person", "auction", "bid", *VIEWS):
        browser.see(f'[data-node="{name}"]', name)
    browser.see('[data-node="bid"]', "rows/s")
    browser.see("svg.graph-lines:has(path.flowing)")
    left = {
        name: browser.ask(f"document.querySelector('[data-node={name}]').getBoundingClientRect().x")
        for name in ("nexmark", "bid", "channels")
    }
    assert left["nexmark"] < left["bid"] < left["channels"]
    browser.do(click='[data-node="category_prices"]')
    browser.see('[data-plan="category_prices"] .operator', "Aggregate")
    browser.see(".operator", "difference rule")
    browser.see(".operator-state", "keeps")
    browser.see('[aria-label="State"] td', "auction")
    browser.do(click='main a:text-is("its SQL, rows and changes")')
    browser.see('main[data-screen="collection"]', "category_prices")
    browser.do(click='[data-tab="plan"]')
    browser.see('[data-plan="category_prices"] .operator', "Aggregate")
    browser.do(click='[data-tab="cost"]')
    browser.see('[aria-label="Work for each change"] tr:has(b:text-is("Aggregate"))', "the groups that changed")
    browser.see('[aria-label="Work for each change"] tr:has(b:text-is("Join")) td', "rows")
    browser.do(width=390, height=800)
    browser.do(click='[data-tab="plan"]')
    browser.see('[data-plan="category_prices"] .flow-list li', "step 1, reads step 2")
    browser.do(width=1280, height=900)


def test_collections_are_listed_with_sparklines_and_each_can_be_opened(browser: Page) -> None:
    go(browser, "collections")
    browser.see("tr:has(a:text-is('sellers')) svg.spark")
    browser.do(fill='input[aria-label="Find by name"]', value="chan")
    browser.see("main", "1 collection")
    browser.do(click='tbody a:text-is("channels")')
    browser.see('[data-rows="live"]')
    browser.see("table.rows tbody tr", "others")
    browser.see("table.rows tbody tr.updated")  # a transaction was committed meanwhile
    browser.do(click='[data-tab="changes"]')
    browser.see("tbody td del")
    browser.do(click='[data-tab="sql"]')
    browser.see(".sql-word", "SELECT")
    browser.see("main", "Reads bid")


def test_checkpoints_are_shown_and_can_be_requested(browser: Page) -> None:
    go(browser, "checkpoints")
    browser.see('[data-tile="Size"]', "iB")
    browser.do(click='button:text-is("Make a checkpoint")')
    browser.see('main [role="status"]', "contains everything up to time")
    browser.see("tbody tr td:nth-child(5)", "iB")


def test_the_journal_shows_the_content_of_each_transaction(browser: Page) -> None:
    go(browser, "journal")
    browser.see("tbody tr:has(.badge:has-text('committed')) .input", "nexmark")


def test_the_demo_has_no_problems_or_errors(browser: Page) -> None:
    go(browser, "errors")
    browser.see("main", "No problems.")
    browser.see("main", "All rows fit their tables.")


def test_queries_are_answered_with_a_table_and_a_chart(browser: Page, demo: str) -> None:
    go(browser, "query")
    browser.do(fill="textarea", value="SELECT channel, bids, bidders FROM channels ORDER BY bids DESC")
    browser.do(press="Control+Enter")
    browser.see("main [role=status]", "at time")
    browser.see("table.rows td", "others")
    browser.see('svg[aria-label^="bids by channel"] rect.bar')
    browser.do(choose='.picks label:has-text("y") select', value="2")
    browser.see('svg[aria-label^="bidders by channel"] rect.bar')
    browser.do(choose='.picks label:has-text("kind") select', value="line")
    browser.see('svg[aria-label^="bidders by channel"] path.curve')
    browser.do(fill="textarea", value="DELETE FROM channels")
    browser.do(click='button:text-is("Run")')
    browser.see('main [role="alert"]')
    browser.do(go=f"{demo}/?again#/query")  # the history has the query
    browser.do(click='.history button:has-text("SELECT channel")')
    browser.see("table.rows td", "others")


def test_shapes_are_listed_and_ended(browser: Page) -> None:
    browser.ask("location.hash = '/collection/sellers'")
    browser.see('[data-rows="live"]')
    go(browser, "shapes")
    browser.see("tbody tr", "sellers")
    row = "[...document.querySelectorAll('tbody tr')].find((one) => one.innerText.startsWith('sellers'))"
    handle = browser.ask(f"{row}.querySelector('code[title]').title")
    browser.ask("window.confirm = () => true")
    browser.do(click='tr:has-text("sellers") button')
    browser.do(gone=f'code[title="{handle}"]')  # a client that followed it may start a new one


def test_the_api_describes_itself(browser: Page) -> None:
    go(browser, "api")
    browser.do(fill='input[aria-label="Find an address"]', value="/v1/query")
    browser.do(click=".operation summary")
    browser.see(".operation-body", "sql: string")
    browser.see(".operation-body pre", "curl -X POST")


def test_the_log_is_shown(browser: Page) -> None:
    go(browser, "logs")
    browser.see(".log-line", "checkpoint")
    browser.do(choose='select[aria-label="Level"]', value="error")
    browser.do(gone=".log-line.info")


def test_no_other_server_gets_a_request(browser: Page, demo: str) -> None:
    asked: list[str] = browser.ask("performance.getEntriesByType('resource').map((one) => one.name)")
    assert f"{demo}/console/app.js" in asked
    assert all(one.startswith(demo) for one in asked)
