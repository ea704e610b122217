"""A real server that speaks S3, for tests: `rclone serve s3` over a temporary directory, on a loopback port."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


@contextmanager
def running_s3(root: Path) -> Iterator[S3Server]:
    stopped = S3Server(root, "")
    (root / stopped.bucket).mkdir()
    rclone = Path(sys.executable).with_name("rclone")
    keys = f"{stopped.access_key_id},{stopped.secret_access_key}"
    process = subprocess.Popen(
        [rclone, "serve", "s3", "--config", "", "--addr", "127.0.0.1:0", "--auth-key", keys, root],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            found = re.search(r"Starting s3 server on \[(http://[0-9.]+:[0-9]+)/?\]", line)
            if found:
                yield S3Server(root, found[1])
                return
        raise RuntimeError("rclone did not start")
    finally:
        process.terminate()
        process.wait(START_LIMIT_S)
        process.stderr.close()
