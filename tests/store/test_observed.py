"""Each storage call is reported to the observer once, however it ends. The conformance suites test the contracts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.observer import NO_OBSERVER, Observer
from evertide.runtime import SystemRuntime
from evertide.store.memory import MemoryBlob, MemoryMeta
from evertide.store.meta import Write
from evertide.store.observed import Silence, find_silence, observe
from evertide.store.open import Storage
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.kit.runtime import ManualRuntime

RUNTIME = SystemRuntime()


class Calls(Observer):
    def __init__(self) -> None:
        self.made: list[tuple[str, int, str]] = []

    def on_storage_call(self, call: str, took_s: float, size: int, error_code: str) -> None:
        assert took_s >= 0
        self.made.append((call, size, error_code))


def test_every_call_is_reported_with_its_bytes() -> None:
    calls = Calls()
    storage = observe(Storage(MemoryBlob(), MemoryMeta(), "memory"), calls, RUNTIME)
    storage.blob.put("a/b", b"12345")
    assert storage.blob.get("a/b") == b"12345"
    assert storage.blob.get_range("a/b", 1, 2) == b"23"
    assert [entry.key for entry in storage.blob.list("a/")] == ["a/b"]
    assert list(storage.blob.list_unfinished("a/")) == []
    assert storage.blob.delete("a/b")
    assert storage.meta.commit([Write("k", 0, b"123")]) is None
    assert storage.meta.head("k") is not None
    assert len(storage.meta.heads("")) == len(storage.meta.scan("k")) == 1
    storage.meta.truncate("k", 1)
    assert not storage.meta.wait("k", 1, 0.001)
    assert calls.made == [
        ("blob.put", 5, ""),
        ("blob.get", 5, ""),
        ("blob.get_range", 2, ""),
        ("blob.list", 0, ""),
        ("blob.list_unfinished", 0, ""),
        ("blob.delete", 0, ""),
        ("meta.commit", 3, ""),
        ("meta.head", 3, ""),
        ("meta.heads", 3, ""),
        ("meta.scan", 3, ""),
        ("meta.truncate", 0, ""),
    ]


def test_a_failed_call_is_reported_with_its_code_and_raises() -> None:
    calls = Calls()
    faults = Faults.scripted(reads=[Fault.REFUSED] * 3, writes=[Fault.LOST, Fault.REFUSED])
    inner = Storage(FaultyBlob(MemoryBlob(), faults), FaultyMeta(MemoryMeta(), faults), "memory")
    storage = observe(inner, calls, RUNTIME)
    for read in (lambda: storage.blob.get("a"), lambda: storage.blob.list("a/"), lambda: storage.meta.head("k")):
        with pytest.raises(Unavailable):
            read()
    with pytest.raises(Exception, match="may or may not"):
        storage.blob.put("a", b"1")
    with pytest.raises(Unavailable):
        storage.meta.commit([Write("k", 0, b"1")])
    assert calls.made == [
        ("blob.get", 0, "unavailable"),
        ("blob.list", 0, "unavailable"),
        ("meta.head", 0, "unavailable"),
        ("blob.put", 0, "outcome_unknown"),
        ("meta.commit", 0, "unavailable"),
    ]


def test_without_an_observer_the_storage_is_unchanged() -> None:
    storage = Storage(MemoryBlob(), MemoryMeta(), "memory")
    assert observe(storage, NO_OBSERVER, RUNTIME) is storage


class Slow(MemoryBlob):
    """A call takes the given seconds of the clock, and records at its end what is silent."""

    def __init__(self, runtime: ManualRuntime) -> None:
        super().__init__()
        self.runtime = runtime
        self.took_s = 0.0
        self.look: Callable[[], Silence | None] = lambda: None
        self.seen: list[Silence | None] = []

    def get(self, key: str) -> bytes:
        self._pass_time()
        return super().get(key)

    def put(self, key: str, data: bytes) -> None:
        self._pass_time()
        super().put(key, data)

    def _pass_time(self) -> None:
        self.runtime.advance_s(self.took_s)
        self.seen.append(self.look())


def test_a_call_that_does_not_return_is_named_and_a_large_one_may_take_longer() -> None:
    runtime = ManualRuntime()
    blob = Slow(runtime)
    storage = observe(Storage(blob, MemoryMeta(), "memory"), Observer(), runtime)
    blob.look = lambda: find_silence(storage, runtime.monotonic_s())
    for key, took_s, size in (("a", 9, 1), ("b", 11, 1), ("c", 11, 5 << 20), ("d", 16, 5 << 20)):
        blob.took_s = took_s
        storage.blob.put(key, bytes(size))
    late = [Silence(f"blob.put has not returned for {took_s} s", may_have_written=True) for took_s in (11, 16)]
    assert blob.seen == [None, late[0], None, late[1]]
    assert find_silence(storage, runtime.monotonic_s()) is None
    blob.took_s = 61
    storage.blob.get("a")
    assert blob.seen[-1] == Silence("blob.get has not returned for 61 s", may_have_written=False)


def test_storage_whose_calls_fail_is_silent_unless_one_is_answered() -> None:
    runtime, faults = ManualRuntime(), Faults.scripted(reads=[Fault.REFUSED, Fault.REFUSED, Fault.DONE, Fault.REFUSED])
    storage = observe(Storage(MemoryBlob(), FaultyMeta(MemoryMeta(), faults), "memory"), Observer(), runtime)

    def ask(after_s: float) -> Silence | None:
        runtime.advance_s(after_s)
        with suppress(Unavailable):
            storage.meta.head("k")
        return find_silence(storage, 0)

    silent = Silence("all calls have failed for 11 s", may_have_written=False)
    assert [ask(8), ask(11), ask(0), ask(0)] == [None, silent, None, None]
    runtime.advance_s(11)
    assert find_silence(storage, runtime.monotonic_s()) is None, "it counts from the stop"


def test_a_write_whose_answer_was_lost_is_in_doubt_until_storage_answers() -> None:
    runtime = ManualRuntime()
    faults = Faults.scripted(writes=[Fault.LOST], reads=[Fault.REFUSED, Fault.DONE, Fault.REFUSED])
    storage = observe(Storage(MemoryBlob(), FaultyMeta(MemoryMeta(), faults), "memory"), Observer(), runtime)
    with suppress(OutcomeUnknown):
        storage.meta.commit([Write("k", 0, b"")])
    found = []
    for _ in range(3):
        with suppress(Unavailable):
            storage.meta.head("k")
        runtime.advance_s(11)
        found.append(find_silence(storage, 0))
    silent = [Silence("all calls have failed for 11 s", may_have_written=one) for one in (True, False)]
    assert found == [silent[0], None, silent[1]]
