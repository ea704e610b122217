"""A real server that speaks S3, for tests: `rclone serve s3` over a temporary directory, on a loopback port."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evertide.runtime import SystemRuntime

START_LIMIT_S = 30.0


@dataclass(frozen=True)
class S3Server:
    """The bucket is the directory `root / bucket`."""

    root: Path
    endpoint: str
    bucket: str = "evertide"
    access_key_id: str = "test-access-key"
    secret_access_key: str = field(default="test-secret-that-nobody-may-see", repr=False)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
        }

    def environment(self, endpoint: str = "") -> dict[str, str]:
        """The environment for processes: the options of this server, or of a proxy in front of it."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_ENDPOINT": endpoint or self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }


@contextmanager
def running_s3(root: Path) -> Iterator[S3Server]:
    stopped = S3Server(root, "")
    (root / stopped.bucket).mkdir()
    rclone = Path(sys.executable).with_name("rclone")
    keys = f"{stopped.access_key_id},{stopped.secret_access_key}"
    # Its output goes to a file: a full pipe would block it, also while it stops.
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [rclone, "serve", "s3", "--config", "", "--addr", "127.0.0.1:0", "--auth-key", keys, root],
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        with process:
            try:
                yield S3Server(root, _endpoint(process, Path(log.name)))
            finally:
                process.kill()


def _endpoint(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address at which it listens, once it prints that."""
    runtime = SystemRuntime()
    deadline_s = runtime.monotonic_s() + START_LIMIT_S
    while not (found := re.search(r"Starting s3 server on \[(http://[0-9.]+:[0-9]+)/?\]", log.read_text())):
        if process.poll() is not None or runtime.monotonic_s() > deadline_s:
            raise RuntimeError(f"rclone did not start:\n{log.read_text()}")
        runtime.sleep_s(0.02)
    return found[1]
