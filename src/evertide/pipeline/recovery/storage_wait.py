"""Retries the opening of a pipeline during a storage outage, or after a write of unknown outcome.

1. Each retry reads the stored state first, so that nothing is done twice (I14).
2. Calls that the operating system refuses are retried, too. A full or read-only storage is reported at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from evertide.errors import EvertideError, OutcomeUnknown, StorageForbidden, StorageFull, Unavailable
from evertide.pipeline.records.ownership import ProcessRole, register_as
from evertide.pipeline.status.process_state import ProcessState
from evertide.runtime import Runtime
from evertide.scratch import using_system
from evertide.settings import Settings
from evertide.store.meta import Meta
from evertide.store.writers import Writer
from evertide.threads.outage_log import OutageLog
from evertide.threads.steps import note_step

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StorageWait:
    """Retries a call of the opening, after the registration, and reports the wait in the status."""

    process_state: ProcessState
    check: Callable[[], None]
    """Raises to prevent a retry."""
    stopping: threading.Event
    settings: Settings

    def __call__(self, call: Callable[[], _T]) -> _T:
        runtime = self.process_state.runtime
        answer = _retry_until_answered(call, self.stopping, runtime, self.settings, self._report_wait)
        self.process_state.clear_storage_wait()
        return answer

    def _report_wait(self, error: EvertideError) -> None:
        self.process_state.report_storage_wait(error)
        self.check()


def _retry_until_answered(
    call: Callable[[], _T],
    stopping: threading.Event,
    runtime: Runtime,
    settings: Settings,
    on_wait: Callable[[EvertideError], None] = lambda _: None,
) -> _T:
    """`on_wait` is called with the error before each retry."""
    waiting = OutageLog(logger, "the opening of the pipeline waits for storage", runtime)
    while True:
        try:
            with using_system("opening the pipeline"):
                answer = call()
        except (StorageFull, StorageForbidden):
            raise
        except (Unavailable, OutcomeUnknown) as error:
            waiting.note(error)
            on_wait(error)
            note_step()  # waiting is not a hang
            stopping.wait(settings.retry_wait_max_s)
        else:
            waiting.end()
            return answer


def register_with_retry(
    role: ProcessRole, meta: Meta, stopping: threading.Event, *, runtime: Runtime, settings: Settings
) -> Writer:
    """A registration whose answer was lost is ended by the next try, or ends for lack of heartbeats."""
    instance = runtime.new_id()
    return _retry_until_answered(
        lambda: register_as(role, meta, runtime=runtime, settings=settings, instance=instance),
        stopping,
        runtime,
        settings,
    )
