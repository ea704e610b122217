"""Golden files: today's code reads what version 1 wrote, and writes the same bytes for the same values.

`EVERTIDE_GOLDEN=write` rewrites them. Do that to add the files of a new version, never to change those of an old one.
"""

from __future__ import annotations

import msgspec
import pytest

from evertide.checkpoint.records import (
    Catalog,
    CatalogEntry,
    Manifest,
    RestoreHold,
    StateFile,
    decode_manifest,
    encode_manifest,
)
from evertide.store.meta import seal, unseal
from evertide.types import Generation, Time
from tests.shard.test_golden import golden

WRITER = "0123456789abcdef"
DIGEST = "00112233445566778899aabbccddeeff"
ENTRIES = (
    CatalogEntry(7, Time(41), "checkpoints/00000007/manifest.json", 2525, DIGEST, 1_700_000_000.5),
    CatalogEntry(9, Time(2**40), "checkpoints/00000009/manifest.json", 2526, DIGEST[::-1], 1_700_000_060.25),
)
RECORDS: dict[str, msgspec.Struct] = {
    "checkpoint-catalog": Catalog(ENTRIES, {WRITER: 10}, 10, "00000000000000aa"),
    "restoring": RestoreHold(WRITER, ENTRIES, is_read=False, held_at_s=1_700_000_061.5, change="00000000000000bb"),
}
MANIFEST = Manifest(
    number=7,
    time=Time(41),
    made_at_s=1_700_000_000.5,
    writer=WRITER,
    fingerprint="f1",
    generation=Generation(3),
    members=("orders", "revenue"),
    positions={"files": '{"at": 41}', "kafka": "[0, 17]"},
    files=(
        StateFile("checkpoints/00000007/orders.state", 123, DIGEST),
        StateFile("checkpoints/00000007/pipeline.bin", 0, DIGEST),
        StateFile("checkpoints/00000007/state.bin", 4567, DIGEST),
        StateFile(f"state/by_customer/{WRITER}-00000001.parquet", 8901, DIGEST),
    ),
    shards={"orders": (StateFile(f"parts/orders/{WRITER}-00000001-p0.parquet", 234, DIGEST),), "revenue": ()},
)


@pytest.mark.parametrize("name", RECORDS)
def test_records(name: str) -> None:
    value = RECORDS[name]
    stored = golden(f"record-{name}-v1.bin", seal(value))
    assert unseal(stored, type(value), "there") == value
    assert seal(value) == stored


def test_the_manifest() -> None:
    stored = golden("checkpoint-manifest-v1.json", encode_manifest(MANIFEST))
    assert decode_manifest(stored, "there") == MANIFEST
    assert encode_manifest(MANIFEST) == stored
    assert stored.startswith(b'{\n  "version": 1,'), "the version is the first field"
