"""A real browser: Chromium, driven by Playwright through node. `page.mjs` lists its commands."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.npm import npm_folder

HERE = Path(__file__).parent / "browser_page"
NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    """The browser of this machine; None if it has none and npm provides one. Skips the test if npm has none either."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip(f"no browser is installed: looked for {', '.join(NAMES)}; npm has one for Linux on x86_64 only")
    return None


def browser_folder() -> Path:
    """The folder in which Playwright is installed. Skips the test if there is no browser, or no node."""
    executable()
    return npm_folder("browser", HERE / "package.json")


class Page:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.stderr and self._process.stderr.read()
        return json.loads(line)

    def do(self, **command: Any) -> None:
        answer = self.send(**command)
        assert answer == {"errors": []}, answer

    def send(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def ask(self, expression: str) -> Any:
        """The value of the expression in the page."""
        answer = self.send(ask=expression)
        assert answer.keys() <= {"told", "errors"}, answer
        assert answer["errors"] == [], answer
        return answer.get("told")

    def see(self, selector: str, text: str = "") -> None:
        self.do(see=selector, text=text)


@contextmanager
def open_page(url: str) -> Iterator[Page]:
    folder = browser_folder()
    shutil.copy(HERE / "page.mjs", folder)
    found = executable()
    command = ["node", "page.mjs", url, *([found] if found else [])]
    env = {**os.environ, "TMPDIR": str(folder)}  # the browser from npm is unpacked here, once
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=env, text=True, **pipes) as process:
        try:
            page = Page(process)
            assert "version" in page.answer()
            yield page
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
        finally:
            process.kill()
