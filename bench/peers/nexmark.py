"""Nexmark for all engines: which tables a query reads, the events as Parquet files, and the steps of a refresh."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.jobs import Job
from evertide.testing.nexmark import WORKLOAD, Nexmark

__all__ = [
    "QUERIES",
    "TABLES",
    "Step",
    "all_inputs",
    "inputs_of",
    "made",
    "script_over_files",
    "steps",
    "write_files",
    "written_rows",
]

TABLES = ("person", "auction", "bid", "side_input")
QUERIES = tuple(name for name in WORKLOAD.queries if name != "q11")
_INPUTS = {
    "q3": ("person", "auction"),
    "q4": ("auction", "bid"),
    "q6": ("auction", "bid"),
    "q8": ("person", "auction"),
    "q9": ("auction", "bid"),
    "q13": ("bid", "side_input"),
    "q20": ("auction", "bid"),
}
_GENERATOR = Nexmark(seed=7)
_SIDE_ROWS = 2_000
_CYCLE = 50
"""Events: a person, three auctions, bids."""
_LARGE, _USUAL = 100_000, 1_000
"""New events."""
_LONG = 100_000_000
"""Events of history, where to recompute once takes up to a minute."""
_TABLE = re.compile(r"CREATE TABLE (\w+) \(.*?\n\)", re.DOTALL)


def inputs_of(query: str) -> tuple[str, ...]:
    return _INPUTS.get(query, ("bid",))


def all_inputs(queries: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for query in queries for name in inputs_of(query)))


def made(names: Iterable[str], first: int, count: int) -> dict[str, pa.Table]:
    """The rows of these tables, of so many events; the side input comes with the first."""
    events = _GENERATOR.events(first, count)
    tables = {"person": events.person, "auction": events.auction, "bid": events.bid}
    if first == 0:
        tables["side_input"] = _GENERATOR.side_input(_SIDE_ROWS)
    return {name: tables[name] for name in names if name in tables}


def write_files(path: Path, events: int, chunk: int) -> None:
    """All tables, a file for each stretch of events."""
    for name in TABLES:
        (path / name).mkdir(parents=True)
    pq.write_table(_GENERATOR.side_input(_SIDE_ROWS), path / "side_input" / "00000.parquet")
    for first in range(0, events, chunk):
        found = _GENERATOR.events(first, min(chunk, events - first))
        for name in TABLES[:3]:
            pq.write_table(getattr(found, name), path / name / f"{first // chunk:05d}.parquet")


def written_rows(path: Path, query: str) -> int:
    """How many rows the query reads."""
    files = (file for name in inputs_of(query) for file in sorted((path / name).glob("*.parquet")))
    return sum(pq.ParquetFile(file).metadata.num_rows for file in files)


def script_over_files(query: str, path: Path) -> str:
    """Tables that are read from the files and not stored again: the others leave their input where it is, too."""

    def over(found: re.Match[str]) -> str:
        options = f"path '{path / found[1]}', settle_ms '1'"
        return f"{found[0]} USING parquet OPTIONS ({options}) TBLPROPERTIES ('evertide.keep' = 'none')"

    tables = [over(found) for found in _TABLE.finditer(WORKLOAD.tables) if found[1] in inputs_of(query)]
    return ";\n".join([*tables, f"CREATE MATERIALIZED VIEW {query} AS\n{WORKLOAD.queries[query]};\n"])


@dataclass(frozen=True, slots=True)
class Step:
    """Events to take in: of the history, to warm up, or a refresh that is measured."""

    query: str
    """Whose refresh it is; empty for the history."""
    history: int
    first: int
    count: int
    size: int = 0
    is_measured: bool = False


def steps(job: Job) -> Iterator[Step]:
    """Histories grow one out of the other; what refreshes brought is part of what follows.

    Several queries are refreshed one after the other, on the same history.

    A few new events are such as the query reads: the ones before are left out, for all engines alike.
    """
    following = 0
    for history in job.histories:
        while following < history:
            count = min(job.chunk, history - following)
            yield Step("", history, following, count)
            following += count
        for query, (size, is_measured) in product(job.queries, [*_rounds(job, history)]):
            while size < _CYCLE and following % _CYCLE not in _places(query):
                following += 1
            yield Step(query, history, following, size, size, is_measured)
            following += size


def _places(query: str) -> range:
    """Where, in each cycle of events, those are that the query reads: bids, or auctions if it reads no bids."""
    return range(4, _CYCLE) if "bid" in inputs_of(query) else range(1, 4)


def _rounds(job: Job, history: int) -> Iterator[tuple[int, bool]]:
    """Large refreshes are measured less often, as they take longer and vary less.

    Who recomputes is warm after the first, and on a long history has its rounds for one size only: others are looked at
    once, as they take the same.
    """
    for number, size in enumerate(job.sizes):
        warm_up, rounds = job.warm_up, job.rounds
        if size >= _LARGE:
            warm_up, rounds = min(warm_up, 1), max(1, rounds // 4)
        if job.is_recomputed:
            warm_up = 0 if number or history != job.histories[0] else warm_up
            rounds = 1 if history >= _LONG and size != _USUAL else rounds
        yield from [(size, False)] * warm_up + [(size, True)] * rounds
