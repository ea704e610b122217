"""Two writers race every bind, in threads: each time is bound once, both make progress, and no row is lost or
doubled.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from evertide.errors import Conflict
from evertide.journal.records import Bound, Input, Staged
from evertide.runtime import SystemRuntime
from evertide.store import MemoryBlob, MemoryMeta, open_storage
from evertide.types import Generation
from tests.journal.kit import Host
from tests.shard.hosts import SETTINGS
from tests.store.race import together

ROUNDS = 1000


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def bind(host: Host, inputs: Mapping[str, Input]) -> Bound | None:
    """The bound transaction; None if the positions have moved on."""
    try:
        return host.journal.bind(inputs, Generation(1), host.writer)
    except Conflict:
        return None


def push_all(host: Host, mine: str, count: int) -> None:
    """Bind `count` fragments of this host's source; retry each until it is bound."""
    for number in range(count):
        staged = host.stage(number, source=mine)
        while True:
            bound = bind(host, host.inputs({mine: (1, [staged])}))
            if bound is not None and bound.writer == host.writer.id:
                break


def check(host: Host, times: int) -> None:
    found = host.journal.read_from(0)
    assert [bound.time for bound in found] == list(range(times)), "each time is bound once"
    fragments = Counter(f.key for b in found for i in b.inputs.values() for f in i.fragments if isinstance(f, Staged))
    assert set(fragments.values()) == {1}, "each fragment is bound once"
    assert set(fragments) == host.staged_blobs()
    for source in ("push0", "push1"):
        steps = [bound.inputs[source] for bound in found]
        assert all(before.after == after.before for before, after in pairwise(steps))


def test_two_writers_race_every_bind() -> None:
    """In lockstep: both offer input for the same time in every round; one wins, and the other offers again.

    Fails if `bind` takes a stale commit for success, and if `check_inputs` ignores positions.
    """
    blob, meta, runtime = MemoryBlob(), MemoryMeta(), SystemRuntime()
    hosts = [Host(blob, meta, runtime) for _ in range(2)]
    hosts[0].bind({"push0": (0, []), "push1": (0, [])})
    step = threading.Barrier(2, timeout=60.0)
    won: list[list[int]] = [[], []]

    def work(number: int) -> None:
        host, mine = hosts[number], f"push{number}"
        staged = host.stage(0, source=mine)
        for time in range(1, ROUNDS + 1):
            inputs = host.inputs({mine: (1, [staged])})
            step.wait()
            bound = bind(host, inputs)
            if bound is not None and bound.writer == host.writer.id:
                won[number].append(bound.time)
                staged = host.stage(time, source=mine)
            step.wait()
        host.journal.drop([staged], host.writer)

    assert together(2, work) == [None, None]
    assert sorted(won[0] + won[1]) == list(range(1, ROUNDS + 1)), "each time has one winner"
    assert min(len(won[0]), len(won[1])) > 0, "both make progress"
    check(hosts[0], ROUNDS + 1)
    hosts[1].writer.beat()
    assert hosts[0].journal.drop_unbound(hosts[0].writer) == []


def test_two_writers_race_and_a_third_collects(tmp_path: Path) -> None:
    """On SQLite and files, with truncation and dropping at the same time: no record names a deleted blob."""
    storage = open_storage(tmp_path / "s", runtime=SystemRuntime(), settings=SETTINGS)
    hosts = [Host(storage.blob, storage.meta, SystemRuntime()) for _ in range(3)]
    hosts[0].bind({"push0": (0, []), "push1": (0, [])})
    shard = hosts[2].create()
    times = 60

    def work(number: int) -> None:
        host = hosts[number]
        if number < 2:
            push_all(host, f"push{number}", times // 2)
            return
        while host.journal.committed_upper <= times:
            host.writer.beat()
            host.journal.drop_unbound(host.writer)
            if host.journal.committed_upper < host.journal.upper:
                time = host.commit(shard)
                for fragments in host.journal.read(time).inputs.values():
                    for fragment in fragments.fragments:
                        assert isinstance(fragment, Staged)
                        host.journal.load(fragment, time=time)
                host.journal.truncate(time, host.writer)

    assert together(3, work) == [None] * 3
    assert hosts[0].journal.upper == times + 1
    for host in hosts[:2]:
        host.writer.beat()
    hosts[2].journal.drop_unbound(hosts[2].writer)
    assert len(hosts[2].staged_blobs()) == len(hosts[2].journal.describe()) <= 2
    storage.close()
