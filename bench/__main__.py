"""`python -m bench [NAME ...] [--short | --full] [--json FILE]`.

`peers` compares Evertide with other engines, and writes a report (`--report`). `--render` writes the report again from
the results in its directory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from bench import bounds, connectors, pipelines, replicas, shape_index, shapes, shards, sizing, views, wide
from bench.measure import Figure
from bench.peers.contest import ENGINES, MEASURES, Contest, ContestSize
from bench.peers.publication import publish
from bench.peers.report import figures as goals
from bench.peers.report import make_report, read_report, together, write_report

OTHERS: dict[str, tuple[Any, Callable[..., list[Figure]]]] = {
    "pipeline": (pipelines.PipelineSize, pipelines.pipeline),
    "shape_index": (shape_index.ShapeIndexSize, shape_index.shape_index),
    "shapes": (shapes.ShapesSize, shapes.shapes),
    "replicas": (replicas.ReplicaSize, replicas.replicas),
    "sizing": (sizing.SizingSize, sizing.sizing),
    "bounds": (bounds.BoundSize, bounds.bounds),
    "wide": (wide.WideSize, wide.wide),
}
"""Each benchmark with its sizes."""
BENCHMARKS = (*shards.BENCHMARKS, "refresh", *OTHERS, *connectors.BENCHMARKS, "peers")
MARKS = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="the benchmarks to run; all by default")
    parser.add_argument(
        "--short", action="store_true", help="small sizes: checks that the benchmarks run, and measures nothing"
    )
    parser.add_argument("--full", action="store_true", help="also histories of 100 million events; takes hours")
    parser.add_argument("--views", help="only these views, separated by commas")
    parser.add_argument("--engines", help=f"peers: only these engines, of {','.join(ENGINES)}")
    parser.add_argument("--measures", help=f"peers: only these measures, of {','.join(MEASURES)}")
    parser.add_argument("--histories", help="peers: events before the refreshes, as in 1000000,100000000")
    parser.add_argument("--sizes", help="peers: new events of a refresh, as in 1,1000")
    parser.add_argument("--report", type=Path, help="peers: the directory of the report; bench/report by default")
    parser.add_argument("--publish", type=Path, help="peers: also write the report into this page")
    parser.add_argument("--add", action="store_true", help="peers: keep the report's other queries and measures")
    parser.add_argument(
        "--go-on", action="store_true", help="peers: as --add; continue the last run, which ended early"
    )
    parser.add_argument(
        "--render", action="store_true", help="peers: measure nothing; write the report from the stored results"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args(arguments)
    console = Console()
    figures: list[Figure] = []
    with Progress(console=console, transient=True) as bars:
        for name in chosen.names or BENCHMARKS:
            bar = bars.add_task(name, total=None)
            figures += _run(name, chosen, partial(_moved, bars, bar))
            bars.remove_task(bar)
    console.print(_report(figures))
    if chosen.json:
        chosen.json.write_text(json.dumps([figure.to_dict() for figure in figures], indent=2) + "\n")
    return 0


def _run(name: str, chosen: argparse.Namespace, moved: shards.Progress) -> list[Figure]:
    if name in shards.BENCHMARKS:
        return shards.BENCHMARKS[name](shards.Size.short() if chosen.short else shards.Size(), moved)
    if name in connectors.BENCHMARKS:
        measured = connectors.ConnectorSize.short() if chosen.short else connectors.ConnectorSize()
        return connectors.BENCHMARKS[name](measured, moved)
    if name == "peers":
        return _peers(chosen, moved)
    if name in OTHERS:
        sizes, measure = OTHERS[name]
        chosen_size = sizes.short() if chosen.short else sizes()
        if name == "bounds" and chosen.views:
            chosen_size = replace(chosen_size, cases=tuple(chosen.views.split(",")))
        if name == "wide" and chosen.views:
            chosen_size = replace(chosen_size, views=tuple(chosen.views.split(",")))
        return measure(chosen_size, moved)
    size = views.ViewSize.short() if chosen.short else views.ViewSize()
    if chosen.full:
        size = replace(size, histories=(*size.histories, 100_000_000))
    if chosen.views:
        size = replace(size, views=tuple(chosen.views.split(",")))
    return views.refresh(size, moved)


def _peers(chosen: argparse.Namespace, moved: shards.Progress) -> list[Figure]:
    directory = chosen.report or Path(os.environ.get("EVERTIDE_BENCH_DIR", "bench")) / "report"
    if chosen.render:
        report = read_report(directory)
    else:
        before = [read_report(directory)] if chosen.add or chosen.go_on else []
        contest = Contest(
            _contest_size(chosen),
            moved,
            lambda found: write_report(together([*before, make_report(found)]), directory),
            before[0].measured[-1].run if chosen.go_on and before[0].measured else None,
        )
        contest.run()
        report = together([*before, make_report(contest)])
    write_report(report, directory)
    if chosen.publish:
        publish(directory, chosen.publish)
    written = Figure("report", str(directory / "report.md"), f"{len(report.measured)} measurements")
    return [*goals(report), written]


def _contest_size(chosen: argparse.Namespace) -> ContestSize:
    size = ContestSize.short() if chosen.short else ContestSize.full() if chosen.full else ContestSize()
    if chosen.views:
        names = tuple(chosen.views.split(","))
        size = replace(size, queries=names, refreshed=names)
    if chosen.engines:
        size = replace(size, engines=tuple(name for name in ENGINES if name in chosen.engines.split(",")))
    if chosen.measures:
        size = replace(size, measures=tuple(name for name in MEASURES if name in chosen.measures.split(",")))
    if chosen.sizes:
        size = replace(size, sizes=tuple(map(int, chosen.sizes.split(","))))
    if chosen.histories:
        size = replace(size, histories=tuple(map(int, chosen.histories.split(","))))
    return size


def _moved(bars: Progress, bar: TaskID, done: int, total: int) -> None:
    bars.update(bar, completed=done, total=total)


def _report(figures: list[Figure]) -> Table:
    machine = f"{platform.machine()}, Python {platform.python_version()}, pyarrow {pa.__version__}"
    table = Table(title=f"Evertide benchmarks ({machine}); median (10th - 90th percentile)")
    for heading in ("what", "figure", "goal", "", "measured"):
        table.add_column(heading, justify="right" if heading == "figure" else "left")
    for figure in figures:
        table.add_row(figure.name, figure.value, figure.goal, MARKS[figure.met], figure.detail)
    return table


if __name__ == "__main__":
    raise SystemExit(main())
