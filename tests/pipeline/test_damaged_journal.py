"""A damaged older record of the journal: the pipeline opens and makes checkpoints, and status names the damage."""

from __future__ import annotations

import pytest

from evertide.store.memory import MemoryMeta
from evertide.store.open import Storage
from evertide.store.paths import COMMITTED, JOURNAL
from tests.pipeline.kit import crash, open_pipeline, rows_of
from tests.pipeline.test_damage import ROLLED_UP, checked, filled, made_storage, mended
from tests.pipeline.test_damaged_checkpoint import order


def flip_first_record(kept: Storage, key: str) -> int:
    """A byte in the middle of the oldest record of a key: its number."""
    assert isinstance(kept.meta, MemoryMeta)
    record = kept.meta._log[key][0]
    at = len(record.data) // 2
    data = record.data[:at] + bytes([record.data[at] ^ 1]) + record.data[at + 1 :]
    kept.meta._log[key][0] = type(record)(record.seqno, data)
    return record.seqno


@pytest.mark.parametrize("key", [JOURNAL, COMMITTED])
def test_a_damaged_older_record_is_named_and_keeps_no_checkpoint_from_being_made(key: str) -> None:
    """Seen to fail: the checkpoint was published, and status said that none could be made."""
    kept = made_storage()
    first = filled(kept)
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
    assert not any("no checkpoint could be made" in why for why in whys)
    assert all("fsck --repair" in problem.remedy for problem in status.problems)
    crash(pipeline)
    assert mended(kept).report.problems == ()
    again = open_pipeline(kept, settings=ROLLED_UP)
    assert rows_of(again, "revenue") == [("a", 100)]
    again.push("orders", [order(10)])
    again.commit()
    again.checkpoint()
    assert again.status().problems == ()
    again.close()
    assert checked(kept).problems == ()
