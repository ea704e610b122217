"""The console in a real browser, with a shop without Spark: hostile content, tokens, phones, a server that stops."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from evertide.pipeline.engine import DeclaredTable
from evertide.server.access import Access, ListenOptions
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.shapes.service import ShapeService
from tests.kit.small_engine import SmallView
from tests.pipeline.kit import NOTES, ORDERS, open_pipeline, storage
from tests.server.access.kit import ACCESS, TEXTS, WRONG
from tests.server.kit import stored
from tests.servers.browser import Page, browser_folder, open_page
from tests.shapes.kit import VIEWS, Shop, engine, order, shop

EVIL = "<img src=x onerror=\"window.harmed='row'\">"
TAG = "t</script><script>window.harmed='name'</script>"
HOSTILE = DeclaredTable(
    TAG,
    pa.schema([pa.field("id", pa.int64(), nullable=False), (EVIL, pa.string())]),
    key=("id",),
    comment="<b onmouseover=window.harmed=1>comment</b>",
)
COPIES = SmallView(
    "v<svg/onload=harmed=2>", pa.schema([("text", pa.string())]), ("notes",), lambda given: given["notes"]
)
SCREENS = (
    "overview",
    "flow",
    "collections",
    "query",
    "api",
    "checkpoints",
    "journal",
    "shapes",
    "errors",
    "logs",
)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    browser_folder()
    made = engine(*VIEWS, COPIES, tables=(ORDERS, NOTES, HOSTILE))
    with shop(stored(tmp_path_factory.mktemp("console")), made=made) as found:
        found.push(rows=[order(1, "ann", 20), order(2, EVIL, 5)])
        found.push(TAG, [{"id": 1, EVIL: EVIL}, {"id": 2, EVIL: "javascript:alert(1)"}])
        found.push("notes", [{"text": EVIL}])
        yield found


def address(found: Shop) -> str:
    return f"http://{found.host}:{found.port}/"


@pytest.fixture(scope="module")
def browser(here: Shop) -> Iterator[Page]:
    with open_page(address(here)) as page:
        page.do(width=1280, height=900, still=True)
        yield page


def go(page: Page, *pieces: str) -> None:
    """Open a screen by its URL."""
    page.ask(f"location.hash = '/' + {json.dumps(pieces)}.map(encodeURIComponent).join('/')")
    page.see(f'main[data-screen="{pieces[0]}"]')


def test_changed_rows_appear_and_are_marked(browser: Page, here: Shop) -> None:
    go(browser, "collection", "orders")
    browser.see("tbody tr:has(:text-is('ann'))", "20")
    browser.see('[data-rows="live"]')
    here.push(rows=[order(3, "eve", 77)])
    browser.see("tr.added:has(:text-is('eve'))", "77")
    here.push(rows=[order(1, "ann", 21)])
    browser.see("tr.updated:has(:text-is('ann'))", "21")
    here.push(deletes=[3])
    browser.do(gone="tbody tr:has(:text-is('eve'))")
    go(browser, "collection", "revenue")
    browser.see("tbody tr:has(:text-is('ann'))", "21")


def test_the_changes_of_a_collection_are_listed_with_the_values_that_they_replace(browser: Page, here: Shop) -> None:
    go(browser, "collection", "orders")
    browser.see('[data-rows="live"]')
    browser.do(click='[data-tab="changes"]')
    browser.see('[data-panel="changes"] td', "No change since this page was opened.")
    here.push(rows=[order(30, "kim", 1)])
    browser.see("tbody tr:has([data-operation=insert])", "kim")
    time = here.push(rows=[order(30, "kim", 2)])
    browser.see("tbody tr:first-child:has([data-operation=update]) td:first-child", str(time))
    assert browser.ask(
        "[...document.querySelectorAll('tbody tr:first-child td del')].map(each => each.textContent)"
    ) == ["1"]
    here.push(deletes=[30])
    browser.see("tbody tr:first-child:has([data-operation=delete])", "kim")
    browser.do(click='[data-tab="rows"]')
    browser.see("table.rows tbody tr", "ann")
    browser.do(click='[data-tab="changes"]')
    browser.see("tbody tr:has([data-operation=insert])", "kim")  # the list is kept


def test_each_view_has_its_sql_plan_and_cost_in_tabs(browser: Page) -> None:
    """The engine of these tests has no plans: the page says so, and stays."""
    titles = "[...document.querySelectorAll('[role=tab]')].map(each => each.textContent).join(' ')"
    go(browser, "collection", "revenue")
    browser.see("[role=tab]", "Cost")
    assert browser.ask(titles) == "Rows Changes SQL Plan Cost"
    browser.ask("document.querySelector('[role=tab][aria-selected=true]').focus()")
    for tab in ("changes", "sql", "plan", "cost", "rows"):
        browser.do(press="ArrowRight")
        browser.see(f'[data-panel="{tab}"]')
        assert browser.ask("document.activeElement.dataset.tab") == tab
        assert browser.ask("location.hash") == f"#/collection/revenue/{tab}"
    go(browser, "collection", "orders", "sql")
    browser.see('[data-panel="sql"] td', "customer")
    assert browser.ask(titles) == "Rows Changes SQL"
    go(browser, "collection", "orders", "plan")  # a table has none
    browser.see("table.rows tbody tr", "ann")


def test_the_flow_is_a_list_on_a_phone(browser: Page) -> None:
    """Each entry names what it reads, below all that it reads."""
    browser.do(width=390, height=800)
    try:
        go(browser, "flow")
        browser.see('.flow-list li:has([data-node="revenue"])', "reads orders")
        names = browser.ask("[...document.querySelectorAll('.flow-list .node')].map(each => each.dataset.node)")
        assert names.index("orders") < names.index("buyers")
        assert browser.ask("document.querySelector('.graph-lines')") is None
        overlaps = """[...document.querySelectorAll('.flow-list li')].some((each, at, all) =>
          at > 0 && each.getBoundingClientRect().top < all[at - 1].lastElementChild.getBoundingClientRect().bottom)"""
        assert browser.ask(overlaps) is False
        browser.do(width=1280, height=900)
        browser.see(".graph-plane")
        browser.do(gone=".flow-list")
    finally:
        browser.do(width=1280, height=900)


def test_rows_are_filtered_and_sorted(browser: Page, here: Shop) -> None:
    here.push(rows=[order(10, "zoe", 1), order(11, "yan", 1000)])
    go(browser, "collection", "orders")
    browser.do(fill='input[aria-label="Only rows where"]', value="amount >= 1000")
    browser.do(press="Enter")
    browser.see("tbody tr:has(:text-is('yan'))")
    browser.do(gone="tbody tr:has(:text-is('zoe'))")
    browser.do(fill='input[aria-label="Only rows where"]', value="amount >= ")
    browser.do(press="Enter")
    browser.see('[role="alert"]', "where")
    browser.do(click='button:text-is("All rows")')
    browser.do(click='th button:has-text("amount")')
    browser.do(click='th button:has-text("amount")')
    browser.see('th[aria-sort="descending"]', "amount")
    browser.see("table.rows tbody tr:first-child", "yan")
    here.push(deletes=[10, 11])


def test_hostile_values_and_names_are_shown_as_text(browser: Page, here: Shop) -> None:
    go(browser, "collection", TAG)
    browser.see("td", EVIL)
    browser.see("th", EVIL)
    here.push(TAG, [{"id": 3, EVIL: f"{EVIL} again"}])
    browser.see("tr.added td", "again")
    for screen in SCREENS:
        go(browser, screen)
        browser.do(gone="main .spinner")
    go(browser, "flow")
    browser.see(".node-name", TAG)
    go(browser, "flow", COPIES.name)
    browser.see("[role=alert], [data-plan], main .empty")
    go(browser, "query")
    quoted = EVIL.replace("'", "''")
    browser.do(fill="textarea", value=f"SELECT '{quoted}' AS \"{TAG}\", 1 AS one UNION ALL SELECT 'b', 2")
    browser.do(click='button:text-is("Run")')
    browser.see("td", EVIL)
    browser.see(".history button", quoted)
    browser.do(fill="textarea", value=f"SELECT {TAG}")
    browser.do(click='button:text-is("Run")')
    browser.see('main [role="alert"]')
    assert browser.ask("window.harmed ?? null") is None
    assert (
        browser.ask("document.querySelectorAll('main img, main script, main svg[onload], main b[onmouseover]').length")
        == 0
    )


def test_an_error_of_a_query_shows_its_place(browser: Page) -> None:
    go(browser, "query")
    browser.do(fill="textarea", value="SELECT *\n  FROM ordrs")
    browser.do(click='button:text-is("Run")')
    browser.see('main [role="alert"] .why', "query:2:8: no table or view 'ordrs'; did you mean 'orders'?")
    shown = browser.ask("document.querySelector('main [role=alert] pre').textContent")
    assert shown == "  FROM ordrs\n       ^"


@pytest.mark.parametrize("path", ["/nowhere", "/constructor", "/x/orders"])
def test_an_unknown_address_is_named_and_has_links(browser: Page, path: str) -> None:
    """Fails if the overview is shown instead, or if a name that every object has counts as a screen."""
    browser.ask(f"location.hash = '#{path}'")
    browser.see('main[data-screen="unknown"]', f"The console has no page {path}")
    browser.see("h1", "Page not found")
    browser.do(click='main a:text-is("Collections")')
    browser.see('main[data-screen="collections"]')


def test_the_browser_itself_refuses_markup_and_inline_script(browser: Page) -> None:
    """The policy protects even if one of our modules is wrong."""
    refused = """(() => {
      try { document.createElement("p").innerHTML = "<b>x</b>"; return "taken" } catch (error) { return error.name }
    })()"""
    answer = browser.send(ask=refused)
    assert answer["told"] == "TypeError"
    assert "requires 'TrustedHTML'" in answer["errors"][0]


def test_a_graph_and_charts_are_reached_by_keyboard(browser: Page) -> None:
    go(browser, "flow")
    browser.see('[data-node="revenue"]')
    browser.ask("document.querySelector('[data-node=\"orders\"]').focus()")
    browser.do(press="Enter")
    browser.see('main[data-screen="collection"]', "orders")
    go(browser, "overview")
    browser.see('svg[aria-label^="How long each transaction took"]')
    browser.ask("document.querySelector('svg[aria-label^=\"How long\"]').focus()")
    browser.do(press="ArrowLeft")
    browser.see(".plot-words", "transaction")
    browser.see("circle.cursor-dot")


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_no_screen_is_wider_than_a_phone(browser: Page, here: Shop, is_dark: bool) -> None:
    browser.do(width=360, height=740, dark=is_dark)
    try:
        for pieces in [*((screen,) for screen in SCREENS), ("collection", "orders"), ("collection", TAG, "changes")]:
            go(browser, *pieces)
            browser.do(gone="main .spinner")
            assert browser.ask("document.documentElement.scrollWidth") <= 360, pieces
        light = browser.ask(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every((each) => each > 128)"
        )
        assert light is not is_dark
        browser.do(click=".menu-button")
        browser.see(".with-menu nav a", "Journal")
        browser.do(click='nav a:has-text("Journal")')
        browser.see('main[data-screen="journal"]')
        browser.do(gone=".with-menu")
    finally:
        browser.do(width=1280, height=900, dark=False)


def test_the_chosen_theme_is_kept(browser: Page, here: Shop) -> None:
    browser.do(click='.chooser button:text-is("dark")')
    assert browser.ask("document.documentElement.dataset.theme") == "dark"
    browser.do(go=f"{address(here)}?again")
    browser.see("main")
    assert browser.ask("document.documentElement.dataset.theme") == "dark"
    browser.do(click='.chooser button:text-is("auto")')
    assert browser.ask("document.documentElement.dataset.theme ?? ''") == ""


def test_a_token_is_requested_and_a_wrong_one_is_reported(browser: Page) -> None:
    with shop(access=ACCESS) as guarded:
        guarded.push(rows=[order(1)])
        browser.do(go=address(guarded))
        browser.see('[role="dialog"]', "Enter an access token")
        browser.see('input[name="token"]:focus')
        browser.do(fill='input[name="token"]', value=WRONG)
        browser.do(press="Enter")
        browser.see('[role="dialog"]', "does not know this token")
        browser.do(fill='input[name="token"]', value=TEXTS["reader"])
        browser.do(press="Enter")
        browser.do(gone='[role="dialog"]')
        browser.see('[data-tile="Last transaction"]')
        go(browser, "collection", "orders")
        browser.see('[data-rows="live"]')
        browser.see("tbody tr:has(:text-is('ann'))")
        go(browser, "logs")  # which needs another role
        browser.see('[role="alert"]')
        assert browser.ask("JSON.stringify(localStorage) + location.href").count(TEXTS["reader"]) == 0
        browser.do(click='button:text-is("Forget the token")')
        browser.see('[role="dialog"]', "Enter an access token")


@contextmanager
def served(listen: str, found: Shop, access: Access | None = None) -> Iterator[tuple[str, Callable[[], None]]]:
    with ShapeService(found.pipeline.collections) as service, Server(listen, ListenOptions()) as server:
        server.start(make_app(found.pipeline, shapes=service, access=access))

        def stop() -> None:
            service.drain()
            server.stop()

        yield server.address, stop


def test_the_page_reports_a_server_that_stops_and_continues_when_it_is_back(browser: Page, here: Shop) -> None:
    with served("127.0.0.1:0", here) as (url, stop):
        browser.do(go=url)
        browser.see('[data-tile="Last transaction"]')
        browser.see(".connection.live")
        stop()
        browser.see(".banner.bad", "The server does not answer. This page shows the state of")
        browser.see('[data-tile="Last transaction"]')  # the last known content stays
    with served(url.removeprefix("http://"), here):
        browser.do(gone=".banner.bad")
        browser.see(".connection.live")
        browser.do(go=address(here))


def test_the_page_works_with_a_server_that_offers_less() -> None:
    """For example an earlier version: only the status, and no events."""
    with open_pipeline(storage()) as pipeline, Server() as server:
        app = make_app(pipeline)
        kept = [
            one for one in app.router.routes if getattr(one, "path", "") in ("/", "/console/{path:path}", "/v1/status")
        ]
        app.router.routes[:] = kept
        server.start(app)
        with open_page(server.address) as page:
            page.see(".connection.polling", "polling every 2 s")
            page.see("main", "This server does not offer the last transactions")
            for screen in SCREENS[1:]:
                go(page, screen)
                page.do(gone="main .spinner")
            go(page, "journal")
            page.see("main", "This server does not offer the journal")
