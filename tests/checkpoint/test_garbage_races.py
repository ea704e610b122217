"""C9: concurrent garbage collections, during a publication, during a restore, and during a peer's work that no
checkpoint has yet.

Deterministic: the other work runs before one Blob or Meta operation, with one run per operation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from evertide.checkpoint.publication import Draft
from evertide.errors import BlobMissing, Fenced
from tests.checkpoint.kit import SHARDS, TTL_S, Memory, Process, Watched, each_step
from tests.checkpoint.test_garbage import check_complete, check_no_garbage, collect_shards
from tests.shard.hosts import HookedBlob, HookedMeta
from tests.store.race import together


@dataclass
class Scene:
    """Checkpoints 1 and 2 of a first process, which lives, and another process that collects."""

    memory: Memory
    first: Process
    other: Process

    def collect_garbage(self) -> None:
        """All kinds of garbage collection. Compaction leaves blobs to collect."""
        for name in SHARDS:
            self.other.shard(name).compact(self.other.writer)
        collect_shards(self.other)
        self.other.collect_garbage()

    def publish_and_collect(self) -> None:
        """All previously catalogued checkpoints are dropped."""
        for _ in range(2):
            self.other.merge()
            self.other.publish()
        self.collect_garbage()

    def end_all_and_collect(self) -> None:
        """The other processes are stopped for longer than a writer may be silent."""
        self.memory.runtime.advance_s(TTL_S + 1)
        self.other.writer.beat()
        self.collect_garbage()


def scene() -> Scene:
    memory = Memory()
    first = memory.start_process()
    first.publish()
    first.step()
    first.merge()
    first.publish()
    other = memory.process()
    other.merge()
    return Scene(memory, first, other)


def use(process: Process) -> None:
    """Read as an engine does. A missing part is allowed only if the process was ended."""
    for part in process.parts:
        try:
            process.blob.get(part.key)
        except BlobMissing:
            process.writer.check_registered()
            raise


def publish(process: Process) -> None:
    """The parts that the engine wrote meanwhile are no longer used: only the draft has them."""
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


def collect_garbage(process: Process) -> None:
    process.shard("orders").collect_garbage(process.writer, process.checkpoints.find_pins)
    process.collect_garbage()


def work_without_checkpoint(process: Process) -> None:
    process.step()
    process.merge()
    use(process)


def publish_and_end(process: Process) -> None:
    """The process publishes everything that it wrote, and then ends."""
    process.publish()
    process.writer.unregister()


def publish_and_compact(process: Process) -> None:
    """The shard no longer has the parts that the checkpoint names."""
    process.step()
    process.publish()
    assert process.shard("orders").compact(process.writer)


WORK = [publish, restore, restore_and_publish, collect_garbage, work_without_checkpoint]
MEANWHILE = [Scene.collect_garbage, Scene.publish_and_collect, Scene.end_all_and_collect]


@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda act: str(act.__name__))
@pytest.mark.parametrize("work", WORK, ids=lambda work: str(work.__name__))
def test_c9_garbage_collection_between_any_two_steps_loses_nothing(
    work: Callable[[Process], None], meanwhile: Callable[[Scene], None]
) -> None:
    """One run per operation. A victim whose writer was ended is fenced; all others complete undisturbed.

    Fails without the claims (files of a publication in progress are deleted), without the holds (of a restore), and if
    parts of registered writers are judged by the catalog alone.
    """

    def run(at: int) -> int:
        found = scene()
        watched = Watched(found.memory, at, lambda: meanwhile(found))
        try:
            watched.run(work)
        except Fenced:
            if meanwhile is not Scene.end_all_and_collect:
                raise
            watched.count += 1  # an undisturbed process would have continued
        check_complete(found.other)
        check_no_garbage(found.memory)
        return watched.count

    each_step(run, least=5)


@pytest.mark.parametrize(
    "work", [publish, restore_and_publish, work_without_checkpoint], ids=lambda work: work.__name__
)
def test_c9_other_work_between_any_two_steps_of_garbage_collection_loses_nothing(
    work: Callable[[Process], None],
) -> None:
    """The reverse: a whole publication happens during a garbage collection.

    Fails if pins are read before the state of a shard, if blobs are listed after the catalog is read, and if the
    writers are read after it.
    """

    def run(at: int) -> int:
        found = scene()
        for name in SHARDS:
            found.other.shard(name).compact(found.other.writer)
        late = found.memory.process()
        late.merge()
        watched = Watched(found.memory, at, lambda: work(late))
        watched.run(collect_garbage)
        check_complete(found.other)
        use(late)
        check_no_garbage(found.memory)
        return watched.count

    each_step(run, least=20)


def test_c9_a_draft_is_published_between_any_two_steps_of_garbage_collection() -> None:
    """Two threads of one process: one is about to commit, the other collects, and the engine has moved on.

    Fails if the drafts are read after the catalog.
    """

    def run(at: int) -> int:
        memory = Memory()
        memory.start_process()
        pair = Pair(memory, at)
        pair.process.merge()
        pair.publish()
        pair.process.merge()  # the parts of the draft are not live
        pair.process.collect_garbage()
        pair.end()
        assert len(pair.process.checkpoints.entries()) == 1
        check_complete(memory.process())
        return pair.count

    each_step(run, least=8)


class Pair:
    """A process whose publishing thread stops before it commits, until the other thread reaches a numbered
    operation.
    """

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
        """Publish up to the commit."""
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
    """By a process that reads the pins: parts may be deleted before the claim, never after it.

    Fails if the draft is made before the claim, and if `Pins` ignores `is_publishing`.
    """

    def run(at: int) -> int:
        memory = Memory()
        process = memory.start_process()
        other = memory.process()

        def compact_and_collect() -> None:
            for name in SHARDS:
                other.shard(name).compact(other.writer)
            collect_shards(other)

        watched = Watched(memory, at, compact_and_collect)
        watched.run(lambda victim: victim.checkpoints.publish(process.upper, victim.draft, victim.writer))
        check_complete(process)
        return watched.count

    each_step(run, least=12)


def test_c9_threads_publish_restore_and_collect_at_once() -> None:
    memory = Memory()
    memory.start_process().publish()
    rounds = 12

    def work(number: int) -> None:
        process = memory.process()
        if number < 2:
            for _ in range(rounds):
                process.merge()
                process.publish()
        elif number == 2:
            for _ in range(rounds):
                process.collect_garbage()
                collect_shards(process)
        else:
            for _ in range(rounds):
                restore(process)
                process.checkpoints.release(process.writer)
                process.parts.clear()

    assert together(5, work) == [None] * 5
    check_complete(memory.process())
    check_no_garbage(memory)
