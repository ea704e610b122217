"""Storage calls are told of, each once, however they end; that the contracts hold is shown by their own suites."""

from __future__ import annotations

import pytest

from evertide.errors import Unavailable
from evertide.observer import NO_OBSERVER, Observer
from evertide.runtime import SystemRuntime
from evertide.store.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from evertide.store.memory import MemoryBlob, MemoryMeta
from evertide.store.meta import Write
from evertide.store.observed import observe
from evertide.store.open import Storage

RUNTIME = SystemRuntime()


class Calls(Observer):
    def __init__(self) -> None:
        self.made: list[tuple[str, int, str]] = []

    def on_storage_call(self, call: str, took_s: float, size: int, error_code: str) -> None:
        assert took_s >= 0
        self.made.append((call, size, error_code))


def test_every_call_is_told_of_with_its_bytes() -> None:
    calls = Calls()
    storage = observe(Storage(MemoryBlob(), MemoryMeta(), "memory"), calls, RUNTIME)
    storage.blob.put("a/b", b"12345")
    assert storage.blob.get("a/b") == b"12345"
    assert storage.blob.get_range("a/b", 1, 2) == b"23"
    assert [entry.key for entry in storage.blob.list("a/")] == ["a/b"]
    assert list(storage.blob.unfinished("a/")) == []
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
        ("blob.unfinished", 0, ""),
        ("blob.delete", 0, ""),
        ("meta.commit", 3, ""),
        ("meta.head", 3, ""),
        ("meta.heads", 3, ""),
        ("meta.scan", 3, ""),
        ("meta.truncate", 0, ""),
    ]


def test_a_call_that_fails_is_told_of_with_its_code_and_fails_all_the_same() -> None:
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


def test_where_nobody_observes_nothing_lies_between() -> None:
    storage = Storage(MemoryBlob(), MemoryMeta(), "memory")
    assert observe(storage, NO_OBSERVER, RUNTIME) is storage
