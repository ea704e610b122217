"""Sequence numbers of producers (J10) are stored apart from the transactions, so that these do not grow with
producers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.repair import repair
from evertide.journal.producers import Producers, StoredProducer
from evertide.journal.records import Input
from evertide.pipeline.input.pushes import PUSH
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.store.memory import MemoryMeta
from evertide.store.open import Storage
from evertide.store.paths import JOURNAL
from tests.pipeline.kit import SETTINGS, crash, open_pipeline, rows_of, storage


def give(p: Pipeline, producer: str, number: int) -> bool:
    """Push, and return whether the pipeline treated it as a repeat."""
    with p.transaction(producer, number) as pushed:
        pushed.push("notes", [{"text": f"{producer}-{number}"}])
    p.commit()
    return pushed.is_repeated


def texts(p: Pipeline) -> list[str]:
    return [text for (text,) in rows_of(p, "notes")]


def record_bytes(kept: Storage) -> int:
    head = kept.meta.head(JOURNAL)
    assert head is not None
    return len(head.data)


def test_j10_a_record_does_not_grow_with_the_number_of_producers() -> None:
    kept = storage()
    with open_pipeline(kept) as p:
        give(p, "worker-000", 1)
        first = record_bytes(kept)
        for number in range(1, 40):
            assert not give(p, f"worker-{number:03}", 1)
        assert record_bytes(kept) <= first + 8, "the record of a later transaction has a longer time and count"
        p.checkpoint()
        p.push("notes", [{"text": "nobody's"}])
        p.commit()
        assert record_bytes(kept) < first
        assert all(give(p, f"worker-{number:03}", 1) for number in range(40))
        assert len(texts(p)) == 41


@pytest.mark.parametrize("name", ["till", "tîll/7 =%", "x" * 200])
def test_j10_producers_are_known_after_checkpoints_and_crashes_and_in_other_replicas(name: str) -> None:
    kept = storage()
    p = open_pipeline(kept)
    for number in (1, 2, 5):
        give(p, name, number)
    for _ in range(3):
        p.push("notes", [{"text": "x"}])
        p.commit()
        p.checkpoint()
    crash(p)
    with open_pipeline(kept) as p:
        assert [give(p, name, number) for number in (5, 4, 6, 6)] == [True, True, False, True]
        with p.transaction(name, 7) as first, p.transaction(name, 7) as echo:
            first.push("notes", [{"text": "seven"}])
            echo.push("notes", [{"text": "seven"}])
        p.commit()
        assert (first.is_repeated, echo.is_repeated) in {(True, False), (False, True)}
        assert texts(p).count("seven") == 1


def test_j10_positions_of_an_earlier_version_are_converted() -> None:
    """The earlier version had all producers in each record; the next bind moves them to the journal, all at once."""
    kept = storage()
    p = open_pipeline(kept)
    runner = p._runner
    old = '{"pushes":2,"producers":{"ann":[7,0],"bob":[3,0]}}'
    before = runner.journal.positions()[PUSH]
    runner.journal.bind({PUSH: Input(before, old)}, runner.definition.generation, runner.writer)
    crash(p)
    with open_pipeline(kept) as p:
        assert give(p, "ann", 7)
        p.checkpoint()
        assert [give(p, name, number) for name, number in (("ann", 8), ("ann", 8), ("bob", 3))] == [False, True, True]
        assert p._runner.journal.positions()[PUSH] == '{"pushes":3,"producers":2}'
        assert texts(p) == ["ann-8"]


def test_j10_a_repair_from_a_checkpoint_knows_the_producers_of_its_time() -> None:
    """Pushes that are lost with Meta are accepted again; those in the checkpoint and later ones are not."""
    kept = storage()
    p = open_pipeline(kept)
    for number in (1, 2):
        give(p, "ann", number)
    p.checkpoint()
    give(p, "ann", 3)
    give(p, "bob", 1)
    crash(p)
    lost = Storage(kept.blob, MemoryMeta(SystemRuntime()), "memory")
    repair(StorageContext(lost.blob, lost.meta, SystemRuntime(), SETTINGS))
    with open_pipeline(lost) as p:
        assert texts(p) == ["ann-1", "ann-2"]
        assert [give(p, "ann", number) for number in (2, 3, 3)] == [True, False, True]
        assert [give(p, "bob", 1) for _ in range(2)] == [False, True]


def test_j10_producers_can_be_read_as_of_an_earlier_time() -> None:
    """A peer may bind pushes while a checkpoint is made: the checkpoint must not contain later pushes."""
    with open_pipeline(storage()) as p:
        give(p, "ann", 1)
        time = p._runner.time
        for producer, number in (("ann", 2), ("bob", 1), ("ann", 3)):
            give(p, producer, number)
        journal = p._runner.journal
        assert journal.read_producers_before(time) == {"ann": (1, time - 1)}
        assert journal.read_producers_before(time + 1) == {"ann": (2, time)}
        assert journal.read_producers_before(time + 3) == {"ann": (3, time + 2), "bob": (1, time + 1)}


def test_idle_producers_are_forgotten_except_the_newest() -> None:
    short = replace(SETTINGS, producers_kept_days=1e-9, producers_kept_min=2)
    with open_pipeline(storage(), settings=short) as p:
        for number in range(5):
            give(p, f"worker-{number}", 1)
        p.checkpoint()
        journal = p._runner.journal
        assert [journal.producers.read_last(f"worker-{number}") is not None for number in range(5)] == [False] * 3 + [
            True
        ] * 2
        assert [give(p, f"worker-{number}", 1) for number in range(5)] == [False] * 3 + [True] * 2


def test_a_bind_succeeds_if_its_producer_is_forgotten_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(SETTINGS, producers_kept_days=1e-9, producers_kept_min=1)
    with open_pipeline(storage(), settings=short) as p:
        give(p, "ann", 1)
        give(p, "bob", 1)
        known, forgot = Producers.read_known, []

        def read_then_forget(self: Producers, inputs: dict[str, Input]) -> dict[str, StoredProducer]:
            found = known(self, inputs)
            forgot.append(self.forget(p._runner.writer))
            return found

        monkeypatch.setattr(Producers, "read_known", read_then_forget)
        assert not give(p, "ann", 2)
        assert forgot == [1, 0]
        last = p._runner.journal.producers.read_last("ann")
        assert last is not None
        assert last.number == 2
        assert texts(p) == ["ann-1", "ann-2", "bob-1"]
