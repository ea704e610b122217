"""`make audit`: what it reports, what it accepts, and that it never waits for an unreachable service."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import pytest
from tools import audit
from tools.audit import Accepted, Finding, check_licences, check_pins, judge, read_accepted, read_advisories

ROOT = Path(__file__).parent.parent
TODAY = date(2026, 11, 1)
REPORT = {
    "dependencies": [
        {"name": "good", "version": "1", "vulns": []},
        {"name": "bad", "version": "2", "vulns": [{"id": "GHSA-1", "fix_versions": ["3"]}]},
        {"name": "odd", "skip_reason": "not found"},
    ]
}


def test_an_advisory_is_a_finding_and_unchecked_packages_are_counted() -> None:
    found, count, total = read_advisories(REPORT)
    assert [(one.package, one.what) for one in found] == [("bad", "GHSA-1")]
    assert (count, total) == (2, 3)
    assert read_advisories(None) == ([], 0, 0)


def test_an_accepted_finding_passes_until_its_date() -> None:
    finding = Finding("bad", "GHSA-1", "2 is affected")
    text = '[[accepted]]\npackage = "Bad"\nwhat = "GHSA-1"\nreason = "not called"\nuntil = 2026-11-01\n'
    accepted = read_accepted(text)
    assert accepted == [Accepted("Bad", "GHSA-1", "not called", TODAY)]
    fail, said = judge([finding], accepted, TODAY)
    assert not fail
    assert "not called" in said[0]
    assert judge([finding], accepted, date(2026, 11, 2))[0][0].why.startswith("the acceptance ended on")
    assert judge([finding], [], TODAY)[0] == [finding]
    with pytest.raises(SystemExit, match="reason"):
        read_accepted(text.replace("not called", ""))
    with pytest.raises(SystemExit, match="a date"):
        read_accepted(text.replace("until = 2026-11-01", ""))


def test_copyleft_licences_and_missing_licences_are_findings() -> None:
    said = {
        "a": "MIT",
        "b": "LGPL-3.0-only",
        "c": "GPL-3.0-or-later",
        "d": "GNU Affero General Public License v3",
        "e": "",
        "f": "Apache-2.0 OR BSD-2-Clause",
        "g": "Other/Proprietary License",
        "h": "AGPL-3.0",
    }
    assert [one.package for one in check_licences(said.items())] == ["c", "d", "e", "g", "h"]


def test_an_unpinned_dependency_is_a_finding() -> None:
    lock = "a==1 \\\n    --hash=sha256:00\n    # via b\nb>=2 \\\n    --hash=sha256:00\nc==3\n"
    found = {one.package: one.why for one in check_pins(lock, ["A>=1", "d[x]>=2", "evertide[all]"])}
    assert sorted(found) == ["b>=2", "c", "d"]
    assert "make lock" in found["d"]


def test_this_projects_pins_and_licences_have_no_findings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lock = "".join((ROOT / name).read_text("utf-8") for name in audit.LOCKS)
    accepted = read_accepted((ROOT / "tools" / "audit.toml").read_text("utf-8"))
    found = [*check_pins(lock, audit.list_requirements(project)), *check_licences(audit.list_installed())]
    assert judge(found, accepted, TODAY)[0] == []


def test_without_a_service_the_audit_prints_one_line_and_passes() -> None:
    """All requests go to a port on which no server listens."""
    nowhere = "http://127.0.0.1:9"
    env = {**os.environ, "HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere, "NO_PROXY": ""}
    command = [sys.executable, "tools/audit.py"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "audit: 0 findings; advisories were not looked up: no service could be reached\n"
