"""`register_for_repair`: registers a repair, so that it works alone on its storage.

1. If a live process is registered, the repair raises `NotAllowedNow` before it changes anything. A process counts as
   live unless its end is proven (`evertide.store.process_identity`) or its heartbeat is older than its time to live. If
   its registration is damaged, only its heartbeat decides.
2. The repair registers as a writer with the label `REPAIRING`, and writes heartbeats. Meanwhile no process may run the
   pipeline (`evertide.pipeline.records.ownership`). Both sides check for each other again after they registered, so at
   most one of two that start at the same moment continues.
3. Each change guards the registration. A change that loses a race to another process is an error, never skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from evertide.checkpoint.context import StorageContext
from evertide.errors import Conflict, EvertideError, NotAllowedNow
from evertide.store.meta import Guard, Record, Write, unseal
from evertide.store.paths import CHECKPOINTS, beat_key, writer_key
from evertide.store.writers import HeartbeatRecord, Registration, Writer
from evertide.threads.ticker import Ticker

logger = logging.getLogger(__name__)

REPAIRING = "repair"
"""The label of a repair's registration."""

T = TypeVar("T")


class _RepairHeartbeat(Ticker):
    def __init__(self, writer: Writer, interval_s: float) -> None:
        super().__init__("evertide-repair", interval_s)
        self._writer = writer

    def tick(self) -> bool:
        try:
            self._writer.beat()
        except EvertideError as error:  # if the registration was ended, the next change is refused
            logger.warning("could not write the heartbeat of the repair: %s", error)
        return True


@contextmanager
def register_for_repair(place: StorageContext) -> Iterator[Writer]:
    settings = place.settings
    writer = Writer.register(place.meta, runtime=place.runtime, settings=settings, label=REPAIRING)
    try:
        check_exclusive(place, writer.id)
        with _RepairHeartbeat(writer, settings.heartbeat_interval_s):
            yield writer
    finally:
        writer.unregister()


def check_exclusive(place: StorageContext, own: str = "") -> None:
    """Raise `NotAllowedNow` if another process is live; end the registrations of all others."""
    meta = place.meta
    for key, record in place.retry_read(lambda: meta.heads(writer_key(""))).items():
        writer = key.removeprefix(writer_key(""))
        if writer == own:
            continue
        last = place.retry_read(lambda writer=writer: meta.head(beat_key(writer)))  # type: ignore[misc]
        known, beat = _read(record, Registration), _read(last, HeartbeatRecord)
        ttl_s = known.ttl_s if known is not None else place.settings.writer_ttl_s
        is_silent = beat is None or place.runtime.wall_s() - beat.beat_at_s > ttl_s
        if not is_silent and not (known is not None and known.has_ended()):
            name = f"{known.label or 'no label'}, {known.host}, pid {known.pid}" if known else "its record is damaged"
            why = f"writer {writer} ({name}) is registered; stop it, or wait until it has been silent for {ttl_s:.0f} s"
            raise NotAllowedNow(where=meta.path(CHECKPOINTS), why=why)
        writes = [Write(key, record.seqno, None)]
        if last is not None:
            writes.append(Write(beat_key(writer), last.seqno, None))
        if place.commit(writes) is not None:
            raise NotAllowedNow(where=meta.path(key), why="the process has just written a heartbeat; stop it")


def change(
    place: StorageContext, writer: Writer, writes: Sequence[Write], guards: Sequence[Guard] | None = None
) -> None:
    """Commit changes of a repair or an import, by default under all guards of its writer.

    Raise `Fenced` if its registration ended, `Conflict` if a peer was first.
    """
    stale = place.commit(writes, writer.guards() if guards is None else guards)
    if stale is not None:
        writer.check(stale)
        raise Conflict(where=place.meta.path(stale.key), why="another process changed this record at the same time")


def _read(record: Record | None, kind: type[T]) -> T | None:
    try:
        return unseal(record.data, kind, "") if record is not None else None
    except EvertideError:
        return None
