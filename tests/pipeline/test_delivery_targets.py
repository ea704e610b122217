"""Targets that contradict the record of a sink, and sinks that are refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertide.errors import InvalidInput, SinkFailed
from evertide.pipeline.records.ownership import ProcessRole
from evertide.store.paths import PIPELINE
from tests.kit.delivering import deliver_once
from tests.pipeline.kit import VIEWS, crash, storage
from tests.pipeline.replica_kit import QUICK, shared
from tests.pipeline.sink_kit import (
    Bucket,
    delivery_threads_of,
    into,
    is_right,
    order,
    push_orders,
    shop,
    sink,
    with_sink,
)


def test_a_target_that_lost_transactions_is_reported() -> None:
    """Continuing would leave a gap that no error reports."""
    kept, bucket = storage(), Bucket()
    with into(lake=bucket), shop(kept) as p:
        push_orders(p, [order(1)])
        deliver_once(p)
        bucket.got.clear()
    with into(lake=bucket), shop(kept) as p:
        push_orders(p, [order(2)])
        deliver_once(p)
        [status] = p.status().sinks
        assert status.problem is not None
        assert "no longer has transaction 1" in status.problem.why
        assert bucket.got == []


def test_a_target_without_a_stored_number_continues_from_the_record_of_the_sink() -> None:
    """Records of a topic expired, or files of a directory were removed: the sink's own record counts."""
    kept, bucket = storage(), Bucket(keeps_number=False)
    with into(lake=bucket), shop(kept) as p:
        push_orders(p, [order(1)])
        deliver_once(p)
        bucket.got.clear()
    with into(lake=bucket), shop(kept) as p:
        push_orders(p, [order(2)])
        deliver_once(p)
        assert bucket.numbers == [2]


def test_a_target_ahead_of_the_pipeline_is_reported() -> None:
    """A storage that was restored from a backup has other transactions under the same numbers."""
    bucket = Bucket()
    with into(lake=bucket), shop(storage()) as p:
        push_orders(p, [order(1)])
        deliver_once(p)
        delivery_threads_of(p)._sink_threads["lake"].delivery._close()
        bucket.got.append((7, bucket.got[0][1]))
        push_orders(p, [order(2)])
        deliver_once(p)
        [status] = p.status().sinks
        assert status.problem is not None
        assert "has transaction 7, and the pipeline is at 2" in status.problem.why


def test_a_sink_of_another_collection_needs_another_name() -> None:
    kept = storage()
    with into(lake=Bucket()), shop(kept) as p:
        deliver_once(p)
    with (
        into(lake=Bucket()),
        pytest.raises(InvalidInput, match=r"line 3, sink 'lake'.*the sink of this name writes 'revenue'"),
    ):
        shop(kept, VIEWS["revenue"], with_sink(VIEWS["counts"]))


def test_an_impossible_sink_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """A wrong option, and a place that another sink uses: no pipeline exists afterwards."""
    kept = storage()
    with pytest.raises(InvalidInput, match="has no option 'paht'"):
        shop(kept, with_sink(VIEWS["revenue"], sink(path="x", paht="x")), base=tmp_path)
    with pytest.raises(SinkFailed, match="does not exist"):
        shop(kept, with_sink(VIEWS["revenue"], sink(path="gone/x")), base=tmp_path)
    assert kept.meta.head(PIPELINE) is None


def test_a_replica_takes_the_lead_while_the_target_of_a_sink_that_has_not_begun_does_not_answer() -> None:
    """The target was checked when the replica was opened. If it were checked again, the replica would end, too."""
    kept, bucket = shared(), Bucket(is_failing=True)
    view = with_sink(VIEWS["revenue"])
    with into(lake=bucket):
        first = shop(kept, view, settings=QUICK, role=ProcessRole.REPLICA)
        second = shop(kept, view, settings=QUICK, role=ProcessRole.REPLICA)
        try:
            push_orders(first, [order(1)])
            bucket.is_probe_failing = True
            crash(first)
            second.advance()
            assert second.leads
            bucket.is_failing = bucket.is_probe_failing = False
            push_orders(second, [order(2, "bob")])
            deliver_once(second)
            assert is_right(second, bucket)
        finally:
            second.close()
