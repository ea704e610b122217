"""A process that isolates itself like a worker, and then tries to reach everything, past all tables of functions.

    python -m tests.server.isolation_attempts ENGINE STORAGE SCRATCH SECRET URL

`SECRET` is a file outside of the storage, `URL` an address that answers. It prints the results as JSON by attempt: a
text if the attempt succeeded, otherwise null.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evertide.server.query.isolation import NeededAccess, isolate


def attempt(get: Callable[[], Any]) -> str | None:
    try:
        return str(get())[:100]
    except Exception:  # noqa: BLE001 - every way of failing is the same here
        return None


def main(engine: str, storage: str, scratch: str, secret: str, url: str) -> None:
    isolation = isolate(NeededAccess(storage, scratch, False, engine == "spark", os.environ))
    import socket  # noqa: PLC0415 - nothing is imported before that may start a thread
    import urllib.request  # noqa: PLC0415

    where = urlsplit(url)
    found: dict[str, Any] = {"lacks": isolation.lacks}
    tries: dict[str, Callable[[], Any]] = {
        "python: url": lambda: urllib.request.urlopen(url, timeout=5).read(),
        "python: connect": lambda: socket.create_connection((where.hostname, where.port), 5),
        "python: file": lambda: Path(secret).read_text(),
        "python: list": lambda: [*Path(secret).parent.iterdir()],
        "python: write": lambda: Path(secret).with_name("written").write_text("x"),
        "python: environment of the server": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "python: signal to the server": lambda: os.kill(os.getppid(), 0),
        "a program": lambda: os.popen(f"cat {secret}").read() or 1 / 0,
    }
    tries |= by_spark(scratch, secret, url) if engine == "spark" else by_duckdb(secret)
    found |= {name: attempt(get) for name, get in tries.items()}
    (Path(storage) / "mine").write_text("x")
    (Path(scratch) / "mine").write_text("x")
    print(json.dumps(found), flush=True)
    os._exit(0)


def by_duckdb(secret: str) -> dict[str, Callable[[], Any]]:
    import duckdb  # noqa: PLC0415

    def ask(text: str) -> Any:
        return duckdb.execute(text).fetchall() or 1 / 0

    return {
        "duckdb: file": lambda: ask(f"SELECT * FROM read_text('{secret}')"),
        "duckdb: write": lambda: ask(f"COPY (SELECT 1) TO '{secret}.csv'"),
        "duckdb: list": lambda: ask(f"SELECT * FROM glob('{secret}*')"),
    }


def by_spark(scratch: str, secret: str, url: str) -> dict[str, Callable[[], Any]]:
    from evertide.plan.catalyst.session import open_session  # noqa: PLC0415

    settings = {"spark.driver.defaultJavaOptions": f"-Djava.io.tmpdir={scratch}", "spark.local.dir": scratch}
    spark = open_session(None, "local[1]", settings).spark
    spark._jvm.java.lang.System.clearProperty("javax.xml.accessExternalDTD")
    describe_api = f'<!DOCTYPE a SYSTEM "{url}"><a>1</a>'
    assert spark.range(1).count() == 1
    return {
        "spark: file": lambda: spark.read.text(f"file://{secret}").collect(),
        "spark: url": lambda: spark._jvm.java.net.URL(url).openStream().read(),
        "spark: xpath": lambda: spark.sql(f"SELECT xpath_string('{describe_api}', 'a')").collect(),
        "spark: java": lambda: spark._jvm.java.nio.file.Files.readString(spark._jvm.java.nio.file.Path.of(secret)),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
