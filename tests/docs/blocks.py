"""Fenced code of the docs: found, and run as a reader would, in order, in a directory of its own.

    ```sql title="shop.sql"           is that file
    ```sh                             is given to a shell, the same for the whole page
    ```python                         is run, in this process, in the page's directory, with the names of earlier blocks
    ```sql {data-server="postgres"}   is given to that server
    ```text                           right after one of these: what it says, `...` standing for anything
    ```sh {data-not-run="why"}        is not run, and says why; other languages (yaml, html) are only files, or pictures

A line `evertide ...` of a shell block is run in this process where that is asked for: on the Spark that is there, as
starting one per command costs seconds."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cli.kit import evertide

_FENCE = re.compile(r"^```(?P<language>\w*)(?P<facts>[^\n`]*)\n(?P<text>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
_FACT = re.compile(r'([\w-]+)="([^"]*)"')
_END = "__end_of_block__"


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    facts: Mapping[str, str]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}, line {self.line}"


def blocks_of(path: Path) -> list[Block]:
    page = path.read_text("utf-8")
    return [
        Block(
            path.name,
            page.count("\n", 0, found.start()) + 1,
            found["language"],
            dict(_FACT.findall(found["facts"])),
            found["text"],
        )
        for found in _FENCE.finditer(page)
    ]


def is_like(expected: str, found: str) -> bool:
    """Whether the output equals the page; `...` stands for any text."""
    pieces = [re.escape(piece) for piece in expected.strip().split("...")]
    return re.fullmatch(r"[\s\S]*?".join(pieces), found.strip()) is not None


class Shell:
    """One shell for all blocks of a page: its variables and background processes are there in the next block."""

    def __init__(self, cwd: Path, environment: Mapping[str, str]) -> None:
        self._cwd = cwd
        self._count = 0
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def run(self, text: str) -> str:
        """Run the text, and return its standard output. A background process writes to a file of its own."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._count += 1
        block, said, wrong = (self._cwd / f".{name}-{self._count}" for name in ("block", "said", "wrong"))
        block.write_text(text)
        self._shell.stdin.write(f". {block} > {said} 2> {wrong} < /dev/null; echo {_END}\n")
        self._shell.stdin.flush()
        line = self._shell.stdout.readline()
        assert line.strip() == _END, f"the shell ended: {wrong.read_text()}"
        return said.read_text()

    def close(self) -> None:
        """End the shell and all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, 9)
        with self._shell:  # closes its pipes, and waits
            pass


@dataclass
class Page:
    """How the blocks of a page are run."""

    scratch: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[str, Callable[[str], object]] = field(default_factory=dict)
    """Runs SQL that is meant for a server."""
    swaps: Mapping[str, str] = field(default_factory=dict)
    """Replacements for texts of the page, such as a free port."""
    is_here: bool = False
    """Whether `evertide` is run in this process."""
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})
    """The variables of Python blocks, which later blocks of the page use."""


def run_page(path: Path, page: Page) -> int:
    """Run all blocks of a page, compare their output, and return the number of blocks run."""
    ran = 0
    shell = Shell(page.scratch, page.environment)
    try:
        said: str | None = None
        for block in blocks_of(path):
            text = block.text
            for before, after in page.swaps.items():
                text = text.replace(before, after)
            if block.language == "text":
                assert said is not None, f"{block.where}: no block was run before it"
                assert is_like(text, said), f"{block.where}: expected\n{text}\nbut the output is\n{said}"
                said = None
                continue
            said = _run(block, text, page, shell)
            ran += said is not None
        return ran
    finally:
        shell.close()


def _run(block: Block, text: str, page: Page, shell: Shell) -> str | None:
    if "title" in block.facts:
        target = page.scratch / block.facts["title"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return None
    if "data-not-run" in block.facts:
        return None
    server = block.facts.get("data-server", "")
    if block.language == "sql":
        page.servers[server](text)
        return ""
    if block.language == "python":
        return _python(block, text, page)
    if block.language == "sh":
        return _commands(text, page, shell) if page.is_here else shell.run(text)
    return None


def _python(block: Block, text: str, page: Page) -> str:
    said = io.StringIO()
    with _inside(page), contextlib.redirect_stdout(said):
        exec(compile(text, block.where, "exec"), page.names)
    return said.getvalue()


def _commands(text: str, page: Page, shell: Shell) -> str:
    said = []
    for line in text.splitlines():
        if not line.startswith("evertide "):
            said.append(shell.run(line))
            continue
        with _inside(page):
            done = evertide(*shlex.split(line)[1:])
        assert done.exit_code == 0, f"{line}: {done.output}"
        said.append(done.stdout)
    return "".join(said)


@contextlib.contextmanager
def _inside(page: Page) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in page.environment}
    os.environ.update(page.environment)
    try:
        with contextlib.chdir(page.scratch):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
