"""Views from scratch on a real Spark cluster: an executor is killed, or executors lack this package."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.driver import QUERIES
from tests.pipeline.wide_faults import STATE, Control, Rule
from tests.server.kit import until
from tests.servers.cluster import SparkCluster

ROOT = Path(__file__).parents[2]
LACKING = {
    "without the package": "import sys\nsys.modules['evertide'] = None\n",
    "of another version": "import evertide.version\nevertide.version.__version__ = '0.0.1'\n",
}
"""What Python executes in executors when it starts."""
pytestmark = pytest.mark.timeout(900)


class Run:
    """A process, and an executor's view of the modules: those in a folder come first."""

    def __init__(self, cluster: SparkCluster, scratch: Path, control: Control, modules: Path) -> None:
        command = [sys.executable, "-m", "tests.cluster.wide", cluster.master, scratch / "s", control.folder]
        with (scratch / "errors").open("w") as errors:
            self.process = subprocess.Popen(
                [*map(str, command)],
                cwd=ROOT,
                env=cluster.env(executorEnv_PYTHONPATH=f"{modules}:{ROOT}"),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._errors = scratch / "errors"

    def finish(self) -> tuple[dict[str, Any], str]:
        """The result, and what was logged."""
        out, _ = self.process.communicate()
        errors = self._errors.read_text()
        assert self.process.returncode == 0, errors[-3000:]
        return json.loads(out.splitlines()[-1]), errors


@pytest.fixture
def control(tmp_path: Path) -> Control:
    (tmp_path / "control").mkdir()
    return Control(tmp_path / "control")


def check_result(found: dict[str, Any]) -> None:
    assert (found["hydrated"], found["failed"]) == (True, [])
    assert found["left"] == dict.fromkeys(QUERIES, 0)


def test_x15_an_executor_that_is_killed_in_a_wide_step_is_replaced(
    cluster: SparkCluster, tmp_path: Path, control: Control
) -> None:
    """The executor is killed after a task on it has begun to write state, and cannot go on."""
    control.set_rules(Rule("hold", "put", STATE, 1))
    run = Run(cluster, tmp_path, control, tmp_path)
    with run.process:
        try:
            until(lambda: control.read_events("hold") or run.process.poll() is not None)
            [event] = control.read_events("hold")
            above = {each.pid for each in psutil.Process(event.process).parents()}
            [executor] = [each for worker in cluster.workers for each in worker.executors() if each.pid in above]
            executor.kill()
            control.clear()
            found, logged = run.finish()
        finally:
            control.clear()
            with suppress(ProcessLookupError):
                run.process.kill()
    check_result(found)
    assert found["wide"] > 0
    assert "executors could not compute" not in logged


@pytest.mark.parametrize("lacking", LACKING)
def test_the_driver_computes_views_if_executors_lack_the_package(
    cluster: SparkCluster, tmp_path: Path, control: Control, lacking: str
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(LACKING[lacking])
    run = Run(cluster, tmp_path, control, modules)
    with run.process:
        try:
            found, logged = run.finish()
        finally:
            with suppress(ProcessLookupError):
                run.process.kill()
    check_result(found)
    assert found["wide"] == 0
    assert "views are computed in the driver, without executors: they" in logged
    assert ("version 0.0.1 of this package" if lacking == "of another version" else "evertide") in logged
