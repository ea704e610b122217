"""Runs a query over directories of CSV files with Pathway, in this process.

It runs in a separate Python environment, without Evertide and its dependencies.

Pathway has two worker threads. It persists its input to the file system at the checkpoint interval of the other
engines: the only way to persist that needs no licence key. A restart processes the persisted input again, since
the state of operators is not persisted. Results are discarded (`pw.io.null`).

The job is a JSON object, `bench.peers.jobs.Job`; the output is lines of JSON.
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
from bench.peers.worker_output import keep_answer, tell

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
        except Exception as error:  # noqa: BLE001 - the report has any error
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
    """First: read all files, wait until they are persisted, and run until killed. Second: restart."""
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
    """The tables of a query, in a new graph."""
    importlib.import_module("pathway.internals.parse_graph").G.clear()
    tables = []
    for name, columns in READ[query].items():
        schema = pathway.schema_from_types(**{column: str if column in TEXTS else int for column in columns.split()})
        tables.append(pathway.io.csv.read(Path(job["data"]) / name, schema=schema, mode=mode, name=name))
    return tables


def _run(place: Path, job: dict[str, Any], pathway: Any) -> None:
    """Run until all is computed and persisted; in the mode `streaming`, forever."""
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
    """Subscribe to changes, including those restored by a restart, which `pw.io.subscribe` skips."""
    subscription = importlib.import_module("pathway.internals.table_subscription")
    subscription.subscribe(table, skip_persisted_batch=False, on_change=told)


class _Arrived:
    """The number of rows read, and the Pathway time of the last ones."""

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
    """The time up to which a worker has persisted; it writes two files alternately."""
    found = [0]
    for path in place.glob(f"*-{worker}-*"):
        try:
            found.append(json.loads(path.read_bytes())["last_advanced_timestamp"]["At"])
        except (ValueError, OSError):
            continue  # it is being written
    return max(found)


if __name__ == "__main__":
    main(sys.argv[1])
