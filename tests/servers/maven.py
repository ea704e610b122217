"""Jars from Maven for tests, copied once into the user's cache, in a directory named after the request.

If that fails, the tests fail and are not skipped: the error says what is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is needed to run these tests and was not found: install a JDK 17 and Maven")
    return found


def copy_jars(name: str, arguments: Sequence[str], content: bytes = b"") -> Path:
    """The directory of the jars that a goal of Maven copies. `content` is what the goal reads, such as a pom.

    It is created under another name and renamed, so that no other process sees an incomplete one.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evertide-tests"
    stamp = hashlib.sha256(content or " ".join(arguments).encode()).hexdigest()[:16]
    jars = cache / f"{name}-{stamp}"
    if jars.exists():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time: Maven's own cache does not support two
        return jars if jars.exists() else _resolve(cache, jars, arguments)


def _resolve(cache: Path, jars: Path, arguments: Sequence[str]) -> Path:
    made = Path(tempfile.mkdtemp(dir=cache))
    try:
        command = [program("mvn"), "-q", "-B", *arguments, f"-DoutputDirectory={made}/jars"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Maven failed ({' '.join(command)}):\n{done.stdout}{done.stderr}")
        (made / "jars").rename(jars)
    finally:
        shutil.rmtree(made)
    return jars
