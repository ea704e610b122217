"""A command in a pseudo-terminal, and the screen that a person would see, redrawn lines included."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from evertide.runtime import SystemRuntime

LIMIT_S = 240.0

_PIECES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\r\n\b]|[^\x1b\r\n\b]+|\x1b")


class Screen:
    """All lines that were written, without a limit of height. Colours are ignored."""

    def __init__(self) -> None:
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        for piece in _PIECES.findall(text):
            if piece == "\n":
                self._row += 1
                while len(self._lines) <= self._row:
                    self._lines.append([])
            elif piece == "\r":
                self._column = 0
            elif piece == "\b":
                self._column = max(0, self._column - 1)
            elif piece.startswith("\x1b"):
                self._obey(piece)
            else:
                line = self._lines[self._row]
                line.extend(" " * (self._column - len(line)))
                line[self._column : self._column + len(piece)] = piece
                self._column += len(piece)

    def _obey(self, sequence: str) -> None:
        number, what = int(re.sub(r"\D", "", sequence.split(";", maxsplit=1)[0]) or 0), sequence[-1]
        if what == "A":
            self._row = max(0, self._row - max(1, number))
        elif what == "K":
            line = self._lines[self._row]
            del line[0 if number == 2 else self._column :]
        elif what == "J":
            del self._lines[self._row + 1 :]

    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self._lines).rstrip("\n")


class Terminal:
    """A process whose standard streams are a terminal of `columns` columns."""

    def __init__(
        self,
        command: Sequence[str | Path],
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        *,
        columns: int = 100,
        rows: int = 60,
    ) -> None:
        self.screen = Screen()
        self._runtime = SystemRuntime()
        self._own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", **(environment or {})}
        env.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            [*map(str, command)], cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)

    def wait_until(self, is_so: Callable[[str], bool]) -> str:
        """Read until the screen fulfils the condition, and return it."""
        deadline_s = self._runtime.monotonic_s() + LIMIT_S
        while not is_so(self.screen.text()):
            assert self._runtime.monotonic_s() < deadline_s, self.screen.text()
            assert self._read() or is_so(self.screen.text()), f"the process ended:\n{self.screen.text()}"
        return self.screen.text()

    def wait_for(self, text: str) -> str:
        return self.wait_until(lambda shown: text in shown)

    def press_ctrl_c(self) -> None:
        """Signal all processes of the terminal, as a terminal does: the JVM gets it, too."""
        os.killpg(self.process.pid, signal.SIGINT)

    def finish(self) -> tuple[int, str]:
        """The exit code and the last screen."""
        while self._read():
            pass
        return self.process.wait(LIMIT_S), self.screen.text()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._own)

    def _read(self) -> bool:
        """False when no process has the terminal open any more."""
        readable, _, _ = select.select([self._own], [], [], 1.0)
        if not readable:
            return True
        try:
            content = os.read(self._own, 1 << 16)
        except OSError:
            return False
        self.screen.write(content.decode("utf-8", "replace"))
        return bool(content)
