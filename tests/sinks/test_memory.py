"""The memory of a process that delivers a large content: it depends on the size of a piece, not of the content."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.kit import ROOT
from tests.sinks.large import MIB, ROWS, TEXT_BYTES

BATCHES = 30
BOUND = 192 * MIB
ALLOCATING = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
"""Other allocators reserve more than they use, and the limit counts that."""


def large(*given: object) -> Any:
    command = [sys.executable, "-m", "tests.sinks.large", *map(str, given)]
    env = {**os.environ, **ALLOCATING, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


@pytest.mark.skipif(sys.platform != "linux", reason="the bound on memory is Linux's")
def test_a_content_is_delivered_with_less_memory_than_it_takes(tmp_path: Path) -> None:
    """As one piece the content does not fit, which proves the limit. The sink then stalls, and the process
    continues.
    """
    assert BATCHES * ROWS * TEXT_BYTES > 1.15 * BOUND
    large("fill", tmp_path / "storage", BATCHES)
    shutil.copytree(tmp_path / "storage", tmp_path / "same")
    whole = large("deliver", tmp_path / "same", "files", json.dumps({"path": "whole"}), BOUND, 10**12)
    assert whole == {"state": "stalled", "behind": BATCHES + 1}
    pieces = large("deliver", tmp_path / "storage", "files", json.dumps({"path": "pieces"}), BOUND)
    assert pieces == {"state": "running", "behind": 0}


@pytest.mark.skipif(sys.platform != "linux", reason="the bound on memory is Linux's")
def test_a_large_transaction_is_delivered_with_less_memory_than_it_takes(tmp_path: Path) -> None:
    """As above, but the sink has received the content before the transaction."""
    options = json.dumps({"path": "lake"})
    for name in ("storage", "same"):
        (tmp_path / name).mkdir()
        large("follow", tmp_path / name / "s", "files", options, BATCHES)
    whole = large("deliver", tmp_path / "same" / "s", "files", options, BOUND, 10**12)
    assert whole == {"state": "stalled", "behind": 1}
    pieces = large("deliver", tmp_path / "storage" / "s", "files", options, BOUND)
    assert pieces == {"state": "running", "behind": 0}


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is Linux's")
@pytest.mark.parametrize("key", ["", "id"], ids=["multiset", "key"])
def test_the_memory_of_a_delta_sink_does_not_depend_on_the_removed_rows(tmp_path: Path, key: str) -> None:
    """Seen to fail: the merge of the Delta package took 205 MiB for the smaller one, and 397 MiB for the larger one."""
    for count in (500_000, 1_000_000):
        place = tmp_path / str(count)
        place.mkdir()
        found = large("remove", place, key, count)
        assert found["rows"] == count // 100
        assert found["bytes"] < 96 * MIB
