"""A signal while a storage call does not return: the error says whether a write may have happened."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from evertide.cli.running.open_pipeline import end_if_silent
from evertide.observer import Observer
from evertide.store.memory import MemoryBlob, MemoryMeta
from evertide.store.observed import observe
from evertide.store.open import Storage
from tests.kit.runtime import ManualRuntime


class Hanging(MemoryBlob):
    """A call lasts until `goes_on` is set; on the clock of storage that is far too long."""

    def __init__(self, runtime: ManualRuntime) -> None:
        super().__init__()
        self.runtime = runtime
        self.goes_on = threading.Event()

    def get(self, key: str) -> bytes:
        self._hang()
        return b""

    def put(self, key: str, data: bytes) -> None:
        self._hang()

    def _hang(self) -> None:
        self.runtime.advance_s(100)
        assert self.goes_on.wait(60)


@pytest.mark.parametrize(
    ("name", "call", "code", "exit_code"),
    [
        ("blob.put", lambda blob: blob.put("k", b""), "outcome_unknown", 7),
        ("blob.get", lambda blob: blob.get("k"), "unavailable", 6),
    ],
)
def test_a_signal_ends_a_command_whose_storage_call_does_not_return(
    name: str, call: Callable[[Any], object], code: str, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = ManualRuntime()
    blob = Hanging(runtime)
    storage = observe(Storage(blob, MemoryMeta(), "memory"), Observer(), runtime)
    hanging = threading.Thread(target=call, args=(storage.blob,))
    ended: Queue[int] = Queue()
    pipeline: Any = SimpleNamespace(storage=storage, stop=hanging.start)  # the call hangs from the signal on
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with end_if_silent(pipeline, is_json=True, end=ended.put):
            signal.raise_signal(signal.SIGUSR1)
            assert ended.get(timeout=60) == exit_code
    finally:
        signal.signal(signal.SIGUSR1, before)
        blob.goes_on.set()
        hanging.join()
    told = json.loads(capsys.readouterr().err)
    assert told["error_code"] == code
    assert told["why"] == (
        f"{name} has not returned for 100 s; this process ends without a checkpoint, "
        "and the next start replays more transactions; nothing is lost"
    )
