"""`Heartbeat`: the thread that keeps the writer and all leases of a process alive.

If storage cannot be reached, the thread logs it once and tries again at the next interval. If the time to live passes
meanwhile, the process has to restart, but no data is lost. A fenced writer stays fenced: `error` has the reason, and
the writer's next commit raises it.
"""

from __future__ import annotations

import logging

from evertide.errors import EvertideError
from evertide.settings import Settings
from evertide.shard.lease import Leases
from evertide.store.writers import Writer
from evertide.threads.outage_log import OutageLog
from evertide.threads.ticker import Ticker

logger = logging.getLogger(__name__)


class Heartbeat(Ticker):
    def __init__(self, settings: Settings, leases: Leases, writer: Writer | None = None) -> None:
        super().__init__("evertide-heartbeat", settings.heartbeat_interval_s)
        self.error: EvertideError | None = None
        self._leases = leases
        self._writer = writer
        self._failure = OutageLog(logger, "could not write a heartbeat", leases.runtime)

    def beat(self) -> None:
        """HeartbeatRecord once for the writer, then for the leases. `error` keeps a failure until all beats succeed."""
        beats = [self._leases.beat] if self._writer is None else [self._writer.beat, self._leases.beat]
        errors = []
        for beat in beats:
            try:
                beat()
            except EvertideError as error:
                errors.append(error)
        self.error = errors[0] if errors else None
        if self.error is None:
            self._failure.end()
        else:
            self._failure.note(self.error)

    def tick(self) -> bool:
        self.beat()
        return True
