"""Pathway: a query over directories of CSV files, in this process.

Runs in a Python environment of its own, and imports what needs nothing of ours.

Two worker threads. What is read is persisted to the file system, as often as others make checkpoints: of the ways to
persist, that one needs no licence key. It starts from what was read again, not from the state of operators. Results go
nowhere (`pw.io.null`).

The job is a JSON object, `bench.peers.jobs.Job`; what is told are lines of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.peers.pathway_queries import PATHWAY
from bench.peers.pathway_tables import READ, TEXTS
from bench.peers.telling import keep_answer, tell

__all__ = ["main"]

_WORKERS = 2
_POLL_S = 0.05


def main(given: str) -> None:
    job = json.loads(given)
    os.environ["PATHWAY_THREADS"] = str(_WORKERS)
    pathway = importlib.import_module("pathway")
    run = {"sustained": _sustained, "recovery": _recovery}[job["measure"]]
    for query in job["queries"]:
        try:
            run(job, query, pathway)
        except Exception as error:  # noqa: BLE001 - whatever it is, the report says so
            tell("failed", query=query, why=f"{type(error).__name__}: {error}")
    tell("over")


def _sustained(job: dict[str, Any], query: str, pathway: Any) -> None:
    pathway.io.null.write(PATHWAY[query](pathway, *_tables(job, query, pathway, "static")))
    tell("ready")
    begun = time.perf_counter()
    _run(Path(job["place"]) / query, job, pathway)
    tell("done", seconds=time.perf_counter() - begun)
    if job["result"]:
        _keep(job, query, pathway)


def _recovery(job: dict[str, Any], query: str, pathway: Any) -> None:
    """First: read all files, wait until that is persisted, and go on until killed. Second: from there."""
    tables = _tables(job, query, pathway, "streaming")
    result = PATHWAY[query](pathway, *tables)
    place = Path(job["place"]) / query
    if job["phase"] == "first":
        pathway.io.null.write(result)
        _on_change(pathway.debug.table_from_rows(pathway.schema_from_types(up=int), [(1,)]), lambda **_: tell("ready"))
        arrived = _Arrived()
        for table in tables:
            _on_change(table.reduce(rows=pathway.reducers.count()), arrived)
        threading.Thread(target=_tell_loaded, args=(arrived, sum(job["histories"]), place), daemon=True).start()
    else:
        _on_change(result, lambda **_: tell("ready"))
    _run(place, job, pathway)


def _tables(job: dict[str, Any], query: str, pathway: Any, mode: str) -> list[Any]:
    """In a graph of its own: what was there before is done."""
    importlib.import_module("pathway.internals.parse_graph").G.clear()
    tables = []
    for name, columns in READ[query].items():
        schema = pathway.schema_from_types(**{column: str if column in TEXTS else int for column in columns.split()})
        tables.append(pathway.io.csv.read(Path(job["data"]) / name, schema=schema, mode=mode, name=name))
    return tables


def _run(place: Path, job: dict[str, Any], pathway: Any) -> None:
    """Returns when all is computed and persisted; never, if directories are watched."""
    backend = pathway.persistence.Backend.filesystem(place)
    config = pathway.persistence.Config(backend, snapshot_interval_ms=1_000 * job["checkpoint_s"])
    pathway.run(monitoring_level=pathway.MonitoringLevel.NONE, persistence_config=config)


def _keep(job: dict[str, Any], query: str, pathway: Any) -> None:
    changes: list[tuple[tuple[Any, ...], bool]] = []
    result = PATHWAY[query](pathway, *_tables(job, query, pathway, "static"))
    _on_change(result, lambda row, is_addition, **_: changes.append((tuple(row.values()), is_addition)))
    _run(Path(job["place"]) / f"{query}-answer", job, pathway)
    keep_answer(result.column_names(), changes, Path(job["result"]) / f"{query}.parquet")


def _on_change(table: Any, told: Any) -> None:
    """Also of what is there again after a restart, which `pw.io.subscribe` would not tell."""
    subscription = importlib.import_module("pathway.internals.table_subscription")
    subscription.subscribe(table, skip_persisted_batch=False, on_change=told)


class _Arrived:
    """How many rows were read, and at which of Pathway's times the last ones."""

    def __init__(self) -> None:
        self.rows = 0
        self.at = 0

    def __call__(self, *, row: dict[str, int], time: int, is_addition: bool, **_: Any) -> None:
        self.rows += row["rows"] if is_addition else -row["rows"]
        self.at = max(self.at, time)


def _tell_loaded(arrived: _Arrived, rows: int, place: Path) -> None:
    pause = threading.Event()
    while arrived.rows < rows or any(_persisted(place, worker) < arrived.at for worker in range(_WORKERS)):
        pause.wait(_POLL_S)
    tell("loaded")


def _persisted(place: Path, worker: int) -> int:
    """Up to which time: each worker says so in two files, in turns."""
    found = [0]
    for path in place.glob(f"*-{worker}-*"):
        try:
            found.append(json.loads(path.read_bytes())["last_advanced_timestamp"]["At"])
        except (ValueError, OSError):
            continue  # it is being written
    return max(found)


if __name__ == "__main__":
    main(sys.argv[1])
