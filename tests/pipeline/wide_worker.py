"""A process that opens a pipeline, whose new views executors compute on an unreliable storage, until it is killed.

    python -m tests.pipeline.wide_worker STORAGE CONTROL

It prints `running` when it begins, and `hydrated` once the views are members.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import evertide as et
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.spark_engine import SparkEngine
from evertide.plan.catalyst.session import open_session
from evertide.plan.fragment import fragment
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.pipeline.test_wide import SCRIPT
from tests.pipeline.wide_faults import Control, UnreliableBlob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = Settings(
    wide_rows_min=1,
    inline_bytes_max=1,
    retry_limit_s=0.2,
    retry_wait_s=0.01,
    retry_wait_max_s=0.05,
    retry_view_s=0.2,
    writer_ttl_s=10.0,
    heartbeat_interval_s=0.5,
)


@contextmanager
def opened(
    storage: Path,
    control: Control,
    spark: SparkSession | None,
    script: str = SCRIPT,
    *,
    threads: bool = True,
    settings: Settings = SETTINGS,
) -> Iterator[et.Pipeline]:
    runtime = SystemRuntime()
    store = open_storage(storage, runtime=runtime, settings=settings)
    store = replace(store, blob=UnreliableBlob(storage, control))
    engine = SparkEngine(open_session(spark, None if spark else "local[2,4]"), script)
    with Pipeline(engine, store, base=storage, runtime=runtime, settings=settings, threads=threads) as p:
        yield p


def main(storage: str, control: str) -> None:
    fragment.ROWS_SMALL_MAX = 0
    print("running", flush=True)
    with opened(Path(storage), Control(Path(control)), None) as p:
        p.wait_until_hydrated(600)
        print("hydrated", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
