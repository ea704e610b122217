"""`end_if_silent`: a signal ends a command even if a call to storage does not return.

A call that fails at once ends the command in an orderly way (`evertide.runtime.StoppableRuntime`). A call that does not
return blocks its thread, and if that is the main thread, Python runs no signal handler. So another thread learns of the
signal, waits until a storage call has had no answer for too long (`find_silence`), reports it, and ends the process. If
the call is a write, it may have happened, so the error is `OutcomeUnknown`.
This is as safe as `kill -9`: Spark and the workers of queries end with the process, and the next start continues from
what is durable.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evertide.cli.output.output import report_error
from evertide.errors import EvertideError, OutcomeUnknown, Unavailable
from evertide.runtime import SystemRuntime
from evertide.store.observed import Silence, find_silence
from evertide.threads.watched import WatchedThread

if TYPE_CHECKING:
    from evertide.pipeline.pipeline import Pipeline

__all__ = ["end_if_silent"]

_CHECK_EVERY_S = 0.25


@contextmanager
def end_if_silent(pipeline: Pipeline, *, is_json: bool, end: Callable[[int], object] = os._exit) -> Iterator[None]:
    """Only in the main thread, which receives the signals. `end` is called with the exit code."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals, wake = socket.socketpair()
    wake.settimeout(0)
    before = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    is_over = threading.Event()

    def watch() -> None:
        if not signals.recv(1):  # the block has ended
            return
        pipeline.stop()
        stopping_s = SystemRuntime().monotonic_s()
        while not is_over.wait(_CHECK_EVERY_S):
            silent = find_silence(pipeline.storage, stopping_s)
            if silent:
                error = _make_error(silent, pipeline.storage.root)
                report_error(error, is_json=is_json)
                sys.stderr.flush()
                end(error.exit_code)
                return

    thread = WatchedThread("evertide-silence", watch)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        is_over.set()
        wake.close()
        thread.join()
        signals.close()


def _make_error(silence: Silence, root: str) -> EvertideError:
    end = "this process ends without a checkpoint, and the next start replays more transactions; nothing is lost"
    if silence.may_have_written:
        return OutcomeUnknown(path=f"storage at {root}", why=f"{silence.why}; {end}")
    return Unavailable(path=root, why=f"{silence.why}; {end}")
