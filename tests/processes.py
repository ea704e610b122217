"""Processes that tests start and kill: modules that print `running ...` once they run, and then a line for each thing
that they did.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Worker:
    process: subprocess.Popen[str]
    out: IO[str]
    began: str
    """What it printed about where it began."""

    def lines(self, count: int) -> list[str]:
        return [self.out.readline().strip() for _ in range(count)]

    def kill(self) -> list[str]:
        """Kill the process, and return its unread lines. A line that the kill cut off is omitted."""
        self.process.kill()
        rest = [line.strip() for line in self.out if line.endswith("\n")]
        assert not any(line.startswith("error") for line in rest), rest
        return rest


@contextmanager
def running(module: str, *arguments: object) -> Iterator[Worker]:
    """Run a module until the end of the block, then kill it."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith("running"), first
            yield Worker(process, process.stdout, first.removeprefix("running").strip())
        finally:
            process.kill()
