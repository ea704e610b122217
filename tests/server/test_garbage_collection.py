"""A process that serves looks for garbage seldom, and never at what it started with."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import gc, json
import duckdb
from evertide.server.http.garbage_collection import tune_garbage_collection
before = gc.get_threshold()
tune_garbage_collection()
cycle = []
cycle.append(cycle)
del cycle
print(json.dumps([before, gc.get_threshold(), gc.get_freeze_count(), gc.collect()]))
"""


def test_it_looks_seldom_and_still_finds_what_is_new() -> None:
    """In a process of its own: it is for the whole process."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True)
    assert done.stderr == b"", "DuckDB tells what is never taken back"
    before, after, frozen, found = json.loads(done.stdout)
    assert after[0] > 10 * before[0]
    assert frozen > 1_000
    assert found >= 1
