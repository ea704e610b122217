"""Who runs the pipeline of a storage: one process, as long as it lives.

A process that runs a pipeline is a registered writer with a label that says so. Another one is refused, and told who
holds the storage. If the holder is gone (its process on this machine has ended, or it was silent for longer than it
promised), its registration is ended by compare-and-set: should it come back, it finds itself fenced (I16).
"""

from __future__ import annotations

import os
import socket

from evertide.errors import Conflict
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta, Write
from evertide.store.paths import beat_key, writer_key
from evertide.store.retry import commit_settled, reading
from evertide.store.sealed import unseal
from evertide.store.writers import Beat, Registration, Writer, end_silent_writers, registered

__all__ = ["RUNNING", "check_free", "holder", "is_gone", "take_over"]

RUNNING = "pipeline"
"""The label of whoever runs a pipeline."""


def take_over(meta: Meta, *, runtime: Runtime, settings: Settings) -> Writer:
    """Register as the one that runs the pipeline. `Conflict` if somebody does."""
    reading(lambda: end_silent_writers(meta, runtime=runtime, settings=settings), runtime, settings)
    for other in _running(meta, runtime, settings):
        if not _is_gone(other):
            raise _held(meta, other)
        _end(meta, other, runtime, settings)
    writer = Writer.register(meta, runtime=runtime, settings=settings, label=RUNNING)
    others = [other for other in _running(meta, runtime, settings) if other.writer != writer.id]
    if others:  # two at the same moment: neither goes on unless it was first, which the one that sees nobody was
        writer.unregister()
        other = others[0]
        raise Conflict(
            where=meta.path(writer_key(other.writer)),
            why=f"process {other.pid} on {other.host} has just begun to run it",
        )
    return writer


def check_free(meta: Meta, runtime: Runtime, settings: Settings) -> None:
    """`Conflict` if somebody runs it: the same that `take_over` would say, before anything is begun."""
    for other in _running(meta, runtime, settings):
        if not is_gone(meta, other, runtime, settings):
            raise _held(meta, other)


def holder(meta: Meta) -> Registration | None:
    """Who runs it now, as far as the storage knows."""
    return next((other for other in registered(meta).values() if other.label == RUNNING), None)


def is_gone(meta: Meta, other: Registration, runtime: Runtime, settings: Settings) -> bool:
    """Whether whoever is registered does not live any more, for all that can be told: nothing is changed."""
    if _is_gone(other):
        return True
    record = reading(lambda: meta.head(beat_key(other.writer)), runtime, settings)
    if record is None:
        return True
    beat = unseal(record.data, Beat, meta.path(beat_key(other.writer)))
    return runtime.wall_s() - beat.beat_at_s > other.ttl_s


def _held(meta: Meta, other: Registration) -> Conflict:
    why = f"process {other.pid} on {other.host} runs it (writer {other.writer}): stop that one first"
    return Conflict(where=meta.path(writer_key(other.writer)), why=why)


def _running(meta: Meta, runtime: Runtime, settings: Settings) -> list[Registration]:
    known = reading(lambda: registered(meta), runtime, settings)
    return [other for other in known.values() if other.label == RUNNING]


def _is_gone(other: Registration) -> bool:
    """Of a process on another machine nobody knows before its time is up."""
    if other.host != socket.gethostname():
        return False
    if other.pid == os.getpid():
        return False  # it is this process, which runs it already
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _end(meta: Meta, other: Registration, runtime: Runtime, settings: Settings) -> None:
    beat = reading(lambda: meta.head(beat_key(other.writer)), runtime, settings)
    if beat is not None:
        writes = [Write(writer_key(other.writer), 1, None), Write(beat_key(other.writer), beat.seqno, None)]
        commit_settled(meta, writes, (), runtime, settings)
