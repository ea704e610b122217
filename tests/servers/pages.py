"""Pages for a real browser: examples as `npm run build` builds them, and a server of files."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.servers.npm import npm_folder

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def build_example(name: str) -> Iterator[Path]:
    """The files of an example's page, built in another directory."""
    example = EXAMPLES / name
    folder = npm_folder(name, example / "package.json")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # node looks for its modules in the folders above
        place = Path(scratch) / "page"
        shutil.copytree(example, place, ignore=shutil.ignore_patterns("node_modules", "dist"))
        for command in (["typescript/bin/tsc"], ["vite/bin/vite.js", "build"]):
            called = ["node", str(folder / "node_modules" / command[0]), *command[1:]]
            done = subprocess.run(called, cwd=place, capture_output=True, text=True, timeout=240, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        yield place / "dist"


@contextmanager
def hosted(folder: Path) -> Iterator[int]:
    """The port of a server of the files in a folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
