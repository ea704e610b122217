"""Versions of a script: a second version is refused, or follows as a read-only replica and is promoted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from evertide.errors import (
    Conflict,
    Fenced,
    NotAllowedNow,
)
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.replicas.leadership import promote
from evertide.runtime import SystemRuntime
from evertide.store.open import Storage
from tests.kit.delivering import deliver_once
from tests.pipeline.kit import VIEWS, Row, crash, engine, open_pipeline, rows_of
from tests.pipeline.replica_kit import QUICK, caught_up, order, replica, shared
from tests.pipeline.sink_kit import Bucket, into, is_right, shop, with_sink


def test_another_script_is_refused_while_one_runs() -> None:
    kept = shared()
    first = replica(kept, engine("revenue"))
    with pytest.raises(Conflict, match="another version of the script"):
        replica(kept, engine("revenue", "share"))
    with pytest.raises(Conflict, match="runs the pipeline"):
        open_pipeline(kept, engine("revenue"))
    first.push("orders", [order(1)])
    assert first.commit() == 1
    first.close()


def test_a_read_only_replica_follows_and_is_promoted() -> None:
    kept = shared()
    first = replica(kept)
    second = replica(kept, role=ProcessRole.READ_ONLY)
    first.push("orders", [order(1)])
    first.commit()
    caught_up(first, second)
    assert rows_of(second, "counts") == [(1, 0)]
    second.push("orders", [order(9)])
    with pytest.raises(NotAllowedNow, match="read-only"):
        second.commit()
    second.abort()
    promote(kept.meta, "", runtime=SystemRuntime(), settings=QUICK)
    first.push("orders", [order(2)])
    with pytest.raises(Fenced):
        first.commit()
    second.push("orders", [order(3)])
    second.advance()
    assert second._leader_tasks.is_active
    second.commit()
    assert rows_of(second, "counts") == [(2, 0)]
    with pytest.raises(Conflict, match="runs the pipeline"):
        open_pipeline(kept)
    first.close()
    second.close()
    with pytest.raises(NotAllowedNow, match="no read-only replica runs"):
        promote(kept.meta, "", runtime=SystemRuntime(), settings=QUICK)


def test_a_read_only_replica_does_not_take_over_by_itself() -> None:
    kept = shared()
    first, second = replica(kept), replica(kept, role=ProcessRole.READ_ONLY)
    crash(first)
    second.advance()
    assert not second._leader_tasks.is_active
    third = replica(kept)
    third.push("orders", [order(1)])
    third.commit()
    caught_up(second, third)
    assert rows_of(second, "counts") == [(1, 0)]
    second.close()
    third.close()


def test_the_next_version_takes_over_while_other_processes_read() -> None:
    """Upgrade in place: the new version follows read-only with its own script, and adds its new views when it is
    promoted."""
    kept = shared()
    first = replica(kept, engine("revenue", "counts"))
    for number in range(4):
        first.push("orders", [order(number)])
        first.commit()
    made = engine("revenue", "share")
    doubled = made.small_views[0].function

    def twice(tables: Mapping[str, list[Row]]) -> list[Any]:
        return [{**row, "amount": row["amount"] * 2} for row in doubled(tables)]

    made.small_views = [replace(made.small_views[0], function=twice, version=2), made.small_views[1]]
    second = replica(kept, made, role=ProcessRole.READ_ONLY)
    first.push("orders", [order(4)])
    first.commit()
    caught_up(first, second)
    assert second.time == first.time
    assert rows_of(second, "revenue") == rows_of(first, "revenue") == [("c0", 30), ("c1", 20)]
    promote(kept.meta, "", runtime=SystemRuntime(), settings=QUICK)
    first.push("orders", [order(5)])
    with pytest.raises(Fenced):
        first.commit()
    second.advance()
    assert second.leads
    assert rows_of(second, "revenue") == [("c0", 60), ("c1", 40)]
    assert rows_of(second, "share") == [(number, 10) for number in range(5)]
    assert set(second.definition.views) == {"revenue", "share"}
    second.push("orders", [order(5, 1)])
    second.commit()
    assert rows_of(second, "revenue") == [("c0", 60), ("c1", 42)]
    first.close()
    second.close()


def test_a_replica_of_the_old_version_that_follows_is_fenced_by_the_new_one() -> None:
    kept = shared()
    first, other = replica(kept, engine("revenue")), replica(kept, engine("revenue"))
    crash(first)
    with open_pipeline_of_next_version(kept, other) as second:
        second.push("orders", [order(1)])
        second.commit()
        other.push("orders", [order(2)])
        with pytest.raises(Fenced, match=r"unregistered|another version"):
            other.commit()
        second.push("orders", [order(3)])
        second.commit()
        assert rows_of(second, "counts") == [(2, 0)]
    other.close()


@contextmanager
def open_pipeline_of_next_version(kept: Storage, other: Pipeline) -> Iterator[Pipeline]:
    second = replica(kept, engine("revenue", "counts"), role=ProcessRole.READ_ONLY)
    promote(kept.meta, "", runtime=SystemRuntime(), settings=QUICK)
    second.advance()
    assert other._writer.id != second._writer.id
    try:
        yield second
    finally:
        second.close()


def test_u3_a_cold_replica_catches_up_and_is_promoted_and_the_first_is_killed() -> None:
    """The replica starts empty and read-only while the first continues: no stall, no row lost or doubled."""
    bucket, kept = Bucket(), shared()
    views = (with_sink(VIEWS["revenue"]), VIEWS["counts"])

    def opened(role: ProcessRole) -> Pipeline:
        return shop(kept, *views, settings=QUICK, role=role)

    def push(p: Pipeline, number: int) -> None:
        with p.transaction("till", number) as pushed:
            pushed.push("orders", [order(number)])
            pushed.push("notes", [{"text": f"n{number}"}])
        p.take(pushed)

    with into(lake=bucket):
        first = opened(ProcessRole.REPLICA)
        for number in range(30):
            push(first, number)
            if number in (10, 20):
                first.checkpoint()
        deliver_once(first)
        second = opened(ProcessRole.READ_ONLY)
        for number in range(30, 40):
            push(first, number)
            second.advance()
            if number == 35:
                first.checkpoint()
        deliver_once(first)
        caught_up(second)
        assert second.time == first.time
        push(first, 40)  # which the second replica has not seen
        promote(kept.meta, second._writer.id, runtime=SystemRuntime(), settings=QUICK)
        crash(first)
        second.advance()
        assert second.leads
        push(second, 40)  # the answer was lost with the process
        push(second, 41)
        deliver_once(second)
        assert rows_of(second, "counts") == [(42, 42)]
        assert sorted(rows_of(second, "notes")) == sorted((f"n{number}",) for number in range(42))
        assert bucket.numbers == sorted(set(bucket.numbers))
        assert is_right(second, bucket)
        assert (second.status().state, second.status().problems) == ("running", ())
        second.close()
