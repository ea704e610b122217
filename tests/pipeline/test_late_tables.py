"""X22: a table is declared, or declared again, and the process ends before a checkpoint contains it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.replicas.leader_tasks import LeaderTasks
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import NOTES, ORDERS, crash, engine, open_pipeline, rows_of
from tests.pipeline.replica_kit import shared
from tests.pipeline.test_backfill import check
from tests.pipeline.test_repeated_steps import EXTRA, order


def larger() -> SmallEngine:
    return engine(tables=(ORDERS, NOTES, EXTRA))


@pytest.fixture(params=["closed", "crashed"])
def ended(request: pytest.FixtureRequest) -> str:
    """How the process with the older script ends."""
    return str(request.param)


@pytest.fixture
def without_checkpoints() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patched:
        yield patched


def end(p: Pipeline, ended: str) -> None:
    p.push("orders", [order(9)])
    p.commit()
    if ended == "closed":
        p.close()
    else:
        crash(p)


def check_update(p: Pipeline) -> None:
    p.push("extra", [{"id": 7, "v": 8}])
    p.commit()
    assert rows_of(p, "extra") == [(7, 8)]
    check(p, "revenue", "counts")


def test_x22_a_new_table_is_right_after_a_restart(ended: str, without_checkpoints: pytest.MonkeyPatch) -> None:
    """Seen to fail: after a crash the pipeline did not open any more (`time_compacted`)."""
    kept = shared()
    p = open_pipeline(kept)
    p.push("orders", [order(1)])
    p.commit()
    p.checkpoint()
    end(p, ended)
    without_checkpoints.setattr(LeaderTasks, "try_checkpoint", lambda *_: None)
    p = open_pipeline(kept, larger())
    p.push("extra", [{"id": 7, "v": 7}])
    p.commit()
    crash(p)
    with open_pipeline(kept, larger()) as p:
        check_update(p)


def test_x22_a_table_declared_again_is_right_after_a_restart(
    ended: str, without_checkpoints: pytest.MonkeyPatch
) -> None:
    """Seen to fail: its rows by key were missing in the state, and an update left two rows under one key."""
    kept = shared()
    with open_pipeline(kept, larger()) as p:
        p.push("extra", [{"id": 7, "v": 7}])
        p.commit()
    p = open_pipeline(kept)
    for number in range(3):
        p.push("orders", [order(number)])
        p.commit()
        p.checkpoint()
    end(p, ended)
    without_checkpoints.setattr(LeaderTasks, "try_checkpoint", lambda *_: None)
    p = open_pipeline(kept, larger())
    p.push("orders", [order(4)])
    p.commit()
    crash(p)
    with open_pipeline(kept, larger()) as p:
        check_update(p)
