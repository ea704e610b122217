"""What a worker can reach, whatever code runs in it; `tests.server.isolation_attempts` makes the attempts."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evertide.server.query import isolation
from evertide.server.query.isolation import NeededAccess, isolate
from tests.cli.kit import ROOT
from tests.servers.lure import Lure, running_lure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation is Linux's")


@pytest.fixture(scope="module")
def lure() -> Iterator[Lure]:
    with running_lure() as server:
        yield server


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_x16_a_worker_reaches_nothing_but_its_storage(engine: str, lure: Lure, tmp_path: Path) -> None:
    """Fails without any one step of `isolate`."""
    for name in ("storage", "scratch", "elsewhere"):
        (tmp_path / name).mkdir()
    secret = tmp_path / "elsewhere" / "secret"
    secret.write_text("file-secret")
    places = [str(tmp_path / "storage"), str(tmp_path / "scratch"), str(secret), lure.url]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.server.isolation_attempts", engine, *places],
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
            "TMPDIR": str(tmp_path / "scratch"),
        },
        cwd=tmp_path / "scratch",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if found.pop("lacks"):
        pytest.skip(f"this system does not allow all of it: {done.stdout}")
    assert {name: got for name, got in found.items() if got is not None} == {}
    assert lure.asked == []
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]
    assert (tmp_path / "storage" / "mine").exists()


def test_an_isolation_step_that_the_system_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    found = isolate(NeededAccess("/s", "/c", has_network=False, has_processes=True, environment={}))
    assert (found.has, set(found.lacks)) == ({}, {"files", "network", "privileges"})
    found = isolate(NeededAccess("s3://b/p", "/c", has_network=True, has_processes=False, environment={}))
    assert "storage" in found.lacks["network"]
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    monkeypatch.setattr(
        isolation, "_restrict_files", lambda _: None
    )  # otherwise the tests that follow would be isolated
    monkeypatch.setattr(isolation, "_drop_privileges", lambda: None)
    found = isolate(NeededAccess("/s", "/c", has_network=False, has_processes=False, environment={}))
    assert "pdp11" in found.lacks["network"]
