"""Writers and the generation: which writers may write, and how the others find out that they may not (I16)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pytest

from evertide.errors import (
    Conflict,
    EvertideError,
    Fenced,
    OutcomeUnknown,
    RecordDamaged,
    StorageFull,
    Unavailable,
    UpperMismatch,
)
from evertide.settings import Settings
from evertide.store import Guard, MemoryMeta, Meta, Stale, Write
from evertide.store.paths import GENERATION, beat_key, writer_key
from evertide.store.writers import Writer, end_silent_writers, read_generation, read_registrations, read_settled_numbers
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.kit.runtime import ManualRuntime
from tests.shard.kit import PassingMeta
from tests.store.race import together

SETTINGS = Settings(writer_ttl_s=60.0, retry_limit_s=5.0)


class Place:
    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.meta = MemoryMeta(self.runtime)

    def writer(self, meta: Meta | None = None, label: str = "") -> Writer:
        return Writer.register(meta or self.meta, runtime=self.runtime, settings=SETTINGS, label=label)

    def end_silent(self, meta: Meta | None = None) -> list[str]:
        return end_silent_writers(meta or self.meta, runtime=self.runtime, settings=SETTINGS)

    def write(self, writer: Writer, number: int = 0) -> None:
        """As every change of a shard: commit under the writer's guards."""
        stale = self.meta.commit([Write("x", number, b"x")], writer.guards())
        if stale is not None:
            writer.check(stale)
            raise AssertionError(stale)


@pytest.fixture
def place() -> Place:
    return Place()


class BeforeCommit(PassingMeta):
    """Runs an action once, right before the next commit that removes a writer."""

    def __init__(self, inner: Meta, act: Callable[[], None]) -> None:
        super().__init__(inner)
        self.left = [act]

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        if self.left and any(write.data is None for write in writes):
            self.left.pop()()
        return super().commit(writes, guards)


# Registration


def test_a_registration_has_the_process_and_the_time(place: Place) -> None:
    writer = place.writer(label="loader")
    found = read_registrations(place.meta)[writer.id]
    assert (found.label, found.ttl_s, found.registered_at_s) == ("loader", 60.0, place.runtime.wall_s())
    assert read_settled_numbers(place.meta) == {writer.id: 1}
    other = place.writer()
    assert set(read_registrations(place.meta)) == {writer.id, other.id}


@pytest.mark.parametrize("faults", list(product(Fault, repeat=2)), ids=lambda faults: "-".join(f.name for f in faults))
def test_registering_beating_and_leaving_survive_lost_answers(place: Place, faults: tuple[Fault, ...]) -> None:
    """A registration whose answer was lost is retried under another id. The first id belongs to no process, and
    expires.
    """
    writer = place.writer(FaultyMeta(place.meta, Faults.scripted(faults)))
    assert len(read_registrations(place.meta)) == 1 + faults[: _tries(faults)].count(Fault.DONE_LOST)
    place.runtime.advance_s(61.0)
    writer.beat()
    end_silent_writers(place.meta, runtime=place.runtime, settings=SETTINGS)
    assert list(read_registrations(place.meta)) == [writer.id]
    writer._meta = FaultyMeta(place.meta, Faults.scripted(faults))
    writer.beat()
    writer.beat()
    place.write(writer)
    writer._meta = FaultyMeta(place.meta, Faults.scripted(faults))
    writer.unregister()
    assert (read_registrations(place.meta), read_settled_numbers(place.meta)) == ({}, {})


def _tries(faults: tuple[Fault, ...]) -> int:
    """How many of the faults a registration meets before it succeeds."""
    return next((at for at, fault in enumerate(faults) if fault is Fault.DONE), len(faults))


def test_an_id_that_is_taken_is_not_taken_again(place: Place) -> None:
    first = place.writer()
    place.runtime = ManualRuntime()
    second = place.writer()
    assert set(read_registrations(place.meta)) == {first.id, second.id}
    assert first.id != second.id


def test_leaving_twice_succeeds_and_is_final(place: Place) -> None:
    writer = place.writer()
    writer.unregister()
    writer.unregister()
    with pytest.raises(Fenced):
        writer.beat()
    with pytest.raises(Fenced, match="unregistered"):
        place.write(writer)


def test_old_heartbeats_are_truncated_and_fail_no_commit_of_the_writer(place: Place) -> None:
    """U8: the heartbeat has a key of its own, which no commit guards."""
    writer = place.writer()
    guards = writer.guards()
    for _ in range(300):
        writer.beat()
    assert len(place.meta.scan(beat_key(writer.id))) <= 130
    assert place.meta.commit([Write("x", 0, b"x")], guards) is None


# Fencing


def test_a_writer_that_is_silent_too_long_is_ended_and_fenced(place: Place) -> None:
    """Fails if the guards leave out the registration: then the write happens."""
    silent, lively = place.writer(), place.writer()
    place.runtime.advance_s(60.0)
    assert place.end_silent() == [], "a writer is live for exactly its time to live"
    lively.beat()
    place.runtime.advance_s(0.5)
    assert place.end_silent() == [silent.id]
    assert place.end_silent() == []
    assert list(read_registrations(place.meta)) == [lively.id]
    assert set(read_settled_numbers(place.meta)) == {lively.id}
    with pytest.raises(Fenced, match="unregistered"):
        place.write(silent)
    with pytest.raises(Fenced):
        silent.beat()
    assert place.meta.head("x") is None
    silent.unregister()
    place.write(lively)


def test_a_heartbeat_before_the_removal_keeps_the_writer(place: Place) -> None:
    """The collector read it as silent; it beats before it is ended. Fails if the removal does not include the
    heartbeat's key.
    """
    writer = place.writer()
    place.runtime.advance_s(61.0)
    meta = BeforeCommit(place.meta, writer.beat)
    assert place.end_silent(meta) == []
    assert not meta.left
    place.write(writer)


def test_two_collectors_end_a_writer_once(place: Place) -> None:
    place.writer()
    place.runtime.advance_s(61.0)
    others: list[list[str]] = []
    first = place.end_silent(BeforeCommit(place.meta, lambda: others.append(place.end_silent())))
    assert (len(others[0]), first) == (1, [])
    assert read_registrations(place.meta) == {}


def test_a_lost_answer_does_not_end_a_second_writer(place: Place) -> None:
    writer = place.writer()
    place.runtime.advance_s(61.0)
    assert place.end_silent(FaultyMeta(place.meta, Faults.scripted([Fault.DONE_LOST]))) == [writer.id]


def test_a_clock_jump_fences_a_writer_and_loses_no_data(place: Place) -> None:
    writer = place.writer()
    place.runtime.jump_wall_s(-3600.0)
    assert place.end_silent() == []
    place.write(writer)
    place.runtime.jump_wall_s(7200.0)
    assert place.end_silent() == [writer.id]
    with pytest.raises(Fenced):
        place.write(writer, 1)


def test_a_damaged_registration_ends_no_writer(place: Place) -> None:
    writers = [place.writer() for _ in range(3)]
    broken = sorted(writer.id for writer in writers)[1]
    place.meta.commit([Write(writer_key(broken), 1, b"\x01garbage!!!")])
    place.runtime.advance_s(61.0)
    with pytest.raises(RecordDamaged, match=f"memory:writer/{broken}"):
        place.end_silent()
    assert len(place.meta.heads(writer_key(""))) == 3


def test_a_heartbeat_with_a_lost_answer_does_not_fence(place: Place) -> None:
    """Storage was unavailable for longer than the retries. The heartbeat took effect: the writer is as registered as
    before.
    """
    writer = place.writer()
    writer._meta = FaultyMeta(place.meta, Faults.scripted([Fault.DONE_LOST] + [Fault.REFUSED] * 200))
    with pytest.raises(OutcomeUnknown):
        writer.beat()
    writer._meta = place.meta
    place.write(writer)
    writer.beat()


# Sequence numbers


def floor(place: Place, writer: Writer) -> int:
    writer.beat()
    return read_settled_numbers(place.meta)[writer.id]


def test_the_floor_is_below_every_open_number(place: Place) -> None:
    """Fails if the floor is the next number."""
    writer = place.writer()
    with writer.claim() as first:
        assert (first, floor(place, writer)) == (1, 1)
        with writer.claim() as second:
            assert (second, floor(place, writer)) == (2, 1)
        assert floor(place, writer) == 1, "the older number is still open"
    assert floor(place, writer) == 3


def test_the_floor_is_published_by_heartbeats_only(place: Place) -> None:
    writer = place.writer()
    with writer.claim():
        pass
    assert read_settled_numbers(place.meta) == {writer.id: 1}
    assert floor(place, writer) == 2


@pytest.mark.parametrize(
    "error",
    [
        Conflict("a", "b"),
        UpperMismatch("a", "b", 1, 2),
        Unavailable("a", "b"),
        StorageFull("a", "b"),
        Fenced("a", "b"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_commit_that_did_not_happen_settles_the_number(place: Place, error: EvertideError) -> None:
    writer = place.writer()
    with pytest.raises(type(error)), writer.claim():
        raise error
    assert floor(place, writer) == 2


@pytest.mark.parametrize(
    "error", [OutcomeUnknown("a", "b"), KeyboardInterrupt(), MemoryError()], ids=lambda e: type(e).__name__
)
def test_an_unknown_outcome_leaves_the_number_open(place: Place, error: BaseException) -> None:
    """The commit may still take effect, so no collector may delete what it names. Fails if `claim` always settles."""
    writer = place.writer()
    with pytest.raises(type(error)), writer.claim():
        raise error
    with writer.claim():
        pass
    assert floor(place, writer) == 1


def test_threads_get_numbers_of_their_own_and_the_floor_never_passes_an_open_one(place: Place) -> None:
    writer = place.writer()
    taken: list[int] = []

    def work(_number: int) -> None:
        for _ in range(50):
            with writer.claim() as seq:
                taken.append(seq)
                writer.beat()
                assert read_settled_numbers(place.meta)[writer.id] <= seq

    assert together(4, work) == [None] * 4
    assert sorted(taken) == list(range(1, 201))
    assert floor(place, writer) == 201


# The generation


def test_a_new_generation_fences_writers_of_the_old_one(place: Place) -> None:
    """Fails if the guards leave out the generation."""
    old, new = place.writer(), place.writer()
    assert read_generation(place.meta) is None
    made = new.change_generation(["a", "b"])
    assert read_generation(place.meta) == made
    assert (made.number, made.members, made.writer) == (1, ("a", "b"), new.id)
    with pytest.raises(Fenced, match="another writer changed the generation from 0 to 1"):
        place.write(old)
    place.write(new)
    assert old.adopt_generation() == made
    place.write(old, 1)
    late = place.writer()
    place.write(late, 2)


def test_of_two_concurrent_changes_of_the_generation_one_is_fenced(place: Place) -> None:
    writers = [place.writer() for _ in range(4)]
    errors = together(4, lambda number: writers[number].change_generation([str(number)]))
    [winner] = [number for number, error in enumerate(errors) if error is None]
    assert all(isinstance(error, Fenced) for error in errors if error is not None)
    made = read_generation(place.meta)
    assert made is not None
    assert (made.number, made.members, made.writer) == (1, (str(winner),), writers[winner].id)
    assert len(place.meta.scan(GENERATION)) == 1


@pytest.mark.parametrize("faults", list(product(Fault, repeat=2)), ids=lambda faults: "-".join(f.name for f in faults))
def test_a_generation_is_created_once_under_every_fault(place: Place, faults: tuple[Fault, ...]) -> None:
    writer = place.writer()
    writer._meta = FaultyMeta(place.meta, Faults.scripted(faults))
    assert writer.change_generation(["a"]).number == 1
    assert writer.change_generation(["b"]).number == 2
    assert len(place.meta.scan(GENERATION)) == 2


def test_an_unregistered_writer_changes_no_generation(place: Place) -> None:
    writer = place.writer()
    writer.unregister()
    with pytest.raises(Fenced, match="unregistered"):
        writer.change_generation(["a"])
    assert read_generation(place.meta) is None
