"""If a machine lacks something, setup prints one sentence that ends with the remedy, before it creates anything."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PREFLIGHT = ROOT / "tools" / "preflight.sh"

JAVA_11 = 'openjdk version "11.0.22" 2024-01-16\nOpenJDK Runtime Environment (build 11.0.22+7)'
JAVA_8 = 'java version "1.8.0_392"\nJava(TM) SE Runtime Environment (build 1.8.0_392-b08)'
JAVA_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK 64-Bit Server VM (build 17.0.15+6, mixed mode)'
JAVA_25 = 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16'


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def java(path: Path, says: str) -> Path:
    return program(path, f"echo '{says}' >&2")


def python(path: Path, version: str, has: str = "import ensurepip, venv") -> Path:
    """An interpreter as the preflight calls it: for its version, or to import."""
    return program(path, f'case $2 in\n"{has}") ;;\n*version_info*) echo {version} ;;\n*) exit 1 ;;\nesac')


def preflight(what: str, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    shell = shutil.which("sh")
    assert shell is not None
    run = [shell, str(PREFLIGHT), what]
    return subprocess.run(run, env={"PATH": str(path), **env}, capture_output=True, text=True, check=False)


def refusal_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a refusal."""
    assert done.returncode != 0
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("evertide: ")
    assert line.endswith(".")
    return line


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    python(tmp_path / "python3", "3.9")
    line = refusal_of(preflight("python", tmp_path))
    assert "Python 3.11 or newer is needed" in line
    assert "3.9" in line
    assert "make setup PYTHON=" in line


@pytest.mark.parametrize("version", ["2.7", "3.2", "3.10", "4.0"])
def test_a_requested_python_is_not_replaced_by_another(tmp_path: Path, version: str) -> None:
    python(tmp_path / "python3", "3.12")
    line = refusal_of(preflight("python", tmp_path, PYTHON=str(python(tmp_path / "old python", version))))
    assert f"old python is Python {version}" in line


def test_a_missing_python_is_refused(tmp_path: Path) -> None:
    assert "newest seen: none" in refusal_of(preflight("python", tmp_path))
    assert "does not run" in refusal_of(preflight("python", tmp_path, PYTHON="python9"))


def test_the_first_python_that_runs_and_is_new_enough_is_used(tmp_path: Path) -> None:
    program(tmp_path / "python3.13", "echo 'not installed here' >&2; exit 127")  # as a version manager's stub does
    python(tmp_path / "python3.12", "3.12")
    python(tmp_path / "python3", "3.11")
    done = preflight("python", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "python3.12\n", "")


def test_a_python_without_venv_has_its_own_message(tmp_path: Path) -> None:
    python(tmp_path / "python3.11", "3.11", has="nothing")
    line = refusal_of(preflight("python", tmp_path))
    assert "ensurepip" in line
    assert "apt install python3.11-venv" in line


def test_a_missing_java_is_refused(tmp_path: Path) -> None:
    line = refusal_of(preflight("java", tmp_path))
    assert "Spark needs Java 17 or newer" in line
    assert "apt install" in line
    assert "JAVA_HOME" in line


@pytest.mark.parametrize(("says", "version"), [(JAVA_11, "11"), (JAVA_8, "8")])
def test_a_java_that_is_too_old_is_refused(tmp_path: Path, says: str, version: str) -> None:
    java(tmp_path / "java", says)
    assert f"'java' is Java {version};" in refusal_of(preflight("java", tmp_path))


@pytest.mark.parametrize("says", [JAVA_17, JAVA_25])
def test_a_java_that_is_new_enough_is_accepted(tmp_path: Path, says: str) -> None:
    java(tmp_path / "java", says)
    done = preflight("java", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_java_home_goes_before_path_as_it_does_for_spark(tmp_path: Path) -> None:
    java(tmp_path / "java", JAVA_17)
    java(tmp_path / "java 11" / "bin" / "java", JAVA_11)
    line = refusal_of(preflight("java", tmp_path, JAVA_HOME=str(tmp_path / "java 11")))
    assert "java 11/bin/java' is Java 11" in line
    assert "unset it" in line
    assert "does not run" in refusal_of(preflight("java", tmp_path, JAVA_HOME=str(tmp_path / "nowhere")))


def test_a_java_that_fails_or_prints_nothing_is_refused(tmp_path: Path) -> None:
    program(tmp_path / "java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    assert "does not run" in refusal_of(preflight("java", tmp_path))
    java(tmp_path / "java", "hello")
    assert "does not print its version" in refusal_of(preflight("java", tmp_path))


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_setup_stops_at_the_refusal_and_leaves_no_files(tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    (clone / "tools").mkdir(parents=True)
    for name in ("Makefile", "tools/preflight.sh", "pyproject.toml", "requirements.lock", "requirements-dev.lock"):
        shutil.copy(ROOT / name, clone / name)
    java(tmp_path / "java" / "bin" / "java", JAVA_17)
    old = python(tmp_path / "old", "3.9")
    make = ["make", "setup", f"PYTHON={old}"]
    env = {"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path / "java")}
    done = subprocess.run(make, cwd=clone, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"PYTHON={old} is Python 3.9" in done.stderr
    assert not (clone / ".venv").exists()


def test_the_lock_files_have_no_pin_twice_and_users_get_no_tools_of_developers() -> None:
    """Fails if `make lock` writes everything into one of the files."""
    users, developers = (set(read_pins(name)) for name in ("requirements.lock", "requirements-dev.lock"))
    assert users.isdisjoint(developers)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    tools = {requirement.partition(">")[0] for requirement in groups["dev"]}
    assert tools == {pin.partition("==")[0] for pin in developers} & tools
    build = {requirement.partition(">")[0] for requirement in groups["build"]}
    assert build == {pin.partition("==")[0] for pin in users} & build


def read_pins(name: str) -> list[str]:
    """The versions of packages, with their markers."""
    lines = (ROOT / name).read_text("utf-8").splitlines()
    return [line.removesuffix(" \\") for line in lines if line[:1].isalnum()]
