"""npm packages for tests: installed once, in the user's cache, in a directory named after the request."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

INSTALL = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]


def npm_folder(name: str, package: Path) -> Path:
    """The folder with `node_modules` as package.json defines it. Skips the test if this machine has no node."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip(f"node and npm are not installed: {name} cannot run")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evertide-tests"
    folder = cache / f"{name}-{hashlib.sha256(package.read_bytes()).hexdigest()[:16]}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=cache))
        shutil.copy(package, made)
        done = subprocess.run(INSTALL, cwd=made, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        with suppress(OSError):  # another process was first
            made.rename(folder)
    return folder
