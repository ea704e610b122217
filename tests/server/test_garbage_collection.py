"""A server runs Python's garbage collector rarely, and never over the objects that it started with."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import gc, json
import duckdb
from evertide.server.server import tune_garbage_collection
before = gc.get_threshold()
tune_garbage_collection()
cycle = []
cycle.append(cycle)
del cycle
print(json.dumps([before, gc.get_threshold(), gc.get_freeze_count(), gc.collect()]))
"""


def test_garbage_collection_is_rare_and_still_finds_new_objects() -> None:
    """In a separate process, as the setting applies to the whole process."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True)
    assert done.stderr == b"", "DuckDB reports objects that were never freed"
    before, after, frozen, found = json.loads(done.stdout)
    assert after[0] > 10 * before[0]
    assert frozen > 1_000
    assert found >= 1
