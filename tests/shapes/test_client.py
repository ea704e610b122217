"""Electric's published TypeScript client against this server, with long polling and with streams."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from evertide.runtime import SystemRuntime
from evertide.shapes.log import registry
from evertide.store.open import open_storage
from tests.pipeline.kit import SETTINGS, open_pipeline, storage
from tests.processes import running
from tests.server.kit import stored, until
from tests.servers.npm import npm_folder
from tests.shapes.kit import BLOBS, OPTIONS, Lossy, Shop, engine, order, shop
from tests.shapes.test_processes import serving

HERE = Path(__file__).parent / "client"
JSON = {"Content-Type": "application/json"}
LIVE = replace(OPTIONS, long_poll_s=20, sse_s=60, keep_alive_s=21)


def at(listen: str) -> Shop:
    """A shop that another process serves."""
    host, port = listen.split(":")
    return Shop(None, None, host, int(port))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def client_folder() -> Path:
    folder = npm_folder("electric-client", HERE / "package.json")
    shutil.copy(HERE / "follow.mjs", folder)
    return folder


@dataclass
class Client:
    process: subprocess.Popen[str]

    def until(self, wanted: Callable[[Any], bool]) -> Any:
        """Wait for the client's first message of this kind, or an error."""
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            told = json.loads(line)
            said.append(told)
            if wanted(told):
                return told
            assert "error" not in told, told
            assert "refetch" not in told, "the client fetches the shape again"
        raise AssertionError((said, self.process.stderr and self.process.stderr.read()))

    def count(self, rows: int) -> Any:
        """Wait until the client has this many rows."""
        return self.until(lambda told: len(told.get("rows", ())) == rows)

    def rows(self, *expected: tuple[Any, ...]) -> Any:
        """Wait until the client has exactly these rows."""
        wanted = sorted(expected, key=repr)
        return self.until(
            lambda told: "rows" in told and sorted((tuple(row.values()) for row in told["rows"]), key=repr) == wanted
        )

    def request(self, subset: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(subset) + "\n")
        self.process.stdin.flush()


@contextmanager
def following(folder: Path, s: Shop, params: dict[str, Any], **options: Any) -> Iterator[Client]:
    asked = {"url": f"http://{s.host}:{s.port}/v1/shape", "params": params, **options}
    command = ["node", "follow.mjs", json.dumps(asked)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, text=True, **pipes) as process:
        try:
            yield Client(process)
        finally:
            process.kill()


@pytest.mark.parametrize("is_stream", [False, True], ids=["long-poll", "sse"])
def test_a_table_and_a_view_are_followed(client_folder: Path, is_stream: bool) -> None:
    with shop(options=LIVE) as s:
        s.push(rows=[order(1, "ann", 5), order(2, None, None)])
        where = {"table": "orders", "where": "id < $1", "params": ["100"]}
        with (
            following(client_folder, s, where, liveSse=is_stream) as table,
            following(client_folder, s, {"table": "revenue"}, liveSse=is_stream) as view,
            following(client_folder, s, {"table": "buyers"}, liveSse=is_stream) as multiset,
        ):
            table.rows(("1n", "ann", "5n"), ("2n", None, None))  # values by their types: int8 is a BigInt
            view.rows(("ann", "5n"), (None, "0n"))
            multiset.rows(("ann",), (None,))
            t = s.push(rows=[order(1, "ann", 6), order(3, "ann", 1), order(100)], deletes=[2])
            told = table.rows(("1n", "ann", "6n"), ("3n", "ann", "1n"))
            assert set(told["txids"]) == {t + 1}  # numbers, as clients compare them with those of their writes
            view.rows(("ann", "17n"))
            multiset.rows(("ann",), ("ann",), ("ann",))
            for number in range(4, 8):
                s.push(rows=[order(number, "bob", number)])
            view.rows(("ann", "17n"), ("bob", "22n"))
            table.rows(("1n", "ann", "6n"), ("3n", "ann", "1n"), *((f"{n}n", "bob", f"{n}n") for n in range(4, 8)))


def test_the_client_fetches_an_ended_shape_again(client_folder: Path) -> None:
    with shop(options=LIVE) as s:
        s.push(rows=[order(1)])
        with following(client_folder, s, {"table": "orders", "columns": ["id"]}) as client:
            first = client.rows(("1n",))
            assert s.ask("DELETE", handle=first["handle"]).status == 202
            client.until(lambda told: "refetch" in told)
            s.push(rows=[order(2)])
            again = client.rows(("1n",), ("2n",))
            assert again["handle"] != first["handle"]


@pytest.mark.parametrize("is_stream", [False, True], ids=["long-poll", "sse"])
def test_x9_a_temporarily_missing_part_causes_no_refetch(client_folder: Path, is_stream: bool) -> None:
    blob = Lossy()
    with shop(storage(blob=blob), LIVE, settings=BLOBS) as s:
        s.push(rows=[order(1)])
        with following(client_folder, s, {"table": "revenue"}, liveSse=is_stream) as client:
            first = client.rows(("ann", "10n"))
            with blob.losing("revenue"):
                s.push(rows=[order(2)])
            until(lambda: s.pipeline.status().problems)
            s.push(rows=[order(3)])
            blob.bring_back()
            assert client.rows(("ann", "30n"))["handle"] == first["handle"]


def test_a_late_client_continues_from_a_later_snapshot(client_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FRESH_CHANGES", 20)
    with shop(options=LIVE) as s:
        s.push(rows=[order(1, "ann", 0)])
        handle = s.get().handle
        for amount in range(1, 30):
            s.push(rows=[order(1, "ann", amount)])
        with following(client_folder, s, {"table": "orders"}) as client:
            first = client.rows(("1n", "ann", "29n"))
            assert (first["handle"], first["txids"]) == (handle, [])
            s.push(rows=[order(2, "bob", 1)])
            client.rows(("1n", "ann", "29n"), ("2n", "bob", "1n"))


def test_changes_only_with_subsets_on_demand(client_folder: Path) -> None:
    with shop(options=LIVE) as s:
        s.push(rows=[order(number, "ann", number) for number in range(1, 6)])
        with following(client_folder, s, {"table": "orders"}, log="changes_only", offset="now") as client:
            client.request({"orderBy": "id desc", "limit": 2})
            client.rows(("5n", "ann", "5n"), ("4n", "ann", "4n"))
            client.request({"where": "customer = $1 AND id < 3", "params": {"1": "ann"}})
            client.rows(*((f"{n}n", "ann", f"{n}n") for n in (5, 4, 1, 2)))
            s.push(rows=[order(4, "bob", 4), order(6)])
            client.rows(
                ("5n", "ann", "5n"), ("4n", "bob", "4n"), ("1n", "ann", "1n"), ("2n", "ann", "2n"), ("6n", "ann", "10n")
            )


def test_an_invalid_request_is_reported_to_the_caller(client_folder: Path) -> None:
    with shop(options=LIVE) as s:
        s.push(rows=[order(1)])
        with following(client_folder, s, {"table": "orders", "where": "nope = 1"}) as client:
            told = client.until(lambda told: "error" in told)
            assert (told["error"], "nope" in told["message"]) == ("FetchError", True)


@pytest.mark.parametrize("is_stream", [False, True], ids=["long-poll", "sse"])
def test_a_kill_and_restart_of_the_server_causes_no_refetch(
    client_folder: Path, tmp_path: Path, is_stream: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    store = open_storage(tmp_path / "s", runtime=SystemRuntime(), settings=SETTINGS)
    with open_pipeline(store, engine()) as pipeline, ExitStack() as stack:
        pipeline.push("orders", [order(1)])
        pipeline.commit()
        with serving(tmp_path / "s", pipeline, "--listen", listen) as (process, s):
            client = stack.enter_context(following(client_folder, s, {"table": "buyers"}, liveSse=is_stream))
            first = client.rows(("ann",))
            pipeline.push("orders", [order(2)])
            pipeline.commit()
            client.rows(("ann",), ("ann",))
            process.kill()
        pipeline.push("orders", [order(3, "bob")], deletes=[1])
        pipeline.commit()
        pipeline.checkpoint()
        with serving(tmp_path / "s", pipeline, "--listen", listen):
            pipeline.push("orders", [order(4, "bob")])
            pipeline.commit()
            last = client.rows(("ann",), ("bob",), ("bob",))  # a refetch would be another state
            assert last["handle"] == first["handle"]


@pytest.mark.parametrize("write", [1, 3])
def test_a_kill_in_the_middle_of_a_large_snapshot_does_not_end_the_stream(
    client_folder: Path, tmp_path: Path, write: int
) -> None:
    rows = 6000  # some five chunks
    with running("tests.server.kill_after_write", tmp_path / "s", rows) as worker:
        listen = worker.began.replace(" ", ":")
        s = at(listen)
        with following(client_folder, s, {"table": "orders"}, headers={"X-Kill": str(write)}) as client:
            assert worker.process.wait(60) == -9
            with shop(stored(tmp_path), LIVE, listen=listen):
                client.count(rows)


@pytest.mark.parametrize("write", [3, 4])
@pytest.mark.parametrize("is_stream", [False, True], ids=["long-poll", "sse"])
def test_a_kill_in_the_middle_of_a_large_transaction_does_not_end_the_stream(
    client_folder: Path, tmp_path: Path, is_stream: bool, write: int
) -> None:
    """The first two writes are the snapshot and the end of the log."""
    rows = 6000
    with running("tests.server.kill_after_write", tmp_path / "s", 1) as worker:
        listen = worker.began.replace(" ", ":")
        s = at(listen)
        armed = {"X-Kill": str(write)}
        with following(client_folder, s, {"table": "orders"}, liveSse=is_stream, headers=armed) as client:
            client.count(1)
            pushed = [order(number) for number in range(rows)]
            with suppress(OSError, http.client.HTTPException):  # the kill may come before the answer
                s.ask("POST", "/v1/tables/orders/rows", JSON, json.dumps(pushed).encode())
            assert worker.process.wait(60) == -9
            with shop(stored(tmp_path), LIVE, listen=listen) as again:
                again.push(rows=pushed)  # changes nothing if the first push was committed
                client.count(rows)


@pytest.mark.parametrize("repeats", [True, False])
def test_onerror_repeats_a_request_whose_response_was_cut_off(
    client_folder: Path, tmp_path: Path, repeats: bool
) -> None:
    """A row that is too large for one write."""
    with running("tests.server.kill_after_write", tmp_path / "s", 1) as worker:
        listen = worker.began.replace(" ", ":")
        s = at(listen)
        wide = [order(1, "x" * 2_000_000)]
        assert s.ask("POST", "/v1/tables/orders/rows", JSON, json.dumps(wide).encode()).status == 200
        armed = {"X-Kill": "1"}
        with following(client_folder, s, {"table": "orders"}, headers=armed, repeats=repeats) as client:
            assert worker.process.wait(60) == -9
            if repeats:
                with shop(stored(tmp_path), LIVE, listen=listen):
                    client.count(2)
            else:
                assert client.until(lambda told: "error" in told)["message"] == "terminated"
