"""The short form of `bench replicas`, in a file of its own because it takes longest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.spark import QUICK_JAVA
from tests.test_bench import check_short_form


@pytest.mark.timeout(600)  # several processes with a Spark each, on a machine that may be loaded
def test_the_short_form_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)  # also for executors
    check_short_form("replicas", tmp_path, monkeypatch)
