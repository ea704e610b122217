"""A damaged older record of the journal: the pipeline opens and makes checkpoints, and status names the damage."""

from __future__ import annotations

import pytest

from evertide.store.memory import MemoryMeta
from evertide.store.open import Storage
from evertide.store.paths import COMMITTED, JOURNAL
from tests.pipeline.kit import crash, open_pipeline, rows_of
from tests.pipeline.test_damage import ROLLED_UP, make_storage, open_filled, run_fsck, run_repair
from tests.pipeline.test_damaged_checkpoint import order


def flip_first_record(kept: Storage, key: str) -> int:
    """Flip a byte in the middle of the oldest record of a key, and return its number."""
    assert isinstance(kept.meta, MemoryMeta)
    record = kept.meta._log[key][0]
    at = len(record.data) // 2
    data = record.data[:at] + bytes([record.data[at] ^ 1]) + record.data[at + 1 :]
    kept.meta._log[key][0] = type(record)(record.seqno, data)
    return record.seqno


@pytest.mark.parametrize("key", [JOURNAL, COMMITTED])
def test_a_damaged_older_record_is_reported_and_checkpoints_continue(key: str) -> None:
    """Seen to fail: the checkpoint was published, and status said that none could be made."""
    kept = make_storage()
    first = open_filled(kept)
    first.checkpoint()
    crash(first)
    number = flip_first_record(kept, key)
    pipeline = open_pipeline(kept, settings=ROLLED_UP)
    for each in range(6, 10):
        pipeline.push("orders", [order(each)])
        pipeline.commit()
        assert pipeline.checkpoint().time == pipeline.time + 1
    status = pipeline.status()
    assert status.state == "running"
    whys = [problem.why for problem in status.problems]
    assert any(f"{key} #{number}" in why for why in whys), whys
    assert not any("could not make a checkpoint" in why for why in whys)
    assert all("fsck --repair" in problem.remedy for problem in status.problems)
    crash(pipeline)
    assert run_repair(kept).report.problems == ()
    again = open_pipeline(kept, settings=ROLLED_UP)
    assert rows_of(again, "revenue") == [("a", 100)]
    again.push("orders", [order(10)])
    again.commit()
    again.checkpoint()
    assert again.status().problems == ()
    again.close()
    assert run_fsck(kept).problems == ()
