"""The report: results as a JSON file, a page of Markdown with plots, and the goals as figures."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.measure import Figure
from bench.peers.contest import ENGINES, Contest
from bench.peers.installation import FLINK_VERSION, PATHWAY_VERSION
from bench.peers.jobs import Measured, Skipped
from bench.peers.svg import bars
from evertide.errors import InvalidInput

_TITLES = {
    "evertide": "Evertide",
    "flink": "Flink",
    "pathway": "Pathway",
    "streaming": "Structured Streaming",
    "spark": "Spark, recomputed",
    "duckdb": "DuckDB, recomputed",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    machine: dict[str, str]
    measured: list[Measured]
    skipped: list[Skipped]
    agreed: dict[str, list[str]]

    def of(self, measure: str) -> list[Measured]:
        return sorted((one for one in self.measured if one.measure == measure), key=lambda one: _count(one.query))


def make_report(contest: Contest) -> Report:
    return Report(machine=_machine(), measured=contest.measured, skipped=contest.skipped, agreed=contest.agreed)


def together(reports: Sequence[Report]) -> Report:
    """Combine the reports of several runs. For a query, measure and history, only results of the newest run are used,
    since ratios need one run. A run may consist of several reports. An engine agrees until a later run differs."""
    return functools.reduce(_two, reports)


def _two(older: Report, newer: Report) -> Report:
    runs = {_case(one): one.run for one in newer.measured}
    told = {(_case(one), one.engine, one.size) for one in newer.measured}
    kept = [
        one
        for one in older.measured
        if runs.get(_case(one), one.run) == one.run and (_case(one), one.engine, one.size) not in told
    ]
    return Report(
        machine=newer.machine,
        measured=[*kept, *newer.measured],
        skipped=_unique([*older.skipped, *newer.skipped]),
        agreed={query: _agreeing(query, older, newer) for query in _unique([*older.agreed, *newer.agreed])},
    )


def _case(one: Measured) -> tuple[str, str, int]:
    return one.measure, one.query, one.events if one.measure == "refresh" else 0


def _agreeing(query: str, older: Report, newer: Report) -> list[str]:
    differing = {one.engine for one in newer.skipped if one.query == query}
    known = {*older.agreed.get(query, ()), *newer.agreed.get(query, ())} - differing
    return [engine for engine in ENGINES if engine in known]


def read_report(directory: Path) -> Report:
    path = directory / "results.json"
    if not path.exists():
        raise InvalidInput(
            where=str(path), why="this directory has no report; measure first, without --add, --go-on and --render"
        )
    return msgspec.json.decode(path.read_bytes(), type=Report)


def write_report(report: Report, directory: Path) -> None:
    """Write `results.json`, `report.md`, and plots."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    plots = {name: plot for name, plot in _plots(report).items() if plot}
    for name, plot in plots.items():
        (directory / f"{name}.svg").write_text(plot)
    (directory / "report.md").write_text("\n".join(_page(report, plots)) + "\n")


def _machine() -> dict[str, str]:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = {name: importlib.metadata.version(name) for name in ("evertide", "pyspark", "duckdb", "pyarrow")}
    cores = len(os.sched_getaffinity(0))
    return {
        "machine": f"{platform.system()} {platform.machine()}, {cores} cores, {memory:.0f} GiB",
        "Python": platform.python_version(),
        "Java": java[0] if java else "none",
        **versions,
        "apache-flink": FLINK_VERSION,
        "pathway": PATHWAY_VERSION,
        "load when it ended": f"{os.getloadavg()[1]:.1f}",
    }


# The page


def _page(report: Report, plots: Iterable[str]) -> Iterator[str]:
    yield "# What was measured"
    yield ""
    yield "; ".join(f"{name}: {value}" for name, value in report.machine.items()) + "."
    yield "Medians, with the 10th and 90th percentile in brackets. Each engine has two threads."
    for title, lines in (
        ("Goals", _goals(report)),
        ("Sustained load, durable", _sustained(report)),
        ("Refresh", _refreshes(report)),
        ("TPC-H with refreshes", _tpch(report)),
        ("Start and recovery", _recoveries(report)),
        ("Agreement", _agreement(report)),
    ):
        found = list(lines)
        if found:
            yield from ("", f"## {title}", "", *found)
    for name in plots:
        yield from ("", f"![{name}]({name}.svg)")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _engines(found: Iterable[Measured]) -> list[str]:
    known = {one.engine for one in found}
    return [engine for engine in ENGINES if engine in known]


def _sustained(report: Report) -> Iterator[str]:
    found = report.of("sustained")
    if not found:
        return
    engines, queries = _engines(found), _unique(one.query for one in found)
    by = {(one.query, one.engine): one for one in found}
    yield "Thousands of events a second, of those that the query reads, until all results are durable:"
    yield ""
    yield from _table(
        ["query", *(_TITLES[engine] for engine in engines)],
        [
            [query, *(_cell(by.get((query, engine)), lambda one: f"{one.rate / 1e3:.0f}") for engine in engines)]
            for query in queries
        ],
    )
    yield ""
    yield "Peak memory of all its processes (MB), and bytes written per event:"
    yield ""
    yield from _table(
        ["query", *(_TITLES[engine] for engine in engines)],
        [
            [
                query,
                *(
                    _cell(
                        by.get((query, engine)),
                        _memory,
                    )
                    for engine in engines
                ),
            ]
            for query in queries
        ],
    )


def _refreshes(report: Report) -> Iterator[str]:
    found = report.of("refresh")
    engines = _engines(found)
    for events, size in sorted({(one.events, one.size) for one in found}):
        by = {(one.query, one.engine): one for one in found if (one.events, one.size) == (events, size)}
        yield f"After {size:,} new events on {events:,}, in milliseconds:"
        yield ""
        yield from _table(
            ["query", *(_TITLES[engine] for engine in engines)],
            [
                [query, *(_cell(by.get((query, engine)), _ms) for engine in engines)]
                for query in _unique(query for query, _ in by)
            ],
        )
        yield ""


def _tpch(report: Report) -> Iterator[str]:
    found = report.of("tpch")
    if found:
        yield f"All views together, after {found[0].size} orders came, others went and other rows changed, in ms:"
        yield ""
        yield from _table([_TITLES[one.engine] for one in found], [[_ms(one) for one in found]])


def _recoveries(report: Report) -> Iterator[str]:
    found = [*report.of("start"), *report.of("recovery")]
    if found:
        rows = [[_TITLES[one.engine], one.measure, f"{one.events:,}", f"{one.median_s:.1f} s"] for one in found]
        yield "From start to running: with an empty storage, and after kill -9 with these events read:"
        yield ""
        yield from _table(["engine", "", "events", "takes"], rows)


def _agreement(report: Report) -> Iterator[str]:
    for query in sorted(report.agreed, key=_count):
        engines = report.agreed[query]
        yield f"- {query}: {', '.join(_TITLES[engine] for engine in engines) or 'no engine'} agree with Evertide."
    for one in report.skipped:
        yield f"- {one.query}: without {_TITLES[one.engine]}: {' '.join(one.why.split())}"


def _goals(report: Report) -> Iterator[str]:
    found = list(figures(report))
    if found:
        marks = {True: "met", False: "**missed**", None: ""}
        yield from _table(
            ["what", "figure", "goal", "", "measured"],
            [[one.name, one.value, one.goal, marks[one.met], one.detail] for one in found],
        )


def _cell(one: Measured | None, told: Any) -> str:
    return "" if one is None else told(one)


def _memory(one: Measured) -> str:
    """Empty if the measurement had no separate process."""
    return f"{one.peak_bytes / 1e6:.0f}; {one.written_bytes / one.events:.0f}" if one.peak_bytes else ""


def _ms(one: Measured) -> str:
    low, high = one.spread
    return f"{one.median_s * 1e3:.0f} ({low * 1e3:.0f}-{high * 1e3:.0f})"


def _count(query: str) -> list[str | int]:
    """A sort key that puts q2 before q12."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", query)]


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _plots(report: Report) -> dict[str, str]:
    found = report.of("refresh")
    made = {}
    for events, size in sorted({(one.events, one.size) for one in found}):
        groups: dict[str, dict[str, float]] = {}
        for one in found:
            if (one.events, one.size) == (events, size):
                groups.setdefault(one.query, {})[_TITLES[one.engine]] = one.median_s * 1e3
        title = f"Refresh after {size:,} new events on {events:,}"
        made[f"refresh-{events}-{size}"] = bars(title, "ms", groups, [*_TITLES.values()])
    rates: dict[str, dict[str, float]] = {}
    for one in report.of("sustained"):
        rates.setdefault(one.query, {})[_TITLES[one.engine]] = one.rate
    if rates:
        made["sustained"] = bars("Sustained load, durable", "events/s", rates, [*_TITLES.values()])
    return made


# Goals


def figures(report: Report) -> Iterator[Figure]:
    """The goals, each as a ratio of measurements of one run."""
    refreshes = {(one.query, one.engine, one.events, one.size): one.median_s for one in report.of("refresh")}
    for events in sorted({one.events for one in report.of("refresh")}):
        goal = {10_000_000: 15.0, 100_000_000: 150.0}.get(events)
        yield from _ratio(refreshes, "spark", events, 1_000, goal)
        yield from _ratio(refreshes, "duckdb", events, 1_000, 1.0 if events == 100_000_000 else None)
        yield from _ratio(refreshes, "streaming", events, 1_000, 1.0)
        for query in ("q4",):
            taken = refreshes.get((query, "evertide", events, 1_000))
            if taken is not None:
                name = f"{query} (two stateful operators), 1,000 events on {events:,}"
                yield Figure(name, f"{taken * 1e3:.0f} ms", "median, durable", "at most 100 ms", taken <= 0.1)
    yield from _growth(report)
    yield from _against_flink(report)


def _ratio(refreshes: dict[Any, float], peer: str, events: int, size: int, goal: float | None) -> Iterator[Figure]:
    ratios = {
        query: taken / refreshes[query, "evertide", events, size]
        for (query, engine, at, new), taken in refreshes.items()
        if (engine, at, new) == (peer, events, size) and (query, "evertide", events, size) in refreshes
    }
    if ratios:
        mean = statistics.geometric_mean(ratios.values())
        worst = min(ratios, key=ratios.__getitem__)
        detail = f"geometric mean of {len(ratios)} queries; least {ratios[worst]:.1f}x, {worst}"
        name = f"refresh after {size:,} on {events:,}: faster than {_TITLES[peer]} by"
        judged = ratios[worst] if peer == "duckdb" else mean
        yield Figure(
            name, f"{mean:.1f}x", detail, f"at least {goal:g}x" if goal else "", judged >= goal if goal else None
        )


def _growth(report: Report) -> Iterator[Figure]:
    """The growth of the queries that one run refreshed on both the shortest and the longest history."""
    ours = [one for one in report.of("refresh") if (one.engine, one.size) == ("evertide", 1_000)]
    histories = sorted({one.events for one in ours})
    if len(histories) > 1:
        first, last = histories[0], histories[-1]
        before = {(one.query, one.run): one.median_s for one in ours if one.events == first}
        growths = {
            one.query: one.median_s / before[one.query, one.run]
            for one in ours
            if one.events == last and (one.query, one.run) in before
        }
        if growths:
            growth, most = statistics.geometric_mean(growths.values()), max(growths, key=growths.__getitem__)
            name = f"refresh after 1,000: growth from {first:,} to {last:,}"
            detail = f"geometric mean of {len(growths)} queries; most {growths[most]:.2f}x, {most}"
            yield Figure(name, f"{growth:.2f}x", detail, "less than 1.3x", growth < 1.3)


def _against_flink(report: Report) -> Iterator[Figure]:
    rates = {(one.query, one.engine): one.rate for one in report.of("sustained")}
    ratios = [
        rate / rates[query, "flink"]
        for (query, engine), rate in rates.items()
        if engine == "evertide" and (query, "flink") in rates
    ]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        detail = f"geometric mean of {len(ratios)} queries"
        yield Figure("sustained load, against Flink with checkpoints", f"{mean:.2f}x", detail, "at least 1x", mean >= 1)
    taken = {one.engine: one for one in report.of("recovery")}
    if {"evertide", "flink"} <= set(taken):
        ours, theirs = taken["evertide"].median_s, taken["flink"].median_s
        detail = f"{ours:.1f} s against {theirs:.1f} s, at {taken['evertide'].events:,} events"
        yield Figure(
            "recovery after kill -9, against Flink", f"{theirs / ours:.2f}x", detail, "at least 1x", ours <= theirs
        )
