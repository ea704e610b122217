"""A process that sent no heartbeat for a while, such as in a suspended machine, has lost the leases of its reads. It
reads again; it does not end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from evertide.errors import LeaseLost, Unavailable
from evertide.pipeline.pipeline import Pipeline
from evertide.shard.parts.part import Part
from evertide.shard.read import Snapshot
from tests.pipeline.kit import crash, engine, open_pipeline, rows_of
from tests.pipeline.replica_kit import QUICK, caught_up, order, pair, shared

BLOBS = replace(QUICK, inline_bytes_max=1)
"""Each part is a blob, which is read under a lease."""


@contextmanager
def losing_the_next_lease(shard: str) -> Iterator[list[str]]:
    """The next read of a part of a shard with this prefix finds neither the part nor its lease."""
    lost: list[str] = []
    fetch = Snapshot.fetch

    def lose(self: Snapshot, part: Part, *given: Any) -> Any:
        name = self._log.shard
        if not lost and name.startswith(shard):
            lost.append(name)
            raise LeaseLost(shard=name, lease="aa", restart_from=self.as_of)
        return fetch(self, part, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Snapshot, "fetch", lose)
        yield lost


def repeat(call: Callable[[], Any]) -> None:
    """Call as the loop of a pipeline does: again after an error that does not end the process."""
    try:
        call()
    except Unavailable:
        call()


def check(p: Pipeline) -> None:
    assert (p.status().state, rows_of(p, "revenue")) == ("running", [("c0", 20), ("c1", 20)])


def test_x23_a_follower_reads_again_after_it_lost_a_lease() -> None:
    with pair(shared(), settings=BLOBS) as (first, second):
        first.push("orders", [order(number) for number in range(4)])
        first.commit()
        with losing_the_next_lease("orders") as lost:
            repeat(second.advance)
        assert lost
        caught_up(first, second)
        check(second)


def test_x23_a_transaction_reads_its_table_again_after_it_lost_a_lease() -> None:
    """The deleted note is looked up in the shard, as the table has no key."""
    with open_pipeline(shared(), settings=BLOBS) as p:
        p.push("notes", [{"text": "a"}, {"text": "b"}])
        p.commit()
        p.push("notes", deletes=[{"text": "a"}])
        with losing_the_next_lease("notes") as lost:
            repeat(p.commit)
        assert lost
        assert rows_of(p, "notes") == [("b",)]
        assert p.status().state == "running"


@pytest.mark.parametrize("shard", ["orders", "revenue"])
def test_x23_a_pipeline_opens_although_a_lease_is_lost(shard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All state is computed from the tables, and compared with the content of the views."""
    kept = shared()
    p = open_pipeline(kept, settings=BLOBS)
    p.push("orders", [order(number) for number in range(4)])
    p.commit()
    crash(p)
    monkeypatch.setattr("evertide.pipeline.recovery.opening._restore_state", lambda *_: None)
    with losing_the_next_lease(shard) as lost, open_pipeline(kept, engine(), settings=BLOBS) as p:
        assert lost
        check(p)
