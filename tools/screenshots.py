# ruff: noqa: INP001, T201 - a script
"""`make screenshots`: takes the screenshots of docs/console.md, of the demo in a real browser.

1. The demo runs on a temporary storage. `--url` takes screenshots of a running pipeline instead.
2. A screenshot is taken once the page shows the element `Shot.see`, and animations are off.
3. A screenshot of more than 200 KB, or a page that never shows the element, is an error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.servers.browser import Page, open_page  # noqa: E402 - beside this folder

FOLDER = ROOT / "docs" / "images"
BYTES_MAX = 200_000
TRANSACTIONS = 40
"""Transactions of the demo before the first screenshot."""
QUESTION = "SELECT channel, bids, bidders FROM channels ORDER BY bids DESC"


@dataclass(frozen=True, slots=True)
class Shot:
    name: str
    address: str
    see: str
    """The selector of an element that the page must show first."""
    size: tuple[int, int] = (1280, 800)
    is_dark: bool = False


SHOTS = (
    Shot("overview", "/overview", "path.area"),
    Shot("overview-dark", "/overview", "path.area", is_dark=True),
    Shot("flow", "/flow", "svg.graph-lines:has(path.flowing)", (1280, 930)),
    Shot("plan", "/collection/category_prices/plan", '[data-plan="category_prices"] .operator-state', is_dark=True),
    Shot("changes", "/collection/category_prices/changes", "tbody td del", (1280, 700)),
    Shot("cost", "/collection/category_prices/cost", '[data-panel="cost"] td', (1280, 700)),
    Shot("collection", "/collection/category_prices", "table.rows tr.updated"),
    Shot("query", "/query", "svg rect.bar"),
    Shot("phone", "/overview", "path.area", (390, 800)),
    Shot("phone-flow", "/flow", ".flow-list .node", (390, 800)),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make screenshots", description="Take the screenshots of docs/console.md.")
    parser.add_argument("--url", help="the URL of a running pipeline; by default, the demo is started")
    parser.add_argument(
        "--only",
        choices=[shot.name for shot in SHOTS],
        action="append",
        help="take only this screenshot; may be repeated",
    )
    given = parser.parse_args(arguments)
    shots = [shot for shot in SHOTS if not given.only or shot.name in given.only]
    try:
        if given.url:
            _take(given.url, shots)
        else:
            with _demo() as url:
                _take(url, shots)
    except pytest.skip.Exception as missing:
        print(f"evertide: no screenshots were taken: {missing}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _demo() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "evertide.cli", "demo", "--storage", f"{scratch}/demo.evertide", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=scratch) as process:  # noqa: S603 - our own
            try:
                yield _address(process)
            finally:
                process.terminate()
                process.communicate(timeout=300)


def _address(process: subprocess.Popen[str]) -> str:
    """The demo's address, once it has made some transactions."""
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    url, made = "", 0
    for line in process.stdout:
        event = json.loads(line)
        url = event["address"] if event["event"] == "listening" else url
        made += event["event"] == "transaction"
        if url and made >= TRANSACTIONS:
            return url
    raise SystemExit("evertide: the demo ended; run `evertide demo` to see why")


def _take(url: str, shots: list[Shot]) -> None:
    FOLDER.mkdir(exist_ok=True)
    with open_page(url) as page:
        page.do(still=True)
        for shot in shots:
            _show(page, shot)
            path = FOLDER / f"console-{shot.name}.png"
            page.do(shot=str(path), whole=False)
            size = path.stat().st_size
            print(f"{path.relative_to(ROOT)}  {size:,} bytes")
            if size > BYTES_MAX:
                raise SystemExit(
                    f"evertide: {path.name} has {size:,} bytes, more than {BYTES_MAX:,}; show less of the page"
                )


def _show(page: Page, shot: Shot) -> None:
    width, height = shot.size
    page.do(width=width, height=height, dark=shot.is_dark)
    page.ask(f"location.hash = {json.dumps(shot.address)}")
    if shot.address == "/query":
        page.do(fill="textarea", value=QUESTION)
        page.do(press="Control+Enter")
    page.see(f'main[data-screen="{shot.address.split("/")[1]}"]')
    page.see(shot.see)
    page.do(gone="main .spinner")


if __name__ == "__main__":
    sys.exit(main())
