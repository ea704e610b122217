"""Golden files: today's code reads what version 1 wrote, and writes the same bytes for the same values.

`EVERTIDE_GOLDEN=write` rewrites them. Do that to add the files of a new version, never to change those of an old one.

record-*-v1.bin     one record of each kind in Meta
state-v1.bin        a roll-up
meta-storage-v1/    a small complete storage: FORMAT, meta.db, parts, a roll-up
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pytest
import xxhash

from evertide.errors import UnsupportedFormat
from evertide.rows.changes import make_changes_schema
from evertide.shard.hold import HoldRecord
from evertide.shard.lease import LeaseRecord
from evertide.shard.parts.part import Part, Range
from evertide.shard.shard import Shard, Shards
from evertide.shard.shard_log import Rollup
from evertide.shard.state import (
    Appended,
    Batch,
    Compacted,
    Created,
    Finalized,
    Forgotten,
    LogEntry,
    ShardState,
    SinceAdvanced,
)
from evertide.store import SqliteMeta, Storage, Write, open_storage
from evertide.store.meta import seal, unseal
from evertide.store.writers import GenerationRecord, HeartbeatRecord, Registration, Writer, read_generation
from evertide.types import Generation, SequenceNumber, Time
from tests.kit.runtime import ManualRuntime
from tests.shard.hosts import SETTINGS

GOLDEN = Path(__file__).parent.parent / "golden"
STORAGE = GOLDEN / "meta-storage-v1"
WRITE = os.environ.get("EVERTIDE_GOLDEN") == "write"

BLOB_PART = Part(
    rows=3,
    bytes=1234,
    checksum="00112233445566778899aabbccddeeff",
    digest="ffeeddccbbaa99887766554433221100",
    count=1,
    retractions=1,
    time_min=5,
    time_max=8,
    ranges={
        "i": Range(-(2**63), 2**63 - 1, 0),
        "u": Range(0, 2**64 - 1, 1),
        "s": Range("", "zß€😀", 0),
        "b": Range(b"\x00", b"\xff", 0),
        "f": Range(-0.0, None, 2),
        "t": Range(None, None, 3),
        "y": Range(low=False, high=True, nulls=0),
    },
    key="parts/orders/0123456789abcdef-00000001-p0.parquet",
    slice_index=1,
    slice_count=4,
)
INLINE_PART = Part(1, 3, "c", "0" * 32, 1, 0, 5, 5, {}, inline=b"\x00\xff\x80")
BATCH = Batch(Time(5), Time(9), (BLOB_PART, INLINE_PART), Time(7))

RECORDS: dict[str, msgspec.Struct] = {
    "entry-created": LogEntry("0123456789abcdef", "1", Created("orders", b"\x00schema\xff")),
    "entry-appended": LogEntry("0123456789abcdef", "2", Appended(Time(5), Time(9), (BLOB_PART, INLINE_PART)), 2),
    "entry-appended-nothing": LogEntry("0123456789abcdef", "3", Appended(Time(9), Time(10), ())),
    "entry-compacted": LogEntry("0123456789abcdef", "4", Compacted(BATCH, ("parts/orders/a.parquet", "b"))),
    "entry-since": LogEntry("0123456789abcdef", "5", SinceAdvanced(Time(7)), 4),
    "entry-forgotten": LogEntry("0123456789abcdef", "6", Forgotten(("fedcba9876543210",))),
    "entry-finalized": LogEntry("0123456789abcdef", "7", Finalized(("parts/orders/a.parquet",))),
    "rollup": Rollup(SequenceNumber(128), "rollups/orders/0123456789abcdef-00000009.state", 4321, "0" * 32),
    "hold": HoldRecord(Time(7), {"sink/orders": 7, "shape": 2**40}, "00000000000000aa"),
    "lease": LeaseRecord(
        "00000000000000bb", "orders", "console", "host", 4242, SequenceNumber(17), Time(8), 3, 1_700_000_000.25, 60.0
    ),
    "registration": Registration("0123456789abcdef", "loader", "host", 4242, 1_700_000_000.5, 60.0),
    "registration-origin": Registration(
        "0123456789abcdef", "loader", "host", 1, 1_700_000_000.5, 60.0, "boot-id", "pid:[1]", 77, "00000000000000cc"
    ),
    "beat": HeartbeatRecord("0123456789abcdef", 12, 1_700_000_010.5, 34),
    "generation": GenerationRecord(Generation(3), ("customers", "orders"), "0123456789abcdef"),
}
STATE = ShardState(
    "orders", b"\x00schema\xff", Time(7), Time(10), (BATCH,), {"0123456789abcdef": ("7", "9")}, finalized=False
)


def golden(name: str, made: bytes) -> bytes:
    path = GOLDEN / name
    if WRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(made)
    return path.read_bytes()


@pytest.mark.parametrize("name", RECORDS)
def test_records(name: str) -> None:
    value = RECORDS[name]
    stored = golden(f"record-{name}-v1.bin", seal(value))
    assert unseal(stored, type(value), "there") == value
    assert seal(value) == stored


def test_a_rolled_up_state() -> None:
    stored = golden("state-v1.bin", seal(STATE))
    assert unseal(stored, ShardState, "there") == STATE
    assert seal(STATE) == stored


def test_every_kind_of_diff_has_a_golden_file() -> None:
    covered = {type(value.diff) for value in RECORDS.values() if isinstance(value, LogEntry)}
    assert covered == {Created, Appended, Compacted, SinceAdvanced, Forgotten, Finalized}


# A whole storage

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
DELTAS: list[dict[tuple[int, str | None], int]] = [
    {(1, "one"): 1, (2, "two"): 2},
    {(2, "two"): -1, (3, None): 1},
    {(4, "vier"): 1},
    {(1, "one"): -1, (1, "eins"): 1},
]
SINCE = 1
UPPER = 5


def delta(time: int) -> pa.Table:
    rows = [(*row, time, diff) for row, diff in DELTAS[time].items()]
    columns = zip(*rows, strict=True)
    schema = make_changes_schema(SCHEMA)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def content(as_of: int) -> dict[tuple[int, str | None], int]:
    total: dict[tuple[int, str | None], int] = {}
    for changes in DELTAS[: as_of + 1]:
        for row, diff in changes.items():
            total[row] = total.get(row, 0) + diff
    return {row: diff for row, diff in total.items() if diff}


def read_rows(shard: Shard, as_of: int) -> dict[tuple[int, str | None], int]:
    with shard.snapshot(as_of, timeout_s=0.001) as snapshot:
        rows = snapshot.to_arrow().to_pylist()
    return {(row["id"], row["name"]): row["__diff"] for row in rows}


def make_storage(root: Path) -> None:
    """Blobs and an inline part, a compaction whose inputs still exist, a roll-up with later diffs, a lease.

    It contains no real host name.
    """
    with mock.patch("socket.gethostname", return_value="golden"):
        _make_storage(root)


def _make_storage(root: Path) -> None:
    runtime = ManualRuntime(seed=7)
    storage = open_storage(root, runtime=runtime, settings=SETTINGS)
    shards = Shards(storage.blob, storage.meta, runtime=runtime, settings=SETTINGS, reader="golden")
    inline = Shards(storage.blob, storage.meta, runtime=runtime, settings=replace(SETTINGS, inline_bytes_max=10**6))
    writer = Writer.register(storage.meta, runtime=runtime, settings=SETTINGS, label="golden")
    shard = shards.create("orders", SCHEMA, writer)
    for time in (0, 1):
        shard.compare_and_append(delta(time), time, time + 1, writer)
    shard.compact(writer)
    shard.hold("sink", SINCE)
    shard.advance_since(9, writer)
    shards.leases.take(shard.log, Time(SINCE))
    shard.log.roll_up(writer)
    inline.open("orders").compare_and_append(delta(2), 2, 3, writer)
    shard.compare_and_append(delta(3), 3, UPPER, writer)
    writer.change_generation(["orders"])
    ended = shards.create("ended", SCHEMA, writer)
    ended.finalize(writer)
    storage.close()


@pytest.fixture(scope="module", autouse=True)
def write_storage_if_asked() -> None:
    if WRITE:
        shutil.rmtree(STORAGE, ignore_errors=True)
        make_storage(STORAGE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORAGE, tmp_path / "storage"))


def open_golden_storage(root: Path, runtime: ManualRuntime) -> tuple[Storage, Shards]:
    storage = open_storage(root, runtime=runtime, settings=SETTINGS)
    return storage, Shards(storage.blob, storage.meta, runtime=runtime, settings=SETTINGS)


def tree(root: Path, besides: str = "nothing") -> dict[str, bytes]:
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.name.startswith(besides)]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_a_storage_of_version_1_is_read(root: Path) -> None:
    storage, shards = open_golden_storage(root, ManualRuntime())
    shard = shards.open("orders")
    state = shard.log.read().state
    assert (state.since, state.upper, shard.holds) == (SINCE, UPPER, {"sink": SINCE})
    assert shard.schema.equals(SCHEMA)
    assert sorted(bool(part.key) for part in state.parts) == [False, True, True]
    assert [read_rows(shard, time) for time in range(SINCE, UPPER)] == [content(t) for t in range(SINCE, UPPER)]
    generation = read_generation(storage.meta)
    assert generation is not None
    assert generation.members == ("orders",)
    assert shards.names() == ["ended", "orders"]
    assert shards.open("ended").log.read().state.finalized
    [lease] = shard.inspect().leases
    assert (lease.reader, lease.time) == ("golden", SINCE)
    storage.close()


def test_a_storage_of_version_1_is_read_and_written(root: Path) -> None:
    """A new process ends the old one and its lease, appends, compacts and garbage-collects."""
    runtime = ManualRuntime(seed=8)
    runtime.advance_s(3600.0)
    storage, shards = open_golden_storage(root, runtime)
    writer = Writer.register(storage.meta, runtime=runtime, settings=SETTINGS)
    shard = shards.open("orders")
    shard.compare_and_append(delta(3).slice(0, 0), UPPER, UPPER + 1, writer)
    shard.release("sink")
    assert shard.advance_since(UPPER, writer) == UPPER
    assert shard.compact(writer)
    collected = shard.collect_garbage(writer)
    assert len(collected.writers_ended) == 1
    assert len(collected.parts) == 5
    assert read_rows(shard, UPPER) == content(UPPER)
    storage.close()


def test_every_record_and_roll_up_in_it_is_encoded_to_the_same_bytes(root: Path) -> None:
    kinds: dict[str, type] = {
        "shard": LogEntry,
        "rollup": Rollup,
        "hold": HoldRecord,
        "lease": LeaseRecord,
        "writer": Registration,
        "beat": HeartbeatRecord,
        "generation": GenerationRecord,
    }
    seen = set()
    for key, _seqno, data in records(root):
        kind = key.split("/")[0]
        if kind != "storage":
            seen.add(kind)
            assert seal(unseal(data, kinds[kind], key)) == data
    assert seen == set(kinds)
    [rollup] = (root / "rollups").rglob("*.state")
    assert seal(unseal(rollup.read_bytes(), ShardState, str(rollup))) == rollup.read_bytes()


def records(root: Path) -> list[tuple[str, int, bytes]]:
    connection = sqlite3.connect(root / "meta.db")
    try:
        return connection.execute("SELECT key, seqno, data FROM log ORDER BY key, seqno").fetchall()
    finally:
        connection.close()


# A newer version is refused, by number, with nothing changed


def run_sql(root: Path, *statements: str) -> None:
    connection = sqlite3.connect(root / "meta.db", isolation_level=None)
    try:
        for statement in statements:
            connection.execute(statement)
    finally:
        connection.close()


def test_a_newer_format_is_refused(root: Path) -> None:
    (root / "FORMAT").write_bytes(b"2\n")
    before = tree(root)
    with pytest.raises(UnsupportedFormat) as refused:
        open_golden_storage(root, ManualRuntime())
    assert (refused.value.path, refused.value.found, refused.value.supported) == (str(root / "FORMAT"), 2, 1)
    assert refused.value.remedy in str(refused.value)
    assert tree(root) == before


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_newer_database_is_refused(root: Path, journal: str) -> None:
    """For any journal mode that a newer version may use: not a byte of the file is changed."""
    run_sql(root, f"PRAGMA journal_mode = {journal}", "PRAGMA user_version = 2")
    before = tree(root)
    with pytest.raises(UnsupportedFormat) as refused:
        open_golden_storage(root, ManualRuntime())
    assert (refused.value.path, refused.value.found, refused.value.supported) == (str(root / "meta.db"), 2, 1)
    assert tree(root) == before


Use = Callable[[Shards, Writer], object]

NEWER: list[tuple[str, Use]] = [
    ("shard/orders", lambda shards, _writer: shards.open("orders")),
    ("rollup/orders", lambda shards, _writer: shards.open("orders")),
    ("hold/orders", lambda shards, _writer: shards.open("orders").hold("sink", 3)),
    ("hold/orders", lambda shards, writer: shards.open("orders").advance_since(3, writer)),
    ("lease/orders/", lambda shards, writer: shards.open("orders").advance_since(3, writer)),
    ("lease/orders/", lambda shards, writer: shards.open("orders").collect_garbage(writer)),
    ("writer/", lambda shards, writer: shards.open("orders").collect_garbage(writer)),
    ("beat/", lambda shards, writer: shards.open("orders").collect_garbage(writer)),
    ("generation", lambda _shards, writer: writer.adopt_generation()),
]


@pytest.mark.parametrize(("key", "use"), NEWER, ids=[f"{number}-{key}" for number, (key, _) in enumerate(NEWER)])
def test_a_newer_record_is_refused(root: Path, key: str, use: Use) -> None:
    """Garbage collection refuses it too: it must not delete what it cannot interpret (I12)."""
    runtime = ManualRuntime(seed=9)
    storage, shards = open_golden_storage(root, runtime)
    writer = Writer.register(storage.meta, runtime=runtime, settings=SETTINGS)
    [name] = [name for name in storage.meta.heads(key) if writer.id not in name][:1]
    head = storage.meta.head(name)
    assert head is not None
    storage.meta.commit([Write(name, head.seqno, b"\x02" + head.data[1:])])
    before = state_of(storage, writer)
    with pytest.raises(UnsupportedFormat) as refused:
        use(shards, writer)
    assert name in refused.value.path
    assert (refused.value.found, refused.value.supported) == (2, 1)
    assert state_of(storage, writer) == before
    storage.close()


def test_a_newer_roll_up_is_refused(root: Path) -> None:
    [blob] = (root / "rollups").rglob("*.state")
    newer = b"\x02" + blob.read_bytes()[1:]
    blob.write_bytes(newer)
    storage, shards = open_golden_storage(root, ManualRuntime(seed=9))
    head = storage.meta.head("rollup/orders")
    assert head is not None
    address = msgspec.structs.replace(
        unseal(head.data, Rollup, "there"), checksum=xxhash.xxh3_128_hexdigest(newer), bytes=len(newer)
    )
    storage.meta.commit([Write("rollup/orders", head.seqno, seal(address))])
    with pytest.raises(UnsupportedFormat) as refused:
        shards.open("orders")
    assert refused.value.path == str(blob)
    assert blob.read_bytes() == newer
    storage.close()


def state_of(storage: Storage, writer: Writer) -> tuple[Any, ...]:
    """All blobs and all records, except the heartbeat of the reading process."""
    assert isinstance(storage.meta, SqliteMeta)
    root = Path(storage.root)
    return tree(root, besides="meta.db"), [record for record in records(root) if writer.id not in record[0]]
