"""X12: one system call fails once, or a few times. The process continues by itself, and no data is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.faulted import FAULTS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("this machine has no C compiler")
    made = tmp_path / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, HERE / "faults.c", "-ldl"], check=True)
    return made


def test_x12_passing_io_errors_need_no_restart(shim: Path, tmp_path: Path) -> None:
    """EIO from the system itself. Without the retries a directory's fsync stalled for good, and four failed preads were
    reported as `malformed`.
    """
    plan = tmp_path / "plan"
    plan.write_text("")
    command = [sys.executable, "-m", "tests.store.faulted", str(tmp_path)]
    given = {**os.environ, "LD_PRELOAD": str(shim), "FAULTS": str(plan)}
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.pop() == "300 read, 0 faults left"
    for (call, part, _), line in zip(FAULTS, lines, strict=True):
        assert line == f"{call} {part} True done done done [('a', 30)] running"
