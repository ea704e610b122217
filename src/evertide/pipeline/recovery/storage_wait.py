"""Opening a pipeline while storage is away, or does not say what became of a write: it waits, and goes on by itself.

What is asked again reads what is there first, so that nothing is done twice (I14). So it does if the operating system
refuses a call. A full disk, or one that may not be
written, does not heal by itself: that reaches the caller at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from evertide.errors import EvertideError, OutcomeUnknown, StorageForbidden, StorageFull, Unavailable
from evertide.pipeline.replicas.ownership import Role, register_as
from evertide.pipeline.status.process_state import ProcessState
from evertide.runtime import Runtime
from evertide.scratch import using_system
from evertide.settings import Settings
from evertide.store.meta import Meta
from evertide.store.writers import Writer
from evertide.threads.steps import note_step

__all__ = ["StorageWait", "register_with_retry"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class StorageWait:
    """Once registered, opening waits for storage, and says so."""

    def __init__(
        self, process_state: ProcessState, check: Callable[[], None], stopping: threading.Event, settings: Settings
    ) -> None:
        """`check` raises if there should be no other try."""
        self._process_state = process_state
        self._check = check
        self._stopping = stopping
        self._settings = settings

    def __call__(self, call: Callable[[], _T]) -> _T:
        answer = _until_answered(call, self._stopping, self._settings, self._waits)
        self._process_state.clear_storage_wait()
        return answer

    def _waits(self, error: EvertideError) -> None:
        self._process_state.report_storage_wait(error)
        self._check()


def _until_answered(
    call: Callable[[], _T],
    stopping: threading.Event,
    settings: Settings,
    waits: Callable[[EvertideError], None] = lambda _: None,
) -> _T:
    """`waits` is told what is wrong, each time before another try."""
    while True:
        try:
            with using_system("opening the pipeline"):
                return call()
        except (StorageFull, StorageForbidden):
            raise
        except (Unavailable, OutcomeUnknown) as error:
            logger.warning("opening waits for storage: %s", error)
            waits(error)
            note_step()  # to wait is not to hang
            stopping.wait(settings.retry_wait_max_s)


def register_with_retry(
    role: Role, meta: Meta, stopping: threading.Event, *, runtime: Runtime, settings: Settings
) -> Writer:
    """A registration that arrives after its answer was lost is ended by the next try, or stays silent and ends."""
    instance = runtime.new_id()
    return _until_answered(
        lambda: register_as(role, meta, runtime=runtime, settings=settings, instance=instance), stopping, settings
    )
