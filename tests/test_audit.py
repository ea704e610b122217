"""`make audit`: what it finds, what it lets pass, and that it never waits for somebody who is not there."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import pytest
from tools import audit
from tools.audit import Accepted, Finding, accepted_in, advisories, judged, licences, pins

ROOT = Path(__file__).parent.parent
TODAY = date(2026, 11, 1)
REPORT = {
    "dependencies": [
        {"name": "good", "version": "1", "vulns": []},
        {"name": "bad", "version": "2", "vulns": [{"id": "GHSA-1", "fix_versions": ["3"]}]},
        {"name": "odd", "skip_reason": "not found"},
    ]
}


def test_an_advisory_is_a_finding_and_who_was_not_looked_at_is_counted() -> None:
    found, count, total = advisories(REPORT)
    assert [(one.package, one.what) for one in found] == [("bad", "GHSA-1")]
    assert (count, total) == (2, 3)
    assert advisories(None) == ([], 0, 0)


def test_what_is_accepted_passes_until_its_day() -> None:
    finding = Finding("bad", "GHSA-1", "2 is affected")
    text = '[[accepted]]\npackage = "Bad"\nwhat = "GHSA-1"\nreason = "not called"\nuntil = 2026-11-01\n'
    accepted = accepted_in(text)
    assert accepted == [Accepted("Bad", "GHSA-1", "not called", TODAY)]
    fail, said = judged([finding], accepted, TODAY)
    assert not fail
    assert "not called" in said[0]
    assert judged([finding], accepted, date(2026, 11, 2))[0][0].why.startswith("it was accepted until")
    assert judged([finding], [], TODAY)[0] == [finding]
    with pytest.raises(SystemExit, match="reason"):
        accepted_in(text.replace("not called", ""))
    with pytest.raises(SystemExit, match="a day"):
        accepted_in(text.replace("until = 2026-11-01", ""))


def test_licences_that_ask_for_our_source_and_none_at_all_are_findings() -> None:
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
    assert [one.package for one in licences(said.items())] == ["c", "d", "e", "g", "h"]


def test_what_is_not_pinned_is_a_finding() -> None:
    lock = "a==1 \\\n    --hash=sha256:00\n    # via b\nb>=2 \\\n    --hash=sha256:00\nc==3\n"
    found = {one.package: one.why for one in pins(lock, ["A>=1", "d[x]>=2", "evertide[all]"])}
    assert sorted(found) == ["b>=2", "c", "d"]
    assert "make lock" in found["d"]


def test_our_own_pins_and_licences_have_no_findings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    accepted = accepted_in((ROOT / "tools" / "audit.toml").read_text("utf-8"))
    found = [*pins(lock, audit.requirements(project)), *licences(audit.installed())]
    assert judged(found, accepted, TODAY)[0] == []


def test_without_a_service_it_says_so_in_one_line_and_passes() -> None:
    """Whatever is asked goes to a port where nobody listens."""
    nowhere = "http://127.0.0.1:9"
    env = {**os.environ, "HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere, "NO_PROXY": ""}
    command = [sys.executable, "tools/audit.py"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "audit: 0 findings; advisories were not looked up, as no service can be reached from here\n"
