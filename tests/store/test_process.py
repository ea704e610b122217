"""A process is distinguished from others with its host name and its pid."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from evertide.store.process_identity import Origin, _start_ticks, this_process


def other(**changed: object) -> Origin:
    return msgspec.structs.replace(this_process(), **changed)


def free_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    return ended.pid


def test_this_process_has_not_ended() -> None:
    assert this_process().start_ticks > 0
    assert not this_process().has_ended()


def test_a_restarted_container_has_the_same_pid_and_another_start() -> None:
    assert other(start_ticks=this_process().start_ticks - 1).has_ended()


def test_a_free_pid_proves_the_end_in_the_same_namespace_only() -> None:
    """Fails if the comparison ignores the namespace, and if it ignores the boot id."""
    pid = free_pid()
    assert other(pid=pid).has_ended()
    assert not other(pid=pid, namespace="pid:[1]").has_ended()
    assert not other(pid=pid, boot="another machine").has_ended()


def test_a_process_that_was_not_waited_for_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = other(pid=child.pid, start_ticks=_start_ticks(child.pid))
        assert not found.has_ended()
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert found.has_ended()


def test_a_record_without_a_start_never_proves_the_end() -> None:
    assert not other(start_ticks=0).has_ended()


@pytest.mark.parametrize("pid", [os.getpid(), 2**22 - 1], ids=["lives", "free"])
def test_a_record_with_only_host_and_pid_never_proves_the_end(pid: int) -> None:
    assert not Origin(this_process().host, pid).has_ended()
