# ruff: noqa: INP001, T201 - a script
"""`make screenshots`: the pictures of docs/console.md, taken of the demo in a real browser.

1. The demo runs on a storage of its own, which is gone afterwards; `--url` takes pictures of a pipeline that runs.
2. A picture is taken once the screen shows what it is for, and nothing moves.
3. Each is below 200 KB. One that is not, or a screen that never shows, is an error.
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

from tests.servers.browser import Page, opened  # noqa: E402 - beside this folder

FOLDER = ROOT / "docs" / "images"
BYTES_MAX = 200_000
TRANSACTIONS = 40
"""Behind the demo, before the first picture."""
QUESTION = "SELECT channel, bids, bidders FROM channels ORDER BY bids DESC"


@dataclass(frozen=True, slots=True)
class Shot:
    name: str
    address: str
    see: str
    """What is there once it can be taken."""
    size: tuple[int, int] = (1280, 800)
    is_dark: bool = False


SHOTS = (
    Shot("overview", "/overview", "path.area"),
    Shot("overview-dark", "/overview", "path.area", is_dark=True),
    Shot("flow", "/flow", "svg.graph-lines:has(path.flowing)", (1280, 930)),
    Shot("plan", "/flow/category_prices", '[data-plan="category_prices"] .operator-state', is_dark=True),
    Shot("collection", "/collection/category_prices", "table.rows tr.updated"),
    Shot("query", "/query", "svg rect.bar"),
    Shot("phone", "/overview", "path.area", (390, 800)),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make screenshots", description="Take the pictures of docs/console.md.")
    parser.add_argument("--url", help="of a pipeline that runs; else the demo is run")
    parser.add_argument("--only", choices=[shot.name for shot in SHOTS], action="append", help="only this picture")
    given = parser.parse_args(arguments)
    shots = [shot for shot in SHOTS if not given.only or shot.name in given.only]
    try:
        if given.url:
            _take(given.url, shots)
        else:
            with _demo() as url:
                _take(url, shots)
    except pytest.skip.Exception as missing:
        print(f"evertide: {missing}: no pictures were taken", file=sys.stderr)
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
    """After some transactions."""
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    url, made = "", 0
    for line in process.stdout:
        event = json.loads(line)
        url = event["address"] if event["event"] == "listening" else url
        made += event["event"] == "transaction"
        if url and made >= TRANSACTIONS:
            return url
    raise SystemExit("evertide: the demo ended by itself: run `evertide demo`, and see why")


def _take(url: str, shots: list[Shot]) -> None:
    FOLDER.mkdir(exist_ok=True)
    with opened(url) as page:
        page.do(still=True)
        for shot in shots:
            _show(page, shot)
            path = FOLDER / f"console-{shot.name}.png"
            page.do(shot=str(path), whole=False)
            size = path.stat().st_size
            print(f"{path.relative_to(ROOT)}  {size:,} bytes")
            if size > BYTES_MAX:
                raise SystemExit(f"evertide: {path.name} has more than {BYTES_MAX:,} bytes: show less of the screen")


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
