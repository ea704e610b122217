"""Few rows through a fragment: one call to the JVM, from Arrow to Arrow, and mostly without a job of Spark.

A call from Python to the JVM is a round trip, and a run used to make dozens; a job of one task costs some 25 ms beside
what it computes. So what a run does over few rows is written in Java (`LocalRunner.java`). Spark's own
compiler for generated code compiles it when it is first needed: nothing is built or shipped.

1. It is planned once. Its leaves are relations whose rows are those of the moment, so that the same physical plan, its
   generated code and its RDD run again and again.
2. That plan is the one that a job would have; only who runs it differs (I15). The thread has a task's context for as
   long as it computes.
3. What needs other tasks is a job: an exchange, a broadcast, a Python process, a subquery. This is looked at when it is
   planned, in the plan and in the lineage of its RDD.
4. The rows that a join makes are counted. If there are too many, the run ends: all executors should share them.
5. Whatever else fails is run as a job, planned anew over these rows; its error is the one that counts.
6. Rows go both ways by files, which are gone before a disk sees them: an answer of more than some kilobytes waits 40 ms
   on its socket, as the JVM's side of it holds back the last packet until the one before is acknowledged.

Threads: a backfill and a transaction run fragments at the same time. Each `LocalRunner` belongs to one fragment of one
circuit, which one thread runs at a time; what Java keeps for it (plans, and the rows that they hold for a run) is its
own, and its `run` is synchronized besides. Each run has scratch files of its own. Only the compiled class is shared.
"""

from __future__ import annotations

import struct as binary
import threading
import weakref
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, TypeAlias

import pyarrow as pa

from evertide.plan.catalyst.scratch_files import read_scratch, split_frames
from evertide.scratch import scratch_file, using_scratch

__all__ = ["LocalRunner", "Term", "compile_runner"]

_NAME = "evertide.LocalRunner"
_NUMBER = binary.Struct(">i")
_compiling = threading.Lock()
_compiled: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""By the gateway to a JVM."""

Term: TypeAlias = "tuple[int, Sequence[pa.Table]]"
"""A sign, and the rows of each leaf."""


def compile_runner(gateway: Any) -> Any:
    """The class, in Spark's JVM: compiled once there, as py4j knows methods by the names of their classes."""
    with _compiling:
        if gateway not in _compiled:
            compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(gateway.jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
            compiler.cook(files("evertide.plan.fragment").joinpath("LocalRunner.java").read_text("utf-8"))
            _compiled[gateway] = compiler.getClassLoader().loadClass(_NAME).getConstructors()[0]
        return _compiled[gateway]


class LocalRunner:
    """The way of one fragment."""

    is_enabled = True
    """Without it all but maps and filters are jobs: to compare."""

    def __init__(self, made: Any, schemas: Sequence[pa.Schema]) -> None:
        self._jvm = made
        self._schemas = schemas
        self.last_path = ""
        """How the last run was computed: `place`, `here`, `job`, or `too many`."""

    def run(self, terms: Sequence[Term], *, is_row_wise: bool) -> list[pa.Table] | None:
        """The rows that come of the terms, each with its sign; None if a join makes too many for one thread."""
        with scratch_file() as there, scratch_file() as back:
            with using_scratch():
                there.write_bytes(b"".join(self._serialize_terms(terms)))
            self.last_path = self._jvm.run(str(there), str(back), is_row_wise, self.is_enabled)
            if self.last_path == "too many":
                return None
            written = read_scratch(back)
        return [pa.ipc.open_stream(batch).read_all() for batch in split_frames(written)]

    def _serialize_terms(self, terms: Sequence[Term]) -> list[Any]:
        found: list[Any] = [_NUMBER.pack(len(terms))]
        for sign, leaves in terms:
            found.append(_NUMBER.pack(sign))
            for rows, schema in zip(leaves, self._schemas, strict=True):
                found += _serialize(pa.Table.from_arrays(rows.columns, schema=schema))
        return found


def _serialize(rows: pa.Table) -> list[Any]:
    """How many batches, and each after its length."""
    batches = [batch.serialize() for batch in rows.combine_chunks().to_batches() if batch.num_rows]
    found: list[Any] = [_NUMBER.pack(len(batches))]
    for batch in batches:
        found += [_NUMBER.pack(batch.size), batch]
    return found
