"""Maintenance during transactions: a lookup always finds exactly the applied rows."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from evertide.flow.state import arrangement
from evertide.flow.state.arrangement import Arrangement, ArrangementManifest
from evertide.flow.state.block import make_table
from evertide.flow.state.merge import merge
from evertide.flow.state.spine import ArrangementSettings, Runs, Spine
from tests.flow.arranging import SCHEMA, Content, World, content, delta, keys
from tests.kit.compacting import compact
from tests.kit.runtime import RandomStream
from tests.store.race import together

LIMITS = ArrangementSettings(
    memory_rows_max=40, inline_rows_max=16, row_group_rows=8, part_rows_max=64, merge_fan_in=2, memory_bytes_max=1 << 30
)
TRANSACTIONS = 250


def test_maintain_compact_and_save_during_apply_and_lookup() -> None:
    """Fails without `_held`, as `apply` then merges runs that are being written, and without the lock of `compact` on
    parts.
    """
    world = World(cache_bytes=20_000)
    subject = world.arrangement(settings=LIMITS)
    done = threading.Event()
    manifests: list[tuple[int, ArrangementManifest, int]] = []
    applied: list[Content] = [Counter()]

    def transactions() -> None:
        chance = RandomStream(11)
        model: Content = Counter()
        for _ in range(TRANSACTIONS):
            rows = [(chance.below(60), f"n{chance.below(3)}", 0.0) for _ in range(1 + chance.below(8))]
            gone = [row for row in list(model)[:: 1 + chance.below(5)] if chance.below(2)]
            subject.apply(delta([*rows, *gone], [1] * len(rows) + [-1] * len(gone)))
            model.update(rows)
            model.subtract(gone)
            model = Counter({row: count for row, count in model.items() if count})
            applied.append(by_id_and_name(model))
            asked = [chance.below(60) for _ in range(5)]
            assert content(subject.lookup(keys(*asked)), ["id", "name"]) == only(applied[-1], asked)

    def work(number: int) -> None:
        if number == 0:
            try:
                transactions()
            finally:
                done.set()
            return
        while not done.is_set():
            if number == 1:
                subject.maintain()
            elif number == 2:
                compact(subject)
            else:
                before = len(applied) - 1
                manifests.append((before, subject.save(), len(applied)))

    assert together(4, work) == [None] * 4
    assert content(subject.scan(), ["id", "name"]) == applied[-1]
    for before, manifest, after in manifests[:: max(1, len(manifests) // 10)]:
        found = content(world.restore(manifest).scan(), ["id", "name"])
        assert any(found == model for model in applied[before : after + 1]), (
            "a lookup sees a delta as a whole, or not at all"
        )
    check_released(world, subject)


def test_every_list_of_runs_that_a_lookup_could_see_is_the_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the one assignment in `_swap` becomes two: between them rows occur twice."""
    seen: list[Runs] = []

    class Watched(Spine):
        @property
        def runs(self) -> Runs:
            return seen[-1]

        @runs.setter
        def runs(self, runs: Runs) -> None:
            seen.append(runs)

    monkeypatch.setattr(arrangement, "Spine", Watched)
    world = World()
    subject = world.arrangement()
    model: Content = Counter()
    steps: list[Callable[[], object]] = [
        subject.maintain,
        subject.save,
        subject.maintain,
        subject.maintain,
        partial(compact, subject),
    ]
    for number in range(40):
        before = by_id_and_name(model)
        looked = len(seen)
        if number % 2:
            steps[number // 2 % len(steps)]()
        else:
            rows = [(i, f"n{number % 3}", 0.0) for i in range(number % 7)]
            subject.apply(delta(rows))
            model.update(rows)
        for runs in seen[looked:]:
            blocks = merge(runs.list_all(), subject._cached_parts, "")
            found = content(make_table(list(blocks), SCHEMA), ["id", "name"])
            assert found in (before, by_id_and_name(model))
    assert len(seen) > 20


def by_id_and_name(model: Content) -> Content:
    found: Content = Counter()
    for row, count in model.items():
        found[row[:2]] += count
    return found


def only(model: Content, ids: list[int]) -> Content:
    return Counter({row: count for row, count in model.items() if row[0] in ids})


def check_released(world: World, subject: Arrangement) -> None:
    """Each part of the blob is in use or was released once, and never both."""
    used = {part.key for part in subject.parts()}
    assert len(set(subject.released)) == len(subject.released)
    assert not used & set(subject.released)
    assert {entry.key for entry in world.blob.list("")} == used | set(subject.released)
