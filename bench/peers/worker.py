"""`python -m bench.peers.worker ENGINE JOB`: runs one job of an engine in Evertide's Python environment."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from bench.peers import engine_duckdb, engine_evertide
from bench.peers.engine_spark import Recompute, Stream
from bench.peers.jobs import TWO_THREADS, Job
from bench.peers.worker_output import tell
from bench.views import bench_spark

ENGINES: dict[str, Any] = {
    "evertide": engine_evertide,
    "spark": Recompute,
    "streaming": Stream,
    "duckdb": engine_duckdb,
}


def work(engine: str, job: Job, tell: Callable[..., None]) -> None:
    """Run a job. A sustained load runs one query at a time; a failure is reported, and the others continue."""
    run = getattr(ENGINES[engine], job.measure)
    if job.measure != "sustained":
        run(job, tell)
        return
    with nullcontext() if engine == "duckdb" else bench_spark(TWO_THREADS):
        for query in job.queries:
            place = Path(job.place) / query
            place.mkdir()
            try:
                run(msgspec.structs.replace(job, queries=(query,), place=str(place)), tell)
            except Exception as error:  # noqa: BLE001 - the report has any error
                tell("failed", query=query, why=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    work(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Job), tell)
    tell("over")
