"""The report of a contest: missed goals are said to be missed, plots are drawn, a page takes it between its marks."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.peers import nexmark
from bench.peers.jobs import Job, Measured, Skipped
from bench.peers.publishing import publish
from bench.peers.report import Report, figures, read_report, write_report
from evertide.errors import InvalidInput

PAGE = "# Title\n\n<!-- report -->\nold\n<!-- /report -->\n\nfoot\n"


def measured(
    engine: str, seconds: float, *, measure: str = "refresh", query: str = "q4", size: int = 1_000
) -> Measured:
    return Measured(
        measure=measure, engine=engine, query=query, events=10_000_000, size=size, seconds=[seconds], peak_bytes=1
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
        agreed={"q4": ["spark"]},
    )


@pytest.mark.parametrize(("ours", "is_met"), [(0.1, True), (0.2, False)])
def test_a_goal_is_met_or_missed(ours: float, is_met: bool) -> None:
    by_name = {one.name: one for one in figures(report(ours))}
    against = by_name["refresh after 1,000 on 10,000,000: faster than Spark, recomputed by"]
    assert (against.value, against.met) == (f"{2 / ours:.1f}x", is_met)
    assert by_name["sustained load, against Flink with checkpoints"].value == "0.50x"
    assert by_name["sustained load, against Flink with checkpoints"].met is False


def test_what_is_written_can_be_read_and_published(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("query", ["q3", "q12"])
def test_a_refresh_by_one_event_brings_a_row_that_the_query_reads(query: str) -> None:
    """One of fifty events is a person, which most queries do not read: such a refresh would measure nothing."""
    job = Job(measure="refresh", place="", queries=(query,), histories=(100, 200), chunk=100, sizes=(1,), rounds=60)
    steps = list(nexmark.steps(job, query))
    assert sum(step.is_measured for step in steps) == 120
    for step in steps:
        assert any(rows.num_rows for rows in nexmark.made(query, step.first, step.count).values())
