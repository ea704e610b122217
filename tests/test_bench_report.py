"""The report of a comparison: missed goals are marked, plots are drawn, and a page receives it between its marks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.peers import nexmark
from bench.peers.jobs import Job, Measured, Skipped
from bench.peers.publication import publish
from bench.peers.report import Report, figures, read_report, together, write_report
from evertide.errors import InvalidInput

PAGE = "# Title\n\n<!-- report -->\nold\n<!-- /report -->\n\nfoot\n"


def measured(
    engine: str, seconds: float, *, measure: str = "refresh", query: str = "q4", events: int = 10_000_000, run: str = ""
) -> Measured:
    return Measured(
        run=run, measure=measure, engine=engine, query=query, events=events, size=1_000, seconds=[seconds], peak_bytes=1
    )


def report(ours: float) -> Report:
    return Report(
        machine={"machine": "one"},
        measured=[
            measured("evertide", ours),
            measured("spark", 2.0),
            measured("evertide", 20.0, measure="sustained"),
            measured("flink", 10.0, measure="sustained"),
        ],
        skipped=[Skipped(engine="flink", query="q6", why="cannot")],
        agreed={"q4": ["spark", "duckdb"]},
    )


@pytest.mark.parametrize(("ours", "is_met"), [(0.1, True), (0.2, False)])
def test_a_goal_is_met_or_missed(ours: float, is_met: bool) -> None:
    by_name = {one.name: one for one in figures(report(ours))}
    against = by_name["refresh after 1,000 on 10,000,000: faster than Spark, recomputed by"]
    assert (against.value, against.met) == (f"{2 / ours:.1f}x", is_met)
    assert by_name["sustained load, against Flink with checkpoints"].value == "0.50x"
    assert by_name["sustained load, against Flink with checkpoints"].met is False


def test_a_written_report_can_be_read_and_published(tmp_path: Path) -> None:
    made = report(0.2)
    write_report(made, tmp_path / "report")
    assert read_report(tmp_path / "report") == made
    text = (tmp_path / "report" / "report.md").read_text()
    assert "**missed**" in text
    assert "q6: without Flink: cannot" in text
    for plot in (tmp_path / "report").glob("*.svg"):
        assert ET.fromstring(plot.read_text()).tag.endswith("svg")
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    publish(tmp_path / "report", page)
    publish(tmp_path / "report", page)
    found = page.read_text()
    assert found.startswith("# Title\n")
    assert found.endswith("\n\nfoot\n")
    assert "old" not in found
    assert found.count("### Goals") == 1
    assert "(images/peers-sustained.svg)" in found
    assert (tmp_path / "images" / "peers-sustained.svg").exists()


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n")
    with pytest.raises(InvalidInput, match="report"):
        publish(tmp_path, page)
    assert page.read_text() == "# Title\n"


def test_a_run_that_does_not_exist_cannot_be_extended(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has no report"):
        read_report(tmp_path)


def test_ratios_are_within_one_run(tmp_path: Path) -> None:
    """A ratio of two runs would say more about the machine than about the engines."""
    again = Report(
        machine={"machine": "two"},
        measured=[measured("evertide", 0.1, run="b"), measured("evertide", 0.3, events=1_000_000, run="b")],
        skipped=[Skipped(engine="duckdb", query="q4", why="has another result")],
        agreed={"q4": ["flink"], "q5": []},
    )
    found = together([report(0.2), again])
    assert [(one.measure, one.engine, one.seconds) for one in found.measured] == [
        ("sustained", "evertide", [20.0]),
        ("sustained", "flink", [10.0]),
        ("refresh", "evertide", [0.1]),
        ("refresh", "evertide", [0.3]),
    ]
    assert (found.machine, found.agreed) == ({"machine": "two"}, {"q4": ["flink", "spark"], "q5": []})
    assert together([found]) == found
    kept = together([found, report(0.5)]).of("refresh")
    assert [one.seconds for one in kept if one.events == 1_000_000] == [[0.3]], "another history is another case"


def test_a_run_may_come_in_pieces() -> None:
    """A later piece may add the slowest engine. It replaces earlier measurements of the same run."""

    def piece(*found: Measured) -> Report:
        return Report(machine={}, measured=[*found], skipped=[], agreed={})

    first = piece(*(measured(engine, 1.0, run="a") for engine in ("evertide", "spark")))
    found = together([first, piece(*(measured(engine, 2.0, run="a") for engine in ("spark", "duckdb")))])
    assert [(one.engine, one.seconds) for one in found.measured] == [
        ("evertide", [1.0]),
        ("spark", [2.0]),
        ("duckdb", [2.0]),
    ]
    assert [one.engine for one in together([found, piece(measured("spark", 3.0, run="b"))]).measured] == ["spark"]


def test_growth_is_within_one_run() -> None:
    """Another run may be on a slower machine."""
    cases = [("q12", 0.2, "b"), ("q2", 0.5, "a"), ("q2", 0.4, "b")]
    found = Report(
        machine={},
        measured=[
            *(measured("evertide", 0.1, query=query, events=1_000_000, run="a") for query in ("q2", "q12")),
            *(measured("evertide", taken, query=query, run=run) for query, taken, run in cases),
        ],
        skipped=[],
        agreed={},
    )
    [growth] = [one for one in figures(found) if "growth" in one.name]
    assert (growth.value, growth.met) == ("5.00x", False)
    assert growth.detail == "geometric mean of 1 queries; most 5.00x, q2"
    assert [one.query for one in found.of("refresh")] == ["q2", "q2", "q2", "q12", "q12"], "q2 sorts before q12"


def test_an_engine_that_recomputes_has_one_round_on_a_long_history_except_for_one_size() -> None:
    """A recomputation takes as long as the history: up to a minute each for 100 million events."""
    job = Job(
        measure="refresh",
        place="",
        queries=("q12",),
        histories=(1_000_000, 100_000_000),
        sizes=(1, 1_000, 100_000),
        warm_up=1,
        rounds=3,
        is_recomputed=True,
    )
    refreshes = [step for step in nexmark.steps(job) if step.query]
    assert [step.is_measured for step in refreshes] == [False] + [True] * 12
    rounds = Counter((step.history, step.size) for step in refreshes if step.is_measured)
    assert [*rounds.values()] == [3, 3, 1, 1, 3, 1]


@pytest.mark.parametrize("queries", [("q3",), ("q12",), ("q3", "q12")])
def test_a_refresh_by_one_event_inserts_a_row_that_the_query_reads(queries: tuple[str, ...]) -> None:
    """One of fifty events is a person, which most queries do not read: such a refresh would measure nothing."""
    job = Job(measure="refresh", place="", queries=queries, histories=(100, 200), chunk=100, sizes=(1,), rounds=20)
    steps = list(nexmark.steps(job))
    following = 0
    for step in steps:
        assert step.first >= following, "no event occurs twice"
        following = step.first + step.count
        if step.query:
            found = nexmark.make_tables(nexmark.inputs_of(step.query), step.first, step.count)
            assert any(rows.num_rows for rows in found.values())
    for query in queries:
        assert sum(step.is_measured and step.query == query for step in steps) == 40
