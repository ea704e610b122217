"""`Worker`: the process of a job, with its output, the memory and CPU time that it uses, and the bytes that it writes.

The figures come from /proc, and include all descendants of the process, such as a JVM. They are sampled every
`_SAMPLE_S`, so a shorter peak may be missed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.peers.jobs import Job

_SAMPLE_S = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class WorkerFailed(Exception):
    """The worker ended before the expected line. The message has the end of its log."""

    lines: Sequence[dict[str, Any]] = ()
    """The lines before the failure."""


class Worker:
    def __init__(self, command: Sequence[str], job: Job, environment: Mapping[str, str]) -> None:
        Path(job.place).mkdir(parents=True, exist_ok=True)
        self._log = Path(job.place) / "worker.log"
        given = json.dumps({name: getattr(job, name) for name in job.__struct_fields__})
        self.begun_s = time.perf_counter()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, given],
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(environment),
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )
        self.peak_bytes = 0
        self._written: dict[int, int] = {}
        self._cpu: dict[int, float] = {}
        self._is_over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    @property
    def written_bytes(self) -> int:
        return sum(self._written.values())

    @property
    def cpu_s(self) -> float:
        return sum(self._cpu.values())

    def wait_for(self, what: str) -> dict[str, Any]:
        """Wait for the next line with this `what`, and skip others."""
        stream: Any = self._process.stdout
        for line in stream:
            found = _parse(line)
            if found.get("what") == what:
                self._look()
                return found
        raise self._make_failure(what)

    def _make_failure(self, what: str) -> WorkerFailed:
        self._process.wait()
        end = self._log.read_text(errors="replace")[-2000:]
        return WorkerFailed(
            f"the worker ended with exit code {self._process.returncode} before it reported {what!r}:\n{end}"
        )

    def read_all(self) -> list[dict[str, Any]]:
        """All lines until `over`. The line `done` has the memory, bytes and CPU time at that moment."""
        found: list[dict[str, Any]] = []
        before = 0
        stream: Any = self._process.stdout
        for line in stream:
            message = _parse(line)
            if message.get("what") == "ready":
                self._look()
                before = self.written_bytes  # during the start
            if message.get("what") == "done":
                self._look()
                written = self.written_bytes - before
                message |= {"peak_bytes": self.peak_bytes, "written_bytes": written, "cpu_s": self.cpu_s}
            if message.get("what") == "over":
                return found
            if message:
                found.append(message)
        failed = self._make_failure("over")
        failed.lines = found
        raise failed

    def kill(self) -> None:
        """Kill the whole process group with SIGKILL."""
        self._is_over.set()
        self._watching.join()
        with suppress(ProcessLookupError):  # it has already ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _watch(self) -> None:
        while not self._is_over.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        resident = 0
        for pid in _family(self._process.pid):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                written = Path(f"/proc/{pid}/io").read_text()
            except (OSError, IndexError):
                continue  # the process has ended
            resident += int(fields[21]) * _PAGE
            self._cpu[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
            self._written[pid] = int(written.partition("\nwrite_bytes: ")[2].split()[0])
        self.peak_bytes = max(self.peak_bytes, resident)


def _parse(line: bytes) -> dict[str, Any]:
    """Parse a line of the worker; empty for lines that the engine wrote to the same stream."""
    if not line.startswith(b'{"what"'):
        return {}
    found: dict[str, Any] = json.loads(line)
    return found


def _family(pid: int) -> list[int]:
    found = [pid]
    for known in found:
        try:
            children = [path.read_text() for path in Path(f"/proc/{known}/task").glob("*/children")]
        except OSError:
            continue
        found += [int(child) for text in children for child in text.split()]
    return found
