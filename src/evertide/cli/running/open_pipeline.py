"""`open_pipeline`: a pipeline for one command. Invalid input is refused before Spark starts."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from evertide.cli.output.output import Bars, Output, report_error
from evertide.cli.running.consent import Consent
from evertide.errors import EvertideError, OutcomeUnknown, Unavailable
from evertide.observer import NO_OBSERVER, Observer
from evertide.pipeline.reading.reader import StorageReader, check_is_there, is_there
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.replicas.liveness import watch_for_hang
from evertide.pipeline.script_reader import read_script
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.observed import Silence, find_silence
from evertide.threads.watched import WatchedThread

if TYPE_CHECKING:
    from evertide.pipeline.pipeline import Pipeline
    from evertide.plan.catalyst.session import Session

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


_CHECK_EVERY_S = 0.25


@contextmanager
def open_pipeline(
    script: Path | str,
    storage: str,
    output: Output,
    *,
    meta: str | None = None,
    master: str | None = None,
    settings: Settings | None = None,
    must_exist: bool = False,
    role: ProcessRole = ProcessRole.ALONE,
    observer: Observer = NO_OBSERVER,
    is_agreed: bool = False,
) -> Iterator[Pipeline]:
    """Close the pipeline with a checkpoint at the end, unless the block fails.

    `is_agreed`: the caller agrees to all changes that the script makes.
    """
    settings = settings or Settings()
    read_script(script)  # reports errors in the script before Spark starts
    if role is ProcessRole.ALONE:
        with watch_for_hang("reading the storage", SystemRuntime(), settings):
            _check_free(storage, meta, settings, must_exist=must_exist)
    with ExitStack() as stack:
        with Bars(output) as bars:
            with bars.show_work("Spark"), watch_for_hang("starting Spark", SystemRuntime(), settings):
                session = stack.enter_context(open_spark(master))
            from evertide.pipeline.pipeline import Pipeline  # noqa: PLC0415 - pyspark

            consent = Consent(output, str(script), settings, bars, is_agreed=is_agreed)
            with bars.show_work("open"):
                pipeline = Pipeline.open(
                    script,
                    storage,
                    meta=meta,
                    spark=session.spark,
                    settings=settings,
                    progress=bars.show,
                    role=role,
                    approve=consent.check if role is not ProcessRole.READ_ONLY else None,
                    # `end_if_silent` needs an observed storage, even if nothing else observes it
                    observer=Observer() if observer is NO_OBSERVER else observer,
                )
                stack.enter_context(end_if_silent(pipeline, is_json=output.is_json))
                stack.enter_context(pipeline)
        yield pipeline


def _check_free(storage: str, meta: str | None, settings: Settings, *, must_exist: bool) -> None:
    if must_exist:
        check_is_there(storage)
    elif not is_there(storage):
        return
    with StorageReader.open(storage, meta, settings=settings) as reader:
        reader.check_free()


@contextmanager
def stop_by_signals(pipeline: Pipeline, output: Output) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM stops after the current transaction; the second at once, without a checkpoint."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        pipeline.stop()
        if not output.is_json:
            output.err.print(
                "evertide: stopping after this transaction, with a checkpoint; a second Ctrl-C ends at once"
            )

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def open_spark(master: str | None) -> Iterator[Session]:
    """The active session, or a new one that is stopped at the end."""
    from evertide.plan.catalyst.session import open_session  # noqa: PLC0415 - pyspark is slow to import

    session = open_session(None, master, is_quiet=True)
    try:
        yield session
    finally:
        session.close()


@contextmanager
def end_if_silent(pipeline: Pipeline, *, is_json: bool, end: Callable[[int], object] = os._exit) -> Iterator[None]:
    """A signal ends the command even if a call to storage does not return. `end` is called with the exit code.

    A call that fails at once ends the command in an orderly way (`evertide.runtime.StoppableRuntime`). A call that does
    not return blocks its thread, and if that is the main thread, which receives the signals, Python runs no signal
    handler. So another thread learns of the signal, waits until a storage call has had no answer for too long
    (`find_silence`), reports it, and ends the process. If the call is a write, it may have happened, so the error is
    `OutcomeUnknown`. This is as safe as `kill -9`: Spark and the workers of queries end with the process, and the next
    start continues from what is durable.
    """
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
