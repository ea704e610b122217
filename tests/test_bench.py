"""The short form of every benchmark runs and reports. `make bench` measures speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS, main


def check_short_form(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTIDE_BENCH_DIR", str(directory))
    report = directory / "figures.json"
    assert main([name, "--short", "--json", str(report)]) == 0
    figures = json.loads(report.read_text())
    assert figures
    assert all(figure["name"] and figure["value"] and figure["detail"] for figure in figures)


@pytest.mark.timeout(600)  # several processes with a Spark each, on a machine that may be loaded
@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "replicas"])
def test_the_short_form_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spark: object
) -> None:
    check_short_form(name, tmp_path, monkeypatch)
    assert "Evertide benchmarks" in capsys.readouterr().out
