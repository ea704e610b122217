"""`Job` and `Measured`: the task of a worker, and its result.

A worker is a separate process, so that its memory and its written bytes can be measured, and it can be killed. It
receives a `Job`, and reports in lines of JSON, each with a `what`.
"""

from __future__ import annotations

import statistics

import msgspec

TWO_THREADS = "local[2]"
"""Spark's master: every engine has two threads."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    measure: str
    """sustained, refresh, recovery or tpch."""
    place: str
    """The directory of the job."""
    queries: tuple[str, ...]
    texts: dict[str, str | dict[str, str]] = {}
    """Per query, its tables and its text in the engine's dialect, for a worker that cannot import them: `q4.tables`,
    `q4`."""
    data: str = ""
    """Directories of Parquet files, one per table; of CSV files for Pathway."""
    result: str = ""
    """The directory for results as Parquet files; empty if they are not compared."""
    histories: tuple[int, ...] = ()
    chunk: int = 1_000_000
    sizes: tuple[int, ...] = ()
    """Numbers of new events per refresh."""
    warm_up: int = 0
    rounds: int = 1
    is_recomputed: bool = False
    """Whether the engine recomputes, so that a refresh depends on the history, not on the new events."""
    scale: float = 0.0
    """The scale of TPC-H."""
    phase: str = ""
    """The phase of a recovery: first or second."""
    jars: tuple[str, ...] = ()
    checkpoint_s: int = 10


class Measured(msgspec.Struct, kw_only=True):
    run: str = ""
    """The start of the run: ratios compare results of one run."""
    measure: str
    engine: str
    query: str
    events: int
    """The events of the history; for a sustained load, all events."""
    size: int = 0
    seconds: list[float] = []
    cpu_s: float = 0.0
    peak_bytes: int = 0
    written_bytes: int = 0
    note: str = ""

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The 10th and the 90th percentile."""
        ordered = sorted(self.seconds)
        tenth = len(ordered) // 10
        return ordered[tenth], ordered[-1 - tenth]

    @property
    def rate(self) -> float:
        return self.events / self.median_s


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    engine: str
    query: str
    why: str
