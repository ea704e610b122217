"""A golden file: what version 1 wrote of a sink, today's code reads, and writes the same bytes for the same values.

`EVERTIDE_GOLDEN=write` makes it anew; that is right for a new version beside the old, never for an old one.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from evertide.pipeline.sinks.sink_record import SinkRecord
from evertide.store.sealed import seal, unseal

GOLDEN = Path(__file__).parent.parent / "golden" / "record-sink-v1.bin"
CUT = GOLDEN.with_name("record-sink-cut-v1.bin")
RECORD = SinkRecord(
    token="evertide-0123456789abcdef",
    collection="zß€",
    connector="delta",
    shard="orders.01234567",
    position=2**40,
    written=2**40 - 1,
    moving_to="orders.89abcdef",
    moving_at=2**40 + 1,
    change="fedcba9876543210",
)


def test_golden() -> None:
    if os.environ.get("EVERTIDE_GOLDEN") == "write":
        GOLDEN.write_bytes(seal(RECORD))
    assert unseal(GOLDEN.read_bytes(), SinkRecord, "there") == RECORD
    assert seal(RECORD) == GOLDEN.read_bytes()


def test_golden_of_a_transaction_that_was_cut() -> None:
    """The record of a sink that never cut one is as it was before there was such a field."""
    record = msgspec.structs.replace(RECORD, cut=(2**40, 16))
    if os.environ.get("EVERTIDE_GOLDEN") == "write":
        CUT.write_bytes(seal(record))
    assert unseal(CUT.read_bytes(), SinkRecord, "there") == record
    assert seal(record) == CUT.read_bytes()


def test_shards_of_a_sink_that_is_gone_are_nobodys() -> None:
    assert RECORD.shards == {"orders.01234567", "orders.89abcdef"}
    assert SinkRecord("t", "c", "files", "s").shards == {"s"}
    assert SinkRecord("t", "c", "files", "s", is_declared=False).shards == set()
