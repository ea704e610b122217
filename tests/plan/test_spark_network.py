"""Where Spark's own services listen, and which clients they answer; `tests.server.access.test_x16` scans a running
pipeline.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.errors import InvalidInput
from evertide.pipeline.pipeline import Pipeline
from evertide.plan.catalyst import session as sessions
from evertide.plan.catalyst.network import find_exposure
from evertide.plan.program.program import Program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = {"spark.master": "local[2,4]", "spark.driver.host": "10.0.0.1"}
CLUSTER = {"spark.master": "spark://10.0.0.1:7077", "spark.driver.host": "10.0.0.1"}


@pytest.mark.parametrize(
    ("conf", "is_open"),
    [
        (LOCAL, True),
        ({**LOCAL, "spark.driver.bindAddress": "0.0.0.0"}, True),
        ({**LOCAL, "spark.driver.bindAddress": "127.0.0.1"}, False),
        ({**LOCAL, "spark.driver.host": "localhost"}, False),
        ({**LOCAL, "spark.driver.bindAddress": "[::1]"}, False),
        ({**LOCAL, "spark.authenticate": "true"}, False),
        (CLUSTER, True),
        ({**CLUSTER, "spark.driver.bindAddress": "127.0.0.1"}, True),
        ({**CLUSTER, "spark.authenticate": "false"}, True),
        ({**CLUSTER, "spark.authenticate": "true"}, False),
    ],
)
def test_a_session_without_authentication_is_detected_by_its_settings(conf: dict[str, str], is_open: bool) -> None:
    found = find_exposure(conf)
    assert (found is not None) == is_open
    assert found is None or "spark.authenticate" in found


def test_status_warns_of_a_session_without_authentication(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "CREATE TABLE t (a BIGINT)"
    with Pipeline.open(script, tmp_path / "a", spark=spark) as p:
        assert p.status().problems == ()
    monkeypatch.setattr(sessions, "find_exposure", lambda _: "all may run code in it")
    with Pipeline.open(script, tmp_path / "b", spark=spark) as p:
        [problem] = p.status().problems
        assert (problem.state, problem.error_code, problem.why) == (
            "warning",
            "spark_open",
            "all may run code in it",
        )
        assert "spark.authenticate" in problem.remedy
        assert p.status().state == "running"


def test_a_standalone_master_without_a_secret_is_refused_with_what_to_set() -> None:
    """Fails without the check of `spark.authenticate`: Spark would wait for that master."""
    code = "from evertide.plan.catalyst.session import open_session; open_session(None, 'spark://127.0.0.1:1')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "SetupIncomplete" in done.stderr
    assert "spark.authenticate.secret for its master and workers" in done.stderr


def test_a_view_with_xpath_is_refused_where_a_row_could_make_the_jvm_fetch_a_dtd(spark: SparkSession) -> None:
    script = "CREATE TABLE t (x STRING); CREATE MATERIALIZED VIEW v AS SELECT xpath_string(x, 'a') AS a FROM t"
    Program(spark, script)
    system, name = spark._jvm.java.lang.System, "javax.xml.accessExternalDTD"
    system.clearProperty(name)
    try:
        with pytest.raises(InvalidInput, match=r"xpath_string\(\) reads .* -Djavax.xml.accessExternalDTD= in spark"):
            Program(spark, script)
        Program(spark, script.replace("xpath_string(x, 'a')", "from_xml(x, 'a STRING')"))
    finally:
        system.setProperty(name, "")


START = """
from evertide.errors import SetupIncomplete
from evertide.plan.catalyst.session import open_session
try:
    session = open_session(None, {master!r}, {{"spark.driver.memory": {memory!r}}}, is_quiet=True)
    print(session.spark.range(3).count())
    session.close()
except SetupIncomplete as error:
    print("refused:", error.why)
"""


@pytest.mark.parametrize(("memory", "expected"), [("1g", "3"), ("1x", "Spark did not start: .*Invalid maximum heap")])
def test_a_quiet_start_prints_nothing_and_an_error_has_the_last_lines(memory: str, expected: str) -> None:
    """Fails if the JVM prints to the standard error of the process."""
    code = START.format(master="local[1]", memory=memory)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert re.search(expected, done.stdout.strip()), done.stdout
