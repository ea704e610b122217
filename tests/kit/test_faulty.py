"""`FaultyBlob` and `FaultyMeta` end calls in four ways, each with its effect and its error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.store import MemoryBlob, MemoryMeta, Record, Stale, Write
from evertide.types import SequenceNumber
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.kit.runtime import ManualRuntime

ENDS = [
    (Fault.DONE, None, True),
    (Fault.DONE_LOST, OutcomeUnknown, True),
    (Fault.LOST, OutcomeUnknown, False),
    (Fault.REFUSED, Unavailable, False),
]


def end_of(call: Callable[[], object]) -> type[Exception] | None:
    try:
        call()
    except (OutcomeUnknown, Unavailable) as error:
        return type(error)
    return None


@pytest.mark.parametrize(("fault", "reported", "done"), ENDS)
def test_faults_of_blob_writes(fault: Fault, reported: type[Exception] | None, done: bool) -> None:
    inner = MemoryBlob()
    faults = Faults.scripted(writes=[fault, fault])
    blob = FaultyBlob(inner, faults)
    assert end_of(lambda: blob.put("p/a", b"1")) is reported
    assert (list(inner.list("")) != []) is done
    inner.put("p/a", b"1")
    assert end_of(lambda: blob.delete("p/a")) is reported
    assert (list(inner.list("")) == []) is done
    assert faults.injected == ({} if fault is Fault.DONE else {fault: 2})
    blob.put("p/b", b"the script is over")


@pytest.mark.parametrize(("fault", "reported", "done"), ENDS)
def test_faults_of_meta_writes(fault: Fault, reported: type[Exception] | None, done: bool) -> None:
    inner = MemoryMeta()
    faults = Faults.scripted(writes=[fault, fault, fault])
    meta = FaultyMeta(inner, faults)
    assert end_of(lambda: meta.commit([Write("k", 0, b"1")])) is reported
    assert (inner.head("k") is not None) is done
    inner.commit([Write("k", 0, b"1")])
    assert end_of(lambda: meta.commit([Write("k", 1, b"2")])) is reported
    inner.commit([Write("k", 1, b"2")])
    assert end_of(lambda: meta.truncate("k", 2)) is reported
    assert ([found.seqno for found in inner.scan("k")] == [2]) is done
    assert faults.injected == ({} if fault is Fault.DONE else {fault: 3})


def test_the_answer_of_a_lost_race_may_be_lost_too() -> None:
    meta = FaultyMeta(MemoryMeta(), Faults.scripted(writes=[Fault.DONE, Fault.DONE_LOST, Fault.DONE]))
    assert meta.commit([Write("k", 0, b"1")]) is None
    with pytest.raises(OutcomeUnknown):
        meta.commit([Write("k", 0, b"2")])
    assert meta.commit([Write("k", 0, b"3")]) == Stale("k", 0, SequenceNumber(1))
    assert meta.head("k") == Record(SequenceNumber(1), b"1")


def test_reads_are_refused_only() -> None:
    blob, meta = MemoryBlob(), MemoryMeta()
    blob.put("p/a", b"1")
    meta.commit([Write("k", 0, b"1")])
    script = [Fault.REFUSED, Fault.DONE, Fault.LOST, Fault.DONE_LOST]
    faults = Faults.scripted(reads=script * 2)
    faulty_blob, faulty_meta = FaultyBlob(blob, faults), FaultyMeta(meta, faults)
    reads: list[Callable[[], object]] = [
        lambda: faulty_blob.get("p/a"),
        lambda: faulty_blob.list(""),
        lambda: faulty_blob.list_unfinished(""),
        lambda: faulty_meta.head("k"),
        lambda: faulty_meta.heads(""),
        lambda: faulty_meta.scan("k"),
        lambda: faulty_meta.wait("k", 0, 0.0),
        lambda: faulty_blob.get("p/a"),
    ]
    ends = [end_of(read) for read in reads]
    assert ends == [Unavailable, None, Unavailable, Unavailable] * 2
    assert faults.injected == {Fault.REFUSED: 6}


def test_seeded_faults_follow_from_the_seed_and_cover_every_kind() -> None:
    def run(seed: int) -> tuple[list[type[Exception] | None], Faults]:
        faults = Faults.seeded(ManualRuntime(seed), 0.5)
        blob, meta = FaultyBlob(MemoryBlob(), faults), FaultyMeta(MemoryMeta(), faults)
        ends = [end_of(lambda n=n: blob.put(f"p/{n}", b"")) for n in range(200)]  # type: ignore[misc]
        return [*ends, *(end_of(lambda: meta.head("k")) for _ in range(100))], faults

    first, faults = run(1)
    assert run(1)[0] == first
    assert run(2)[0] != first
    assert set(faults.injected) == {Fault.DONE_LOST, Fault.LOST, Fault.REFUSED}
    assert faults.injected.total() == sum(end is not None for end in first)
    assert 100 < faults.injected.total() < 200
