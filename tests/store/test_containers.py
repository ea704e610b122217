"""Containers with real PID and UTS namespaces, the same pid and the same host name: which registrations end.

The kernel may reuse the number of a deleted namespace for the next one. So the namespaces decide here whether a
restarted container can prove that the previous process has ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from evertide.runtime import SystemRuntime
from evertide.store.open import open_storage
from tests.processes import ROOT
from tests.store.container import SETTINGS

PID = 77
UNSHARE = ["unshare", *([] if os.getuid() == 0 else ["--user", "--map-root-user"])]
UNSHARE += ["--pid", "--uts", "--fork", "--mount-proc", "--kill-child"]


def _refusal() -> str:
    """Why this machine has no namespaces; empty if it has."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else tried.stderr.strip()


pytestmark = pytest.mark.skipif(bool(_refusal()), reason=_refusal())


class Container:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.namespace = self.line().removeprefix("running ")

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self, role: str = "alone") -> str:
        """Start a process with the pid, and return its first line."""
        self._tell(f"start {PID} {role}")
        return self.line()

    def kill(self) -> list[str]:
        """Kill the process, but not the container. Returns its output so far."""
        self._tell("kill")
        said: list[str] = []
        while (line := self.line()) != "killed":
            assert line, "the container has ended"
            said.append(line)
        return said

    def end(self) -> None:
        """As a container runtime does: process 1 is killed, and the kernel ends all others of its namespace."""
        self._process.kill()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()


@contextmanager
def container(root: Path) -> Iterator[Container]:
    command = [*UNSHARE, sys.executable, "-m", "tests.store.container", str(root)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Container(process)
        finally:
            process.kill()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    open_storage(tmp_path / "storage", runtime=SystemRuntime(), settings=SETTINGS).close()
    return tmp_path / "storage"


def silent_for_s(seconds: float) -> None:
    SystemRuntime().sleep_s(seconds)


def test_x10_a_killed_process_is_replaced_at_once_by_one_with_the_same_pid(root: Path) -> None:
    """Fails if the start time of a process is ignored: the new process would take the registration for its own, and
    alive.
    """
    with container(root) as one:
        assert one.start() == "registered"
        assert one.line() == "leads"
        one.kill()
        assert one.start() == "registered"
        assert one.line() == "leads"


def test_x10_a_container_that_is_restarted_waits_unless_the_end_of_the_old_one_is_proven(root: Path) -> None:
    with container(root) as old:
        assert old.start() == "registered"
        gone = old.namespace
        old.end()
    with container(root) as new:
        found = new.start()
        if new.namespace != gone:
            assert found.startswith("refused")
            assert f"process {PID} on box" in found
            silent_for_s(SETTINGS.writer_ttl_s * 1.2)
            found = new.start()
        assert found == "registered"


def test_x10_the_end_of_a_process_in_another_container_is_never_proven(root: Path) -> None:
    """Fails if namespaces are ignored: the pid is free in the second container while the first one's process lives."""
    with container(root) as first, container(root) as second:
        assert first.namespace != second.namespace
        assert first.start() == "registered"
        assert first.line() == "leads"
        for _ in range(4):
            assert second.start().startswith("refused")
            silent_for_s(SETTINGS.writer_ttl_s * 0.6)
        first.kill()
        assert second.start().startswith("refused"), "the second container cannot prove that the process has ended"
        silent_for_s(SETTINGS.writer_ttl_s * 1.2)
        assert second.start() == "registered"


def test_x10_replicas_with_one_host_name_and_pid_do_not_fence_each_other(root: Path) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(container(root)) for _ in range(2))
        assert [first.start("replica"), first.line()] == ["registered", "leads"]
        assert second.start("replica") == "registered"
        silent_for_s(SETTINGS.writer_ttl_s * 2)
        assert first.kill() == [], "the replica was not fenced"
        assert second.line() == "leads", "it leads after the first was silent for long enough"
        assert first.start("replica") == "registered"
        silent_for_s(SETTINGS.writer_ttl_s * 2)
        assert second.kill() == []
        assert first.line() == "leads"
