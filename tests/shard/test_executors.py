"""Parts that Spark's executors write: only the parts of successful attempts are linked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.shard.append import store_parts
from evertide.shard.parts.part import Part
from evertide.shard.shard import Shards
from evertide.store.blobs.local import LocalBlob
from evertide.store.metas.sqlite import SqliteMeta
from evertide.store.writers import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([pa.field("id", pa.int64())])
SETTINGS = Settings(inline_bytes_max=1)


def _task(root: str, writer: str, seq: int) -> Any:
    def run(partition: int, ids: Iterator[int]) -> Iterator[Part]:
        from pyspark import TaskContext  # noqa: PLC0415 - exists on the executor only

        rows = list(ids)
        table = pa.table(
            {
                "id": pa.array(rows, pa.int64()),
                "__time": pa.array([0] * len(rows), pa.int64()),
                "__diff": pa.array([1] * len(rows), pa.int64()),
            }
        )
        attempt = TaskContext.get().attemptNumber()
        stored = store_parts(
            table,
            shard="events",
            blob=LocalBlob(root),
            writer=writer,
            seq=seq,
            attempt=f"t{partition}a{attempt}",
            runtime=SystemRuntime(),
            settings=SETTINGS,
        )
        if partition % 2 == 1 and attempt == 0:
            raise RuntimeError("this attempt fails after it wrote its parts")
        yield from stored

    return run


@pytest.mark.timeout(300)
def test_only_the_successful_attempts_parts_are_linked(spark: SparkSession, tmp_path: Path) -> None:
    runtime = SystemRuntime()
    meta = SqliteMeta(tmp_path / "meta.db", runtime, SETTINGS)
    blob = LocalBlob(tmp_path)
    shards = Shards(blob, meta, runtime=runtime, settings=SETTINGS)
    writer = Writer.register(meta, runtime=runtime, settings=SETTINGS)
    shard = shards.create("events", SCHEMA, writer)
    with writer.claim() as seq:
        ids = spark.sparkContext.parallelize(range(1000), 4)
        parts = ids.mapPartitionsWithIndex(_task(str(tmp_path), writer.id, seq)).collect()
        written = {entry.key for entry in blob.list("parts/events/")}
        shard.compare_and_append(parts, 0, 1, writer)
    assert len(parts) == 4
    assert len(written) == 6, "two of four tasks wrote twice"

    collected = shard.collect_garbage(writer)

    assert set(collected.orphans) == written - {part.key for part in parts}
    with shard.snapshot(0) as snapshot:
        assert Counter(snapshot.to_arrow()["id"].to_pylist()) == Counter(range(1000))
    meta.close()
