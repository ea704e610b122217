"""Runs a fragment over few rows in one call to the JVM, from Arrow to Arrow, mostly without a Spark job.

Each call from Python to the JVM is a round trip, and a job with one task costs some 25 ms beside its computation. So
such a run is written in Java (`LocalRunner.java`). It is compiled at first use (`evertide.plan.catalyst.parsed`).

1. The fragment is planned once. The rows of its leaves are replaced before each run, so that the physical plan, its
   generated code and its RDD are reused.
2. The plan is the one that a job would have; only the thread that runs it differs (I15). The thread has a task context
   while it computes.
3. A plan that needs other tasks runs as a job: an exchange, a broadcast, a Python process, a subquery. This is decided
   after planning, from the plan and the lineage of its RDD.
4. The rows that a join produces are counted. If there are too many, the run is aborted, and the executors share them.
5. If the run fails for another reason, it is repeated as a job, and the error of the job is raised.
6. Rows are passed in scratch files, which are removed before they reach a disk. Over a socket, a response of more than
   some kilobytes would wait 40 ms for an acknowledgement.

Threads: backfills and transactions run fragments concurrently. Each `LocalRunner` belongs to one fragment of one
circuit, which one thread runs at a time; its plans and rows in Java are not shared, and its `run` is synchronized. Each
run has its own scratch files. Only the compiled class is shared.
"""

from __future__ import annotations

import struct as binary
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from evertide.plan.catalyst.catalyst import read_scratch, split_frames
from evertide.scratch import scratch_file, using_scratch

_NUMBER = binary.Struct(">i")

Term: TypeAlias = "tuple[int, Sequence[pa.Table]]"
"""A sign, and the rows of each leaf."""


class RunPath(StrEnum):
    """How a run was computed; `LocalRunner.java` has the same values."""

    PLACE = "place"
    """Row by row, for maps and filters."""
    HERE = "here"
    """In the calling thread."""
    JOB = "job"
    TOO_MANY = "too many"
    """Not at all, since a join produces too many rows for one thread."""


class LocalRunner:
    is_enabled = True
    """If false, all runs but maps and filters are jobs; tests compare both."""

    def __init__(self, jvm: Any, schemas: Sequence[pa.Schema]) -> None:
        self._jvm = jvm
        self._schemas = schemas

    def run(self, terms: Sequence[Term], *, is_row_wise: bool) -> list[pa.Table] | None:
        """Compute the rows of the terms, with their signs; None if a join produces too many for one thread."""
        with scratch_file() as request, scratch_file() as response:
            with using_scratch():
                request.write_bytes(b"".join(self._serialize_terms(terms)))
            if self._call_jvm(request, response, is_row_wise=is_row_wise) is RunPath.TOO_MANY:
                return None
            written = read_scratch(response)
        return [pa.ipc.open_stream(batch).read_all() for batch in split_frames(written)]

    def _call_jvm(self, request: Path, response: Path, *, is_row_wise: bool) -> RunPath:
        return RunPath(self._jvm.run(str(request), str(response), is_row_wise, self.is_enabled))

    def _serialize_terms(self, terms: Sequence[Term]) -> list[Any]:
        found: list[Any] = [_NUMBER.pack(len(terms))]
        for sign, leaves in terms:
            found.append(_NUMBER.pack(sign))
            for rows, schema in zip(leaves, self._schemas, strict=True):
                found += _serialize(pa.Table.from_arrays(rows.columns, schema=schema))
        return found


def _serialize(rows: pa.Table) -> list[Any]:
    """The number of batches, and each batch preceded by its length."""
    batches = [batch.serialize() for batch in rows.combine_chunks().to_batches() if batch.num_rows]
    found: list[Any] = [_NUMBER.pack(len(batches))]
    for batch in batches:
        found += [_NUMBER.pack(batch.size), batch]
    return found
