"""I9: the process is killed at every point of delivery, and each target ends with each transaction once.

Points are before and after every write to a target, every record of a sink, and every change to a hold or a shard.
After the kill a new process opens the same storage and the same target, and continues. A target in memory is tested
with all points of a long history, in which the view also changes; real files and Delta tables with those of a short
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from evertide.pipeline.pipeline import Pipeline
from evertide.store.open import Storage
from tests.kit.delivering import deliver_once
from tests.kit.small_engine import SmallView
from tests.pipeline.kit import SETTINGS, VIEWS, Row, rows_of, storage
from tests.pipeline.sink_kit import (
    Bucket,
    Killed,
    Points,
    die,
    into,
    is_right,
    order,
    push_orders,
    shop,
    sink,
    with_sink,
)

OURS = (
    "evertide.pipeline.sinks.sink_record.SinkRecords.write",
    "evertide.shard.shard.Shard.hold",
    "evertide.shard.shard.Shard.release",
    "evertide.shard.shard.Shard.finalize",
)
WRITES = {"files": "evertide.sinks.files.FilesSink.write", "delta": "evertide.sinks.delta.DeltaSink.write"}
SMALL = replace(SETTINGS, compaction_fan_in=2)

Step = tuple[list[Row], list[Row]]
NOTHING: Step = ([], [])
LONG: list[Step] = [
    ([order(1), order(2, "bob", 20), order(3, None, None)], []),
    NOTHING,
    ([order(1, "ann", 5)], [{"id": 2}]),
    ([order(4, "bob", 20)], []),
]


def doubled(view: SmallView) -> SmallView:
    """Return a view with the same columns and other content."""
    return replace(
        view,
        function=lambda tables: [{**one, "amount": one["amount"] * 2} for one in view.function(tables)],
        version=2,
    )


class Life:
    """A pipeline that is reopened after each kill."""

    def __init__(self, kept: Storage, view: SmallView, base: Path = Path()) -> None:
        self.kept, self.view, self.base = kept, view, base
        self.p = self.opened()
        self.deaths = 0

    def opened(self) -> Pipeline:
        return shop(self.kept, self.view, settings=SMALL, base=self.base)

    def survives(self, act: Callable[[Pipeline], object]) -> None:
        try:
            act(self.p)
        except Killed:
            self.deaths += 1
            die(self.p)
            self.p = self.opened()
            act(self.p)

    def changed(self, view: SmallView) -> None:
        self.p.close()
        self.view = view
        self.p = self.opened()

    def step(self, step: Step) -> None:
        push_orders(self.p, *step)
        self.survives(deliver_once)


def history(points: Points, bucket: Bucket) -> int:
    """Run the history with a kill at each chosen point; return the number of kills."""
    view = with_sink(VIEWS["revenue"])
    bucket.before = bucket.after = points.tick
    life = Life(storage(), view)
    with points.around(*OURS):
        for at, step in enumerate(LONG):
            life.step(step)
            assert is_right(life.p, bucket), at
        points.chosen, chosen = -1, points.chosen
        life.changed(doubled(view))
        points.chosen = chosen
        for step in (NOTHING, LONG[0], LONG[2]):
            life.step(step)
            assert is_right(life.p, bucket)
            for shard in life.p._runner.members.open_all().values():
                shard.compact(life.p._writer)
        life.survives(Pipeline.checkpoint)
        life.step(LONG[0])
    assert bucket.numbers == sorted(set(bucket.numbers))
    assert bucket.skipped == []
    ended = [shard for shard in life.p._runner.members.shards.names() if shard.startswith("revenue")]
    finalized = [life.p._runner.members.shard(shard).log.read().state.finalized for shard in ended]
    assert sorted(finalized) == [False, True]
    life.p.close()
    return life.deaths


def test_i9_a_process_killed_at_any_point_delivers_each_transaction_once() -> None:
    """Without `last`, a write before the record would be repeated; without the record of the move, the new process
    would not know which content a number stands for."""
    points = Points()
    with into(lake=(bucket := Bucket())):
        assert history(points, bucket) == 0
    undisturbed, last = bucket.got, points.passed
    assert last > 50
    for chosen in range(1, last + 1):
        with into(lake=(bucket := Bucket())):
            deaths = history(Points(chosen), bucket)
        assert bucket.got == undisturbed, chosen
        assert deaths <= 1
    assert undisturbed[-1][0] == 8


def content(base: Path, connector: str) -> list[tuple[object, ...]]:
    if connector == "delta":
        rows = DeltaTable(base / "target").to_pyarrow_table().to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=repr)
    total: Counter[tuple[object, ...]] = Counter()
    for row in pq.read_table(base / "target").to_pylist():
        diff, _ = row.pop("__diff"), row.pop("__time")
        total[tuple(row.values())] += diff
    return sorted(total.elements(), key=repr)


def real(points: Points, base: Path, connector: str) -> int:
    view = with_sink(VIEWS["revenue"], sink("lake", connector, path="target"))
    base.mkdir()
    life = Life(storage(), view, base)
    with points.around(*OURS[:1], WRITES[connector]):
        for step in LONG:
            life.step(step)
            assert content(base, connector) == rows_of(life.p, "revenue")
    [status] = life.p.status().sinks
    assert (status.state, status.behind) == ("running", 0)
    life.p.close()
    return life.deaths


@pytest.mark.parametrize("connector", sorted(WRITES))
def test_i9_real_targets_hold_the_view_after_a_kill_at_any_point(tmp_path: Path, connector: str) -> None:
    """In particular between the write to the target and the sink's record of it: a second write would double rows."""
    points = Points()
    assert real(points, tmp_path / "0", connector) == 0
    assert points.passed >= 12
    for chosen in range(1, points.passed + 1):
        assert real(Points(chosen), tmp_path / str(chosen), connector) == 1
