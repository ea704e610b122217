"""TanStack DB over Electric's client: `awaitTxId` resolves once the rows of a push are in the collection."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.kit import ORDERS
from tests.server.kit import Client
from tests.servers.npm import npm_folder
from tests.shapes.kit import OPTIONS, Shop, engine, order, shop
from tests.shapes.replica import declared
from tests.sources.postgres.server import Database, running_logical

HERE = Path(__file__).parent / "tanstack"
LIVE = replace(OPTIONS, long_poll_s=20, sse_s=60, keep_alive_s=21)
PUSH = "/v1/tables/orders/rows"
FOREVER_MS = 60_000


@pytest.fixture(scope="session")
def tanstack_folder() -> Path:
    folder = npm_folder("tanstack-db", HERE / "package.json")
    shutil.copy(HERE / "await.mjs", folder)
    return folder


@dataclass(frozen=True)
class Collection:
    process: subprocess.Popen[str]

    def request(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        return json.loads(line)


@contextmanager
def collecting(folder: Path, s: Shop, mode: str, **options: Any) -> Iterator[Collection]:
    shape = {"url": f"http://{s.host}:{s.port}/v1/shape", "params": {"table": "orders"}, **options}
    command = ["node", "await.mjs", json.dumps({"shape": shape, "syncMode": mode})]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, text=True, **pipes) as process:
        try:
            yield Collection(process)
        finally:
            process.kill()


def push(s: Shop, *rows: dict[str, Any]) -> int:
    answer = Client(s.host, s.port).post(PUSH, list(rows))
    assert answer.status == 200, answer
    return int(answer.body["txid"])


@pytest.mark.parametrize("mode", ["eager", "progressive", "on-demand"])
@pytest.mark.parametrize("is_stream", [False, True], ids=["long-poll", "sse"])
def test_a_pushed_number_resolves_when_its_rows_are_visible(tanstack_folder: Path, mode: str, is_stream: bool) -> None:
    with shop(options=LIVE) as s:
        before = push(s, order(1, "ann", 1))
        with collecting(tanstack_folder, s, mode, liveSse=is_stream) as collection:
            assert "ready" in collection.answer()
            if mode == "on-demand":
                collection.request(load=True)
                assert collection.answer() == {"loaded": [[1, 1]]}
            if mode != "progressive":  # this mode of the client ignores `snapshot-end`, so it never sees these numbers
                collection.request(txid=before, timeout=FOREVER_MS)
                assert collection.answer() == {"txid": before, "rows": [[1, 1]]}
            for number in range(2, 30):
                collection.request(txid=before + number - 1, timeout=FOREVER_MS)  # waits before the push
                txid = push(s, order(number, "bob", number), order(1, "ann", number))
                answer = collection.answer()
                assert answer["txid"] == txid
                assert {(number, number), (1, number)} <= {(row[0], row[1]) for row in answer["rows"]}


@pytest.mark.parametrize("mode", ["eager", "on-demand"])
def test_a_push_beside_a_database_resolves_as_its_own_transactions_do(tanstack_folder: Path, mode: str) -> None:
    """The database has far higher transaction numbers than the pipeline."""
    with running_logical() as server:
        db = Database(server, "beside")
        try:
            db.run("CREATE TABLE followed (id int8 PRIMARY KEY, customer text, amount int8)")
            table = replace(declared(db.dsn, "followed"), name="followed")
            with shop(options=LIVE, made=engine(tables=(ORDERS, table))) as s:
                before = push(s, order(1, "ann", 1))
                assert before > 2**32
                with collecting(tanstack_folder, s, mode) as collection:
                    assert "ready" in collection.answer()
                    if mode == "on-demand":
                        collection.request(load=True)
                        assert collection.answer() == {"loaded": [[1, 1]]}
                    collection.request(txid=before, timeout=FOREVER_MS)
                    assert collection.answer() == {"txid": before, "rows": [[1, 1]]}
                    for number in range(2, 12):
                        db.run(f"INSERT INTO followed VALUES ({number}, 'eve', 1)")
                        s.pipeline.advance()
                        txid = push(s, order(number, "bob", number))
                        collection.request(txid=txid, timeout=FOREVER_MS)
                        answer = collection.answer()
                        assert answer["txid"] == txid
                        assert [number, number] in answer["rows"]
        finally:
            db.close()


def test_a_number_that_was_not_pushed_does_not_resolve(tanstack_folder: Path) -> None:
    with shop(options=LIVE) as s:
        txid = push(s, order(1))
        with collecting(tanstack_folder, s, "eager") as collection:
            collection.answer()
            collection.request(txid=txid + 1, timeout=500)
            answer = collection.answer()
            assert (answer["error"], answer["rows"]) == ("TimeoutWaitingForTxIdError", [[1, 10]])
