"""The heartbeat of a process: one thread that says for its writer and all its leases that they live.

A failure to reach storage is said and tried again at the next beat; until then clocks run out, which costs a restart,
never data. A fenced writer stays fenced: `error` says so, and its next commit raises it anyway."""

from __future__ import annotations

import logging

from evertide.errors import EvertideError
from evertide.settings import Settings
from evertide.shard.lease import Leases
from evertide.store.writers import Writer
from evertide.threads.ticker import Ticker

__all__ = ["Heartbeat"]

logger = logging.getLogger(__name__)


class Heartbeat(Ticker):
    def __init__(self, settings: Settings, leases: Leases, writer: Writer | None = None) -> None:
        super().__init__("evertide-heart", settings.beat_interval_s)
        self.error: EvertideError | None = None
        self._leases = leases
        self._writer = writer

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

    def tick(self) -> bool:
        self.beat()
        return True
