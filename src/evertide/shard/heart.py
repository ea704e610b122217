"""The heartbeat of a process: one thread that says for its writer and all its leases that they live.

A failure to reach storage is said and tried again at the next beat; until then clocks run out, which costs a restart,
never data. A fenced writer stays fenced: `error` says so, and its next commit raises it anyway."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from evertide.errors import EvertideError
from evertide.settings import Settings
from evertide.shard.lease import Leases
from evertide.store.writers import Writer

__all__ = ["Heart"]

logger = logging.getLogger(__name__)


class Heart:
    def __init__(self, settings: Settings, leases: Leases, writer: Writer | None = None) -> None:
        self.error: EvertideError | None = None
        self._interval_s = settings.beat_interval_s
        self._leases = leases
        self._writer = writer
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evertide-heart", daemon=True)

    def beat(self) -> None:
        """One beat; what went wrong is kept in `error` until all of it succeeds. The writer's comes first."""
        beats = [self._leases.beat] if self._writer is None else [self._writer.beat, self._leases.beat]
        errors = []
        for beat in beats:
            try:
                beat()
            except EvertideError as error:
                logger.warning("no heartbeat: %s", error)
                errors.append(error)
        self.error = errors[0] if errors else None

    def start(self) -> Heart:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self.beat()

    def __enter__(self) -> Heart:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
