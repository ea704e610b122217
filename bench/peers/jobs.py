"""What a worker is asked to do, and what came of it.

A worker is a process of its own, so that its memory, its bytes written and its death are its own. It is given a `Job`,
and tells what it did in lines of JSON, each with a `what`.
"""

from __future__ import annotations

import statistics

import msgspec

__all__ = ["TWO_THREADS", "Job", "Measured", "Skipped"]

TWO_THREADS = "local[2]"
"""Spark's master, for whoever uses Spark: as many threads as each engine has."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    measure: str
    """sustained, refresh, recovery or tpch."""
    place: str
    """A directory of its own."""
    queries: tuple[str, ...]
    texts: dict[str, str | dict[str, str]] = {}
    """Per query, the tables that it reads and the query in the engine's own words, for a worker that cannot read ours:
    `q4.tables`, `q4`."""
    data: str = ""
    """Directories of Parquet files, one per table; of CSV files for Pathway."""
    result: str = ""
    """Where to write the answers as Parquet files; nothing is compared if it is empty."""
    histories: tuple[int, ...] = ()
    chunk: int = 1_000_000
    sizes: tuple[int, ...] = ()
    """How many new events before a refresh."""
    warm_up: int = 0
    rounds: int = 1
    is_recomputed: bool = False
    """What a refresh takes follows the history, whatever is new."""
    scale: float = 0.0
    """Of TPC-H."""
    phase: str = ""
    """Of a recovery: first or second."""
    jars: tuple[str, ...] = ()
    checkpoint_s: int = 10


class Measured(msgspec.Struct, kw_only=True):
    run: str = ""
    """When the run began that it is of: ratios are of one run."""
    measure: str
    engine: str
    query: str
    events: int
    """Of history for a refresh or a recovery; those that went in for a sustained load."""
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
