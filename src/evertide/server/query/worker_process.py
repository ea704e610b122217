"""`Worker`: the server's handle of a worker process (`evertide.server.query.worker`).

1. The server sends the engine, the storage, the settings and the credentials of a remote storage over a pipe. The
   worker's command line and environment contain none of them.
2. A query may take `query_limit_s`, measured by the server's clock. Then the server interrupts the query. If the worker
   does not respond within `_GRACE_S`, the server kills it and every process that it started.
3. Where the kernel does not enforce the limits (Spark), the server polls the memory of all processes of the worker and
   the size of its scratch directory, and kills the worker if it exceeds a limit.
4. If a worker ends before it has answered, for any reason, the query fails with `QueryEnded`.
5. Each worker leads a session, and every process that it starts belongs to that session, whatever its process group. On
   a system without `/proc`, no process is found.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evertide.errors import LimitExceeded, QueryEnded
from evertide.json_values import error_from_json
from evertide.pipeline.reading.query import EngineChoice, Question
from evertide.runtime import Runtime
from evertide.scratch import using_scratch
from evertide.server.query.wire import Frame, read_frame, write_frame
from evertide.settings import Settings
from evertide.store.open import StorageAddress
from evertide.threads.watched import WatchedThread

logger = logging.getLogger(__name__)

_START_S = 300.0
"""Generous, since a JVM starts slowly on a busy machine. The start does not count against `query_limit_s`."""
_GRACE_S = 2.0
_CHECK_EVERY_S = 0.2
_BODY_SPARE = 16 * 1024 * 1024
"""An Arrow stream is a little larger than its rows in memory."""
_PASSED_VARIABLES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT"),
        *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "JAVA_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        "EVERTIDE_QUERY_FILES",
    )
)
_PASSED_PREFIXES = ("LC_", "SPARK_", "HADOOP_", "YARN_")
_STORAGE_PREFIXES = ("AWS_", "PG")
"""Variables that configure the clients of S3 and PostgreSQL."""
_ALLOCATING = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
"""Allocators that do not reserve memory ahead of use, so that a limit on memory is meaningful."""

_PROC = Path("/proc")
_SESSION = 3
"""Index of the session among the fields of `stat` after the name: state, parent, group, session."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TAIL = 4096
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class EngineOptions:
    engine: EngineChoice
    address: StorageAddress
    results: Mapping[str, str]
    """The pipeline's Spark settings that affect results, such as the time zone."""
    memory_bytes: int | None = None
    """Limit for all its processes, in addition to their memory when it is ready; None if the kernel enforces one."""
    master: str = ""


def make_stop_error(engine: EngineChoice) -> QueryEnded:
    return QueryEnded(path=engine.value, why="the server is stopping")


class WorkerEnded(Exception):
    """The worker had ended before it began with the query; the caller retries with another worker."""


class Worker:
    """A worker process. Not thread-safe, except for `stop`."""

    def __init__(self, options: EngineOptions, settings: Settings, runtime: Runtime) -> None:
        self.engine = options.engine
        self.is_over = False
        self._options = options
        self._settings = settings
        self._runtime = runtime
        self._number = 0
        self._is_ready = False
        self._is_stopping = False
        self._ready_bytes = 0
        self._has_begun = False
        """Whether the worker has begun with the last query that it was sent."""
        with using_scratch():
            self._scratch = Path(tempfile.mkdtemp(prefix="evertide-query-"))
        self._began_s = runtime.monotonic_s()
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "evertide.server.query.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=_list_environment(self._scratch),
                cwd=self._scratch,
                pass_fds=(lifeline,),
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._lifeline)
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise QueryEnded(path=self.engine.value, why=f"the process cannot be started: {error}") from error
        finally:
            os.close(lifeline)
        self._pipes = [pipe for pipe in (self._process.stdin, self._process.stdout) if pipe is not None]
        self._in, self._out = (pipe.fileno() for pipe in self._pipes)
        self._output = OutputTail(self._process.stderr)
        self._worker_lifeline = lifeline

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, question: Question) -> Frame:
        """Return the worker's frame: an answer or an error. `WorkerEnded` if the worker ended since its last query."""
        try:
            self._start()
            deadline = _Deadline(self, self._runtime, self._settings.query_limit_s)
            frame = self._exchange(question, deadline)
        except BaseException:  # the pipe may hold a part of a frame
            self.end()
            raise
        if frame.facts["is_last"]:
            self.end()
        if deadline.is_over:
            raise deadline.make_timeout()
        return frame

    def interrupt(self) -> None:
        with suppress(OSError):  # the worker has just ended
            write_frame(self._in, {"interrupt": self._number})

    def check_bounds(self) -> None:
        """Raise `LimitExceeded` if the worker exceeds its limit of memory or of disk."""
        limit, spill = self._options.memory_bytes, self._settings.query_spill_bytes
        if limit is None or not self._is_ready:
            return
        if measure_memory_bytes(list_processes(self.pid)) > self._ready_bytes + limit:
            raise LimitExceeded(where="query", why=f"the query's processes use more than {limit} bytes of memory")
        if measure_disk_bytes(self._scratch) > spill:
            raise LimitExceeded(
                where="query", why=f"the query wrote more than {spill} bytes to disk (query_spill_bytes)"
            )

    def end(self) -> None:
        """Kill the worker and all processes that it started, and clean up. Idempotent."""
        if self.is_over:
            return
        self.is_over = True
        self._kill()
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()
        os.close(self._lifeline)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def stop(self) -> None:
        """Kill the processes, as the server stops. The thread that waits for an answer sees that and calls `end`."""
        self._is_stopping = True
        self._kill()

    def _kill(self) -> None:
        for pid in list_processes(self.pid):  # the worker may have ended and left children
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if self._process.returncode is None:
            self._process.kill()

    def read(self, deadline: _Deadline, body_max: int = 0) -> Frame:
        try:
            frame = read_frame(self._out, body_max, wait=lambda: deadline.wait(self._out))
        except (OSError, ValueError) as error:
            raise QueryEnded(path=self.engine.value, why=f"the process sent a damaged answer: {error}") from error
        if frame is None:
            raise self._explain_end()
        return frame

    def _start(self) -> None:
        if self._is_ready:
            return
        self._send(self._describe_options())
        frame = self.read(_Deadline(self, self._runtime, _START_S, is_start=True))
        if "error" in frame.facts:
            raise error_from_json(frame.facts["error"]) or QueryEnded(
                path=self.engine.value, why=str(frame.facts["error"])
            )
        self._is_ready, self._ready_bytes = True, measure_memory_bytes(list_processes(self.pid))
        took_s = self._runtime.monotonic_s() - self._began_s
        logger.info("%s query process %d is ready after %.1f s", self.engine, self.pid, took_s)
        _log_isolation(self.engine, frame.facts["isolation"])

    def _describe_options(self) -> dict[str, Any]:
        options = self._options
        return {
            "engine": options.engine,
            "location": options.address.location,
            "meta": options.address.meta,
            "environment": _list_storage_environment() if options.address.is_remote else {},
            "is_remote": options.address.is_remote,
            "settings": asdict(self._settings),
            "results": dict(options.results),
            "scratch": str(self._scratch),
            "master": options.master,
            "lifeline": self._worker_lifeline,
        }

    def _exchange(self, question: Question, deadline: _Deadline) -> Frame:
        self._number, self._has_begun = self._number + 1, False
        self._send({"number": self._number, **asdict(question)})
        self.read(deadline)
        self._has_begun = True
        return self.read(deadline, self._settings.query_bytes_max + _BODY_SPARE)

    def _send(self, facts: Mapping[str, Any]) -> None:
        try:
            write_frame(self._in, facts)
        except OSError:
            raise self._explain_end() from None

    def _explain_end(self) -> Exception:
        if self._is_stopping:
            return make_stop_error(self.engine)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)  # a worker closes its pipe just before it exits
        if self._number > 1 and not self._has_begun:
            return WorkerEnded()
        code = self._process.poll()
        if code is None:
            why = "the process closed its pipe"
        else:
            why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        logger.warning("%s query process %d ended (%s); last output: %s", self.engine, self.pid, why, self._output)
        return QueryEnded(path=self.engine.value, why=why)


class _Deadline:
    """The time limit of one query, or of the start of a worker."""

    def __init__(self, worker: Worker, runtime: Runtime, limit_s: float, *, is_start: bool = False) -> None:
        self.is_over = False
        self._worker = worker
        self._runtime = runtime
        self._limit_s = limit_s
        self._is_start = is_start
        self._until_s = runtime.monotonic_s() + limit_s

    def wait(self, at: int) -> None:
        """Block until `at` is readable. Check the limits meanwhile, and interrupt the query when its time is over."""
        poll = select.poll()
        poll.register(at, select.POLLIN | select.POLLHUP)
        while not poll.poll(_CHECK_EVERY_S * 1000):
            self._worker.check_bounds()
            now_s = self._runtime.monotonic_s()
            if now_s > self._until_s + _GRACE_S:
                raise self.make_timeout()
            if now_s > self._until_s:
                self.is_over = True
                self._worker.interrupt()  # repeatedly: an interrupt has no effect before the engine runs

    def make_timeout(self) -> Exception:
        if self._is_start:
            return QueryEnded(
                path=self._worker.engine.value, why=f"the process was not ready within {self._limit_s:g} s"
            )
        return LimitExceeded(where="query", why=f"the query took longer than {self._limit_s:g} s (query_limit_s)")


def _log_isolation(engine: EngineChoice, isolation: Mapping[str, Mapping[str, str]]) -> None:
    mechanisms = ", ".join(f"{what} by {how}" for what, how in isolation["has"].items())
    logger.info("%s query process isolated: %s", engine, mechanisms)
    for what, why in isolation["lacks"].items():
        logger.warning("%s query process runs without %s isolation: %s", engine, what, why)


def _list_storage_environment() -> dict[str, str]:
    return {key: os.environ[key] for key in os.environ if key.startswith(_STORAGE_PREFIXES)}


def _list_environment(scratch: Path) -> dict[str, str]:
    """The variables that programs need to run, without any that may hold a secret."""
    passed = {
        key: os.environ[key] for key in os.environ if key in _PASSED_VARIABLES or key.startswith(_PASSED_PREFIXES)
    }
    return {**passed, **_ALLOCATING, "TMPDIR": str(scratch)}


def list_processes(session: int) -> list[int]:
    """The running processes of a session."""
    found = []
    for place in _PROC.iterdir() if _PROC.is_dir() else ():
        if place.name.isdigit():
            with suppress(OSError, IndexError, ValueError):  # the process has just ended
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                if int(fields[_SESSION]) == session and fields[0] != "Z":
                    found.append(int(place.name))
    return found


def measure_memory_bytes(processes: Iterable[int]) -> int:
    """Private memory of the processes; shared memory, such as code, does not count."""
    pages = 0
    for pid in processes:
        with suppress(OSError, ValueError):
            _, resident, shared, *_ = map(int, (_PROC / str(pid) / "statm").read_text().split())
            pages += resident - shared
    return pages * _PAGE


def measure_disk_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                total += (Path(place) / name).lstat().st_blocks * 512
    return total


class OutputTail:
    """The last output of a process. A thread reads continuously, so that the process never blocks on a full pipe."""

    def __init__(self, stream: Any) -> None:
        """`stream` is unbuffered, and is closed at its end."""
        self._tail = b""
        self._stream = stream
        WatchedThread("evertide-query-output", self._listen).start()

    def __str__(self) -> str:
        lines = self._tail.decode(errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-8:] if line.strip()) or "none"

    def _listen(self) -> None:
        with self._stream:
            while block := self._stream.read(_CHUNK):
                self._tail = (self._tail + block)[-_TAIL:]
