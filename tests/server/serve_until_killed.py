"""A process that serves and runs a pipeline until it is killed.

    python -m tests.server.serve_until_killed STORAGE

It prints the address that it listens on.
"""

from __future__ import annotations

import sys
from pathlib import Path

from evertide.runtime import SystemRuntime
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.pipeline.kit import engine, open_pipeline

SETTINGS = Settings(checkpoint_interval_s=0.2, garbage_interval_s=0.3, maintenance_interval_s=0.1)


def main(path: Path) -> None:
    store = open_storage(path, runtime=SystemRuntime(), settings=SETTINGS)
    with open_pipeline(store, engine(), settings=SETTINGS, threads=True) as pipeline, Server() as server:
        server.start(make_app(pipeline))
        print(server.host, server.port, flush=True)
        pipeline.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
