"""Nexmark for all engines: the tables of each query, the events as Parquet files, and the steps of a refresh."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.jobs import Job
from tests.kit.nexmark import WORKLOAD, Nexmark

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
"""The events repeat a cycle: a person, three auctions, 46 bids."""
_LARGE, _USUAL = 100_000, 1_000
"""Numbers of new events per refresh."""
_LONG = 100_000_000
"""Events of a history over which one recomputation takes up to a minute."""
_TABLE = re.compile(r"CREATE TABLE (\w+) \(.*?\n\)", re.DOTALL)


def inputs_of(query: str) -> tuple[str, ...]:
    return _INPUTS.get(query, ("bid",))


def all_inputs(queries: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for query in queries for name in inputs_of(query)))


def make_tables(names: Iterable[str], first: int, count: int) -> dict[str, pa.Table]:
    """The rows of these tables for `count` events; the side input comes with the first event."""
    events = _GENERATOR.events(first, count)
    tables = {"person": events.person, "auction": events.auction, "bid": events.bid}
    if first == 0:
        tables["side_input"] = _GENERATOR.side_input(_SIDE_ROWS)
    return {name: tables[name] for name in names if name in tables}


def write_files(path: Path, events: int, chunk: int) -> None:
    """Write all tables, with one file per chunk of events."""
    for name in TABLES:
        (path / name).mkdir(parents=True)
    pq.write_table(_GENERATOR.side_input(_SIDE_ROWS), path / "side_input" / "00000.parquet")
    for first in range(0, events, chunk):
        found = _GENERATOR.events(first, min(chunk, events - first))
        for name in TABLES[:3]:
            pq.write_table(getattr(found, name), path / name / f"{first // chunk:05d}.parquet")


def written_rows(path: Path, query: str) -> int:
    """The number of rows that the query reads."""
    files = (file for name in inputs_of(query) for file in sorted((path / name).glob("*.parquet")))
    return sum(pq.ParquetFile(file).metadata.num_rows for file in files)


def script_over_files(query: str, path: Path) -> str:
    """A script whose tables are read from the files and not stored: other engines do not copy their input either."""

    def over(found: re.Match[str]) -> str:
        options = f"path '{path / found[1]}', settle_ms '1'"
        return f"{found[0]} USING parquet OPTIONS ({options}) TBLPROPERTIES ('evertide.keep' = 'none')"

    tables = [over(found) for found in _TABLE.finditer(WORKLOAD.tables) if found[1] in inputs_of(query)]
    return ";\n".join([*tables, f"CREATE MATERIALIZED VIEW {query} AS\n{WORKLOAD.queries[query]};\n"])


@dataclass(frozen=True, slots=True)
class Step:
    """Events to process: a part of the history, a warm-up, or a measured refresh."""

    query: str
    """The query that is refreshed; empty for the history."""
    history: int
    first: int
    count: int
    size: int = 0
    is_measured: bool = False


def steps(job: Job) -> Iterator[Step]:
    """The steps of a job. Each history extends the one before, including the events of its refreshes.

    Several queries are refreshed one after the other, on the same history. A refresh with less than a cycle of events
    begins with an event that the query reads: the events before are skipped, for all engines.
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
    """The positions in a cycle of the events that the query reads: bids, or auctions if it reads no bids."""
    return range(4, _CYCLE) if "bid" in inputs_of(query) else range(1, 4)


def _rounds(job: Job, history: int) -> Iterator[tuple[int, bool]]:
    """The size of each round, and whether it is measured. Large refreshes have fewer rounds, since they vary less.

    An engine that recomputes is warmed up once. On a long history it has one round per size, except for `_USUAL`, since
    all sizes take the same time.
    """
    for number, size in enumerate(job.sizes):
        warm_up, rounds = job.warm_up, job.rounds
        if size >= _LARGE:
            warm_up, rounds = min(warm_up, 1), max(1, rounds // 4)
        if job.is_recomputed:
            warm_up = 0 if number or history != job.histories[0] else warm_up
            rounds = 1 if history >= _LONG and size != _USUAL else rounds
        yield from [(size, False)] * warm_up + [(size, True)] * rounds
