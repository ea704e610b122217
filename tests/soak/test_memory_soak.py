"""X13: a view whose rows together need more memory than the JVM has. Each error for lack of memory takes long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.rounds import Soak

RUN = """
import sys
import evertide as et
from evertide.errors import SparkAway

SCRIPT = '''
CREATE TABLE t (k INT NOT NULL, PRIMARY KEY (k));
CREATE MATERIALIZED VIEW good AS SELECT count(*) AS n FROM t;
CREATE MATERIALIZED VIEW bad AS SELECT size(collect_list(array_repeat(k, 150000))) AS n FROM t GROUP BY k % 2;
'''
with et.Pipeline.open(SCRIPT, sys.argv[1], settings=et.Settings(retry_view_s=1e9)) as p:
    p.push("t", [{"k": k} for k in range(1600)])
    tries, attempt = 1, p.commit
    while True:
        try:
            attempt()
            break
        except SparkAway:
            tries, attempt = tries + 1, p.advance
    assert tries == 3, tries
    assert p.view("good").to_pylist() == [{"n": 1600}]
    [failed] = [one for one in p.status().collections if one.state == "failed"]
    assert failed.name == "bad" and "OutOfMemoryError" in failed.why and "of the 1600 rows together" in failed.why
    p.push("t", deletes=list(range(20, 1600)))
    p.commit()
    p.retry("bad")
    assert p.view("bad").to_pylist() == [{"n": 10}, {"n": 10}]
"""


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_x13_a_view_that_needs_more_memory_than_there_is_fails_alone(soak: Soak, tmp_path: Path) -> None:
    """Every attempt takes some 20 s, so the search for rows must end early."""
    java = "--driver-memory 512m --driver-java-options -XX:+UseSerialGC pyspark-shell"

    def run_round(seed: int) -> str:
        command = [sys.executable, "-c", RUN, str(tmp_path / str(seed))]
        env = {**os.environ, "PYSPARK_SUBMIT_ARGS": java}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return "the view failed at the third try"

    soak.rounds("memory", run_round)
