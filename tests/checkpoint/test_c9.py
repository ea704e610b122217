"""C9: collections at once, during a publication, during a restore, and during a peer's work that no checkpoint has yet.

Deterministic: what comes in between comes before one single Blob or Meta operation, and every operation has its run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from evertide.checkpoint.draft import Draft
from evertide.errors import BlobMissing, Fenced
from tests.checkpoint.kit import SHARDS, TTL_S, Memory, Process, Watched, each_step
from tests.checkpoint.test_collection import clean, collect_shards, sound
from tests.shard.test_log import HookedBlob, HookedMeta
from tests.store.race import together


@dataclass
class Scene:
    """Checkpoints 1 and 2 of a first process, which lives; and another one that collects."""

    memory: Memory
    first: Process
    other: Process

    def collect(self) -> None:
        """All kinds of collection; compaction makes something to collect."""
        for name in SHARDS:
            self.other.shard(name).compact(self.other.writer)
        collect_shards(self.other)
        self.other.collect()

    def publish_and_collect(self) -> None:
        """Everything that was catalogued before is dropped."""
        for _ in range(2):
            self.other.merge()
            self.other.publish()
        self.collect()

    def end_all_and_collect(self) -> None:
        """Whoever is stopped for longer than a writer may be silent."""
        self.memory.runtime.advance_s(TTL_S + 1)
        self.other.writer.beat()
        self.collect()


def scene() -> Scene:
    memory = Memory()
    first = memory.started()
    first.publish()
    first.step()
    first.merge()
    first.publish()
    other = memory.process()
    other.merge()
    return Scene(memory, first, other)


def use(process: Process) -> None:
    """As an engine does. What is gone then, is gone because the process was ended."""
    for part in process.parts:
        try:
            process.blob.get(part.key)
        except BlobMissing:
            process.writer.check_registered()
            raise


def publish(process: Process) -> None:
    """What its engine wrote meanwhile is used no more: only the draft has it."""
    process.merge()
    draft: Draft = process.draft()
    process.checkpoints.publish(draft.time, lambda: draft, process.writer)


def restore(process: Process) -> None:
    process.restored_time()
    use(process)


def restore_and_publish(process: Process) -> None:
    process.restored_time()
    process.publish()
    use(process)


def collection(process: Process) -> None:
    process.shard("orders").collect_garbage(process.writer, process.checkpoints.pinned)
    process.collect()


def work_without_checkpoint(process: Process) -> None:
    process.step()
    process.merge()
    use(process)


def publish_and_end(process: Process) -> None:
    """Everything that it wrote before is named, and then it is gone."""
    process.publish()
    process.writer.unregister()


def publish_and_compact(process: Process) -> None:
    """What the checkpoint names of a shard is not in the shard any more."""
    process.step()
    process.publish()
    assert process.shard("orders").compact(process.writer)


WORK = [publish, restore, restore_and_publish, collection, work_without_checkpoint]
MEANWHILE = [Scene.collect, Scene.publish_and_collect, Scene.end_all_and_collect]


@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda act: str(act.__name__))
@pytest.mark.parametrize("work", WORK, ids=lambda work: str(work.__name__))
def test_c9_a_collection_between_any_two_steps(
    work: Callable[[Process], None], meanwhile: Callable[[Scene], None]
) -> None:
    """One run per operation. A victim whose writer was ended is fenced; all others finish as if nothing was.

    Seen to fail without the claims (files of a publication under way are deleted), without the holds (of a restore),
    and with parts of registered writers judged by the catalog alone.
    """

    def run(at: int) -> int:
        found = scene()
        watched = Watched(found.memory, at, lambda: meanwhile(found))
        try:
            watched.run(work)
        except Fenced:
            if meanwhile is not Scene.end_all_and_collect:
                raise
            watched.count += 1  # it would have gone on
        sound(found.other)
        clean(found.memory)
        return watched.count

    each_step(run, least=5)


@pytest.mark.parametrize(
    "work", [publish, restore_and_publish, work_without_checkpoint], ids=lambda work: work.__name__
)
def test_c9_anything_between_any_two_steps_of_a_collection(work: Callable[[Process], None]) -> None:
    """The other way round: a whole publication comes in the middle of collecting.

    Seen to fail with pins asked before the state of a shard is read, with blobs listed after the catalog, and with the
    writers read after it.
    """

    def run(at: int) -> int:
        found = scene()
        for name in SHARDS:
            found.other.shard(name).compact(found.other.writer)
        late = found.memory.process()
        late.merge()
        watched = Watched(found.memory, at, lambda: work(late))
        watched.run(collection)
        sound(found.other)
        use(late)
        clean(found.memory)
        return watched.count

    each_step(run, least=20)


def test_c9_a_draft_comes_true_between_any_two_steps_of_its_own_process_s_collection() -> None:
    """Two threads of one process: the one is about to commit, the other collects, and the engine moved on.

    Seen to fail with the drafts asked after the catalog.
    """

    def run(at: int) -> int:
        memory = Memory()
        memory.started()
        pair = Pair(memory, at)
        pair.process.merge()
        pair.publish()
        pair.process.merge()  # what the draft names is not live
        pair.process.collect()
        pair.end()
        assert len(pair.process.checkpoints.entries()) == 1
        sound(memory.process())
        return pair.count

    each_step(run, least=8)


class Pair:
    """A process whose publishing thread stops before it commits, until the other one comes to a numbered operation."""

    def __init__(self, memory: Memory, at: int) -> None:
        self.at = at
        self.count = 0
        self._commits = 0
        self._reached, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=lambda: self.process.checkpoints.publish(self._draft.time, lambda: self._draft, self.process.writer)
        )
        blob, meta = HookedBlob(memory.blob, self._before), HookedMeta(memory.meta, self._before)
        self.process = Process(blob, meta, memory.runtime)

    def publish(self) -> None:
        """Up to the commit."""
        self._draft = self.process.draft()
        self._thread.start()
        assert self._reached.wait(30.0)

    def end(self) -> None:
        self._go.set()
        self._thread.join()

    def _before(self, operation: str, key: str) -> None:
        if threading.current_thread() is self._thread:
            self._commits += (operation, key) == ("commit", "checkpoints")
            if self._commits == 2 and not self._go.is_set():
                self._reached.set()
                assert self._go.wait(30.0)
        elif self._reached.is_set():
            self.count += 1
            if self.count == self.at:
                self.end()


def test_c9_a_shard_is_compacted_and_collected_between_any_two_steps_of_a_publication() -> None:
    """By a process that asks for pins: parts may be gone before the claim, never after it.

    Seen to fail with the draft made before the claim, and with `is_publishing` left out of `Pins`.
    """

    def run(at: int) -> int:
        memory = Memory()
        process = memory.started()
        other = memory.process()

        def compact_and_collect() -> None:
            for name in SHARDS:
                other.shard(name).compact(other.writer)
            collect_shards(other)

        watched = Watched(memory, at, compact_and_collect)
        watched.run(lambda victim: victim.checkpoints.publish(process.upper, victim.draft, victim.writer))
        sound(process)
        return watched.count

    each_step(run, least=12)


def test_c9_threads_publish_restore_and_collect_at_once() -> None:
    memory = Memory()
    memory.started().publish()
    rounds = 12

    def work(number: int) -> None:
        process = memory.process()
        if number < 2:
            for _ in range(rounds):
                process.merge()
                process.publish()
        elif number == 2:
            for _ in range(rounds):
                process.collect()
                collect_shards(process)
        else:
            for _ in range(rounds):
                restore(process)
                process.checkpoints.release(process.writer)
                process.parts.clear()

    assert together(5, work) == [None] * 5
    sound(memory.process())
    clean(memory)
