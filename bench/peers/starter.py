"""Starts the process of each engine, in its Python environment, with its job.

The environment and the files are prepared before the process starts, so that this is not measured.
"""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path

import msgspec

from bench.measure import own_spark
from bench.peers.flink_sql import FLINK, flink_tables
from bench.peers.installation import Flink, set_up_flink, set_up_pathway
from bench.peers.jobs import Job
from bench.peers.pathway_input import pathway_files
from bench.peers.process import Worker


class Starter:
    def worker(self, engine: str, job: Job) -> Worker:
        if engine == "flink":
            return _start(self._flink.python, "flink_job", self._for_flink(job))
        if engine == "pathway":
            given = msgspec.structs.replace(job, data=str(pathway_files(Path(job.data))))
            return _start(self._pathway, "pathway_job", given)
        return _start(Path(sys.executable), "worker", job, engine)

    @cached_property
    def _flink(self) -> Flink:
        return set_up_flink()

    @cached_property
    def _pathway(self) -> Path:
        return set_up_pathway()

    def _for_flink(self, job: Job) -> Job:
        texts: dict[str, str | dict[str, str]] = {query: FLINK[query] for query in job.queries}
        for query in job.queries:
            texts[f"{query}.tables"] = flink_tables(query, Path(job.data), is_watched=job.measure == "recovery")
        return msgspec.structs.replace(job, texts=texts, jars=self._flink.jars)


def _start(python: Path, module: str, job: Job, *arguments: str) -> Worker:
    return Worker([str(python), "-m", f"bench.peers.{module}", *arguments], job, own_spark())
