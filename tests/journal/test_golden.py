"""Golden files: today's code reads what version 1 wrote, and writes the same bytes for the same values.

`EVERTIDE_GOLDEN=write` rewrites them. Do that to add the files of a new version, never to change those of an old one.

record-bound-v1.bin        the input of a transaction, with every kind of fragment
record-committed-v1.bin    its result
record-bound-xids-v1.bin, record-committed-xids-v1.bin
the same with xids, which were added later
record-bound-producers-v1.bin
the same with the producers that numbered their pushes
record-producer-v1.bin     the last number of a producer
staged-v1.arrow            staged rows
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
import xxhash

from evertide.journal.journal import Journal
from evertide.journal.producers import Producer
from evertide.journal.records import Bound, Committed, Content, Input, Place, ProducerNumber, Staged
from evertide.settings import Settings
from evertide.store import MemoryBlob, MemoryMeta
from evertide.store.meta import seal, unseal
from evertide.store.writers import Writer
from evertide.types import Generation, Time
from tests.kit.runtime import ManualRuntime

GOLDEN = Path(__file__).parent.parent / "golden"
WRITE = os.environ.get("EVERTIDE_GOLDEN") == "write"

KEY = "journal/push/0123456789abcdef-00000007.arrow"
STAGED = Staged("orders", KEY, 3, 4321, "00112233445566778899aabbccddeeff")
RECORDS: dict[str, msgspec.Struct] = {
    "bound": Bound(
        time=Time(2**40),
        generation=Generation(3),
        inputs={
            "clicks": Input('{"0":17}', '{"0":17}'),
            "files": Input('{"seen":[]}', '{"seen":["zß€.csv"]}', (Place('{"file":"zß€.csv"}'),)),
            "push": Input("5", "7", (STAGED, Place(""), STAGED)),
        },
        writer="0123456789abcdef",
        token="12",
        bound_at_s=1_700_000_000.25,
    ),
    "bound-xids": Bound(
        time=Time(7),
        generation=Generation(3),
        inputs={"shop": Input("a", "b", (STAGED,), (747, 2**32 - 1)), "push": Input("5", "5")},
        writer="0123456789abcdef",
        token="12",
        bound_at_s=1_700_000_000.25,
    ),
    "bound-producers": Bound(
        time=Time(7),
        generation=Generation(3),
        inputs={
            "push": Input(
                "5",
                "6",
                (STAGED,),
                producers={"zß€": ProducerNumber(2**40, Time(7)), "till-1": ProducerNumber(4, Time(7), before=(3, 2))},
            )
        },
        writer="0123456789abcdef",
        token="12",
        bound_at_s=1_700_000_000.25,
    ),
    "producer": Producer("zß€", 2**40, Time(7), 1_700_000_000.25),
    "committed-xids": Committed(Time(7), {"shop": Content(0, "0" * 32)}, {}, "0123456789abcdef", xids=(747, 2**32 - 1)),
    "committed": Committed(
        time=Time(2**40),
        sources={"clicks": Content(0, "0" * 32), "push": Content(6, "f" * 32)},
        shards={"orders": Content(6, "00112233445566778899aabbccddeeff")},
        writer="0123456789abcdef",
    ),
}


def golden(name: str, made: bytes) -> bytes:
    path = GOLDEN / name
    if WRITE:
        path.write_bytes(made)
    return path.read_bytes()


@pytest.mark.parametrize("name", RECORDS)
def test_records(name: str) -> None:
    value = RECORDS[name]
    stored = golden(f"record-{name}-v1.bin", seal(value))
    assert unseal(stored, type(value), "there") == value
    assert seal(value) == stored


def test_staged_rows() -> None:
    """Only read: different versions of Arrow may frame a stream differently, but must read the same rows."""
    rows = pa.table(
        {
            "id": pa.array([1, 2, None], pa.int64()),
            "name": pa.array(["one", None, "zß€😀"]),
            "at": pa.array([0, 1, 2], pa.timestamp("us", "UTC")),
            "__op": pa.array([0, 1, 0], pa.int8()),
        }
    )
    blob, meta, runtime, settings = MemoryBlob(), MemoryMeta(), ManualRuntime(), Settings()
    journal = Journal(blob, meta, runtime=runtime, settings=settings)
    writer = Writer.register(meta, runtime=runtime, settings=settings)
    stored = golden("staged-v1.arrow", blob.get(journal.stage("push", "orders", rows, writer).key))
    blob.put(KEY, stored)
    assert journal.load(Staged("orders", KEY, 3, len(stored), xxhash.xxh3_128_hexdigest(stored))).equals(rows)
