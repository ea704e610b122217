"""A golden file: today's code reads a sink record of version 1, and writes the same bytes for the same values.

`EVERTIDE_GOLDEN=write` rewrites it; do that only for a new version beside the old, never for an old one.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from evertide.pipeline.sinks.sink_record import SinkRecord
from evertide.store.meta import seal, unseal

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


def test_a_sink_record_equals_the_golden_file() -> None:
    if os.environ.get("EVERTIDE_GOLDEN") == "write":
        GOLDEN.write_bytes(seal(RECORD))
    assert unseal(GOLDEN.read_bytes(), SinkRecord, "there") == RECORD
    assert seal(RECORD) == GOLDEN.read_bytes()


def test_the_record_of_a_cut_transaction_equals_the_golden_file() -> None:
    """A sink that never cut a transaction writes the same record as before that field existed."""
    record = msgspec.structs.replace(RECORD, cut=(2**40, 16))
    if os.environ.get("EVERTIDE_GOLDEN") == "write":
        CUT.write_bytes(seal(record))
    assert unseal(CUT.read_bytes(), SinkRecord, "there") == record
    assert seal(record) == CUT.read_bytes()


def test_a_sink_that_ended_owns_no_shards() -> None:
    assert RECORD.shards == {"orders.01234567", "orders.89abcdef"}
    assert SinkRecord("t", "c", "files", "s").shards == {"s"}
    assert SinkRecord("t", "c", "files", "s", is_declared=False).shards == set()
