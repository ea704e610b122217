"""A process that runs a pipeline fed from PostgreSQL, until it is killed, or kills itself at a given moment.

python -m tests.sources.postgres.worker STORAGE DSN SLOT TABLES [MOMENT NUMBER]

TABLES is `notes` (without a key, so that no row can be doubled unnoticed) or `bench` (those of pgbench). MOMENT is one
of MOMENTS: at its NUMBER-th occurrence, the process ends, as by kill -9. It prints a line for each transaction that it
committed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psycopg
import pyarrow as pa

from evertide.errors import EvertideError
from evertide.journal.records import Bound
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.input.input_reader import InputReader
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.transaction.runner import Runner
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.sources.postgres.positions import PostgresPosition
from evertide.store.open import open_storage
from tests.kit.small_engine import SmallEngine

SETTINGS = Settings(checkpoint_interval_s=0.5, inline_bytes_max=512, rollup_every_diffs=8, transaction_rows_max=2000)
MOMENTS = ("staged", "bound", "acknowledged", "committed", "next")
Tables = dict[str, tuple[pa.Schema, tuple[str, ...]]]
NOTES: Tables = {"notes": (pa.schema([("text", pa.string())]), ())}
INT = pa.int32()
BENCH: Tables = {
    "pgbench_accounts": (pa.schema([pa.field("aid", INT, nullable=False), ("bid", INT), ("abalance", INT)]), ("aid",)),
    "pgbench_tellers": (pa.schema([pa.field("tid", INT, nullable=False), ("bid", INT), ("tbalance", INT)]), ("tid",)),
    "pgbench_branches": (pa.schema([pa.field("bid", INT, nullable=False), ("bbalance", INT)]), ("bid",)),
    "pgbench_history": (pa.schema([("tid", INT), ("bid", INT), ("aid", INT), ("delta", INT)]), ()),
}
TABLES = {"notes": NOTES, "bench": BENCH}


def open_worker(storage: Path, dsn: str, slot: str, tables: str) -> Pipeline:
    options = {"url": dsn, "slot": slot, "idle_interval": "0.3", "fragment_rows": "500"}
    declared = [DeclaredTable(name, schema, key, "postgres", options) for name, (schema, key) in TABLES[tables].items()]
    runtime = SystemRuntime()
    opened = open_storage(storage, runtime=runtime, settings=SETTINGS)
    return Pipeline(SmallEngine(declared, []), opened, base=storage, runtime=runtime, settings=SETTINGS)


class _Death:
    def __init__(self, moment: str, number: int) -> None:
        self._moment = moment
        self._left = number

    def comes(self, moment: str) -> bool:
        """Whether the process must end now."""
        if moment == self._moment:
            self._left -= 1
        return moment == self._moment and self._left == 0

    def at(self, moment: str) -> None:
        if self.comes(moment):
            os.kill(os.getpid(), signal.SIGKILL)


def _arm(death: _Death, dsn: str, slot: str) -> None:
    """Install the moments, in their order in a transaction."""
    bind, complete, acknowledge = Runner.bind, Runner.complete, InputReader.acknowledge

    def bind_and_die(self: Runner, inputs: dict[str, object]) -> Bound:
        has_rows = any(given.fragments for given in inputs.values())  # type: ignore[attr-defined]
        if has_rows and death.comes("staged"):
            SystemRuntime().sleep_s(0.5)  # gives a source that confirms too early the time to do so
            os.kill(os.getpid(), signal.SIGKILL)
        made = bind(self, inputs)  # type: ignore[arg-type]
        if has_rows:
            death.at("bound")
        return made

    def acknowledge_and_die(self: InputReader, made: Bound, *, is_staged: bool) -> None:
        acknowledge(self, made, is_staged=is_staged)
        if is_staged and made.inputs[slot].fragments and death.comes("acknowledged"):
            _await_confirmed(dsn, slot, PostgresPosition.of(made.inputs[slot].after, slot).lsn)
            os.kill(os.getpid(), signal.SIGKILL)

    def complete_and_die(self: Runner, made: Bound, read: object = None) -> None:
        complete(self, made, read)  # type: ignore[arg-type]
        if made.inputs[slot].fragments:
            death.at("committed")

    Runner.bind, Runner.complete = bind_and_die, complete_and_die  # type: ignore[method-assign,assignment]
    InputReader.acknowledge = acknowledge_and_die  # type: ignore[method-assign,assignment]


def _await_confirmed(dsn: str, slot: str, lsn: str) -> None:
    query = f"SELECT confirmed_flush_lsn >= '{lsn}'::pg_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
    with psycopg.connect(dsn, autocommit=True) as connection:
        while lsn != "0/0" and connection.execute(query).fetchone() != (True,):
            SystemRuntime().sleep_s(0.01)


def main(storage: str, dsn: str, slot: str, tables: str, moment: str = "", number: str = "0") -> None:  # noqa: PLR0917
    death = _Death(moment, int(number))
    _arm(death, dsn, slot)
    runtime = SystemRuntime()
    with open_worker(Path(storage), dsn, slot, tables) as p:
        print(f"running {p.time}", flush=True)
        while True:
            t = p.advance()
            if t is None:
                runtime.sleep_s(0.01)
                continue
            print(t, flush=True)
            death.at("next")
            if t % 7 == 0:
                p.checkpoint()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except EvertideError as error:
        print(f"error {error}", flush=True)
        sys.exit(error.exit_code)
