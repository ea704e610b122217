"""Commands as a user runs them, in this process or in a separate one, and storages for them, made without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from evertide.cli.main import app
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.store.open import open_storage
from tests.pipeline.kit import SETTINGS, engine, open_pipeline

ROOT = Path(__file__).parents[2]

SHOP = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW revenue AS SELECT customer, sum(amount) AS amount FROM orders GROUP BY customer;
"""


def evertide(*args: str | Path, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin, catch_exceptions=False)


def spawned(*args: str | Path) -> subprocess.Popen[str]:
    """Start a command, as the leader of its own process group."""
    command = [sys.executable, "-m", "evertide.cli", *map(str, args)]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    # The pipe is large, as a full one would block the process's transactions.
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pipesize=1 << 20, process_group=0
    )


def document(result: Result) -> Any:
    """Return the one JSON document on standard output."""
    return json.loads(result.stdout)


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def one_error(result: Result, code: int) -> str:
    """Return the one line that a failed command prints on standard error, without a trace."""
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    return line


def order(number: int, customer: str = "ann", amount: int = 10) -> dict[str, Any]:
    return {"id": number, "customer": customer, "amount": amount}


def open_small(path: Path, *views: str) -> Pipeline:
    """Open the shop of the pipeline tests, on a disk."""
    store = open_storage(path, runtime=SystemRuntime(), settings=SETTINGS)
    return open_pipeline(store, engine(*views))


def make_storage(path: Path, transactions: int = 3) -> Path:
    """Create a storage with this many transactions, one order each, and no process."""
    with open_small(path) as p:
        for number in range(1, transactions + 1):
            p.push("orders", [order(number, "bob" if number % 2 else "ann", number)])
            p.commit()
    return path
