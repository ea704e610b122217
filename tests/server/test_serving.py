"""`Server`: addresses, starting and stopping beside a pipeline; and a process that is killed during pushes."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from evertide.errors import EvertideError, InvalidInput
from evertide.pipeline.replicas.liveness import watch_for_hang
from evertide.server.access import Access, ListenOptions, Role, Token
from evertide.server.app import make_app
from evertide.server.server import LOOPBACK, Server
from evertide.sources.generated.seeded import RandomStream
from tests.cli.kit import open_small
from tests.kit.runtime import ManualRuntime
from tests.pipeline.kit import SETTINGS, open_pipeline, rows_of, storage
from tests.server.kit import Client, numbered, order, served

ROOT = Path(__file__).parents[2]
ROWS = "/v1/tables/orders/rows"


@pytest.mark.parametrize("listen", ["8080", "localhost", "host:http", "a:b:70000", ":-1", "127.0.0.1:", ""])
def test_an_invalid_address_is_refused(listen: str) -> None:
    with pytest.raises(InvalidInput, match="HOST:PORT"):
        Server(listen)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"192\.0\.2\.1"):
        Server("192.0.2.1:0")
    with pytest.raises(InvalidInput, match="cannot resolve the host"):
        Server("no-such-host.invalid:0")


def test_a_port_in_use_is_refused_and_one_just_released_is_not() -> None:
    with open_pipeline(storage()) as p:
        with Server(":0").start(make_app(p)) as first:
            assert (first.host, first.address) == (LOOPBACK, f"http://127.0.0.1:{first.port}")
            with pytest.raises(InvalidInput, match=f"{first.port}.*choose another port"):
                Server(f"127.0.0.1:{first.port}")
            assert Client(first.host, first.port).get("/v1/health").status == 200
        with Server(f"127.0.0.1:{first.port}").start(make_app(p)) as second:
            assert Client(second.host, second.port).get("/v1/health").status == 200


def test_of_two_servers_that_bind_the_same_port_one_listens() -> None:
    with open_pipeline(storage()) as p, Server() as first, Server(f"127.0.0.1:{first.port}") as second:
        first.start(make_app(p))
        with pytest.raises(InvalidInput, match="address"):
            second.start(make_app(p))


def test_an_ipv6_url_has_brackets() -> None:
    try:
        server = Server("[::1]:0")
    except InvalidInput:
        pytest.skip("this machine has no IPv6")
    with server, open_pipeline(storage()) as p:
        assert server.start(make_app(p)).address == f"http://[::1]:{server.port}"
        assert Client(server.host, server.port).get("/v1/health").status == 200


def test_other_machines_connect_only_with_insecure_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with Server() as server:
        assert server.host == LOOPBACK
        assert not caplog.records
    for listen in ("0.0.0.0:0", "[::]:0"):
        with pytest.raises(InvalidInput, match=r"no tokens.*--tokens.*--insecure"):
            Server(listen)
    with Server("0.0.0.0:0", ListenOptions(is_insecure=True)):
        assert "every client that reaches 0.0.0.0:0 may read and write everything" in caplog.text
    known = Access((Token.of("one", Role.READ, "a-token-of-some-length"),))
    with Server("0.0.0.0:0", ListenOptions(access=known)):
        assert "--tls-cert" in caplog.text


def test_no_request_is_answered_before_the_start_and_signals_stay_unchanged() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Server() as server:
        with pytest.raises(ConnectionRefusedError):
            Client(server.host, server.port).get("/v1/health")
        with open_pipeline(storage()) as p:
            server.start(make_app(p))
            assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
            server.stop()
            server.stop()
            with pytest.raises(ConnectionRefusedError):
                Client(server.host, server.port).get("/v1/health")


def test_requests_get_503_while_the_pipeline_opens() -> None:
    """Fails if connections are refused until there is an app, or if the process counts as dead meanwhile."""
    with Server().begin() as server, pytest.raises(InvalidInput, match="address"):
        Server(f"127.0.0.1:{server.port}").begin()
    with Server().begin().begin() as server, open_pipeline(storage()) as p:
        client = Client(server.host, server.port)
        assert (live := client.get("/v1/health/live")).status == 200
        assert live.body["status"] == "alive"
        assert client.raw("HEAD", "/v1/health/live").status == 200
        for method, path in [
            ("GET", "/v1/health"),
            ("GET", "/v1/health/ready"),
            ("POST", ROWS),
            ("GET", "/v1/shape?table=orders&offset=-1"),
            ("GET", "/metrics"),
            ("GET", "/"),
            ("POST", "/v1/health/live"),
        ]:
            answer = client.ask(method, path)
            assert (answer.status, answer.body["error_code"], answer.body["status"]) == (503, "starting", "starting")
            assert int(answer.headers["retry-after"]) > 0
            assert answer.headers["cache-control"] == "no-store"
        assert client.ask("GET", "/v1/health", headers={"Host": "evil.example"}).status == 403
        kept = http.client.HTTPConnection(server.host, server.port)
        kept.request("GET", "/v1/health")
        assert kept.getresponse().read()
        server.start(make_app(p))
        kept.request("GET", "/v1/health")
        assert kept.getresponse().status == 200
        kept.close()
        assert client.post(ROWS, [order(1)]).body == {"time": 1, "rows": 1, "txid": 2}


def test_opening_that_hangs_is_not_alive() -> None:
    """Fails if a server without a pipeline reports itself alive: no supervisor would restart the process."""
    runtime = ManualRuntime()
    with Server().begin() as server, watch_for_hang("starting Spark", runtime, SETTINGS):
        client = Client(server.host, server.port)
        assert client.get("/v1/health/live").status == 200
        runtime.advance_s(SETTINGS.hang_after_s + 1)
        live = client.get("/v1/health/live")
        assert (live.status, live.body["status"]) == (503, "hangs")
        assert "starting Spark" in live.body["why"]


def test_an_app_that_fails_to_start_is_an_error() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with Server() as server:
        with pytest.raises(EvertideError):
            server.start(failing)
        assert Client(server.host, server.port).get("/v1/health").status == 503


def test_a_request_in_progress_is_answered_before_the_server_stops() -> None:
    """Fails if `stop` does not wait for the thread: the answer is cut off."""
    with open_pipeline(storage()) as p, ThreadPoolExecutor(2) as threads:
        server = Server().start(make_app(p))
        client = Client(server.host, server.port)
        idle = http.client.HTTPConnection(server.host, server.port)
        idle.request("GET", "/v1/health")
        idle.getresponse().read()
        with p._turn:
            asked = threads.submit(client.post, ROWS, [order(1)])
            while not p._pushes._ready:
                threading.Event().wait(0.01)
            stopping = threads.submit(server.stop)
            threading.Event().wait(0.3)
            assert not stopping.done()
        assert asked.result().body == {"time": 1, "rows": 1, "txid": 2}
        stopping.result()  # an idle open connection delays nothing
        idle.close()


def test_a_client_that_disconnects_within_its_body_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with open_pipeline(storage()) as p, Server().start(make_app(p)) as server:
        for _ in range(3):
            with socket.create_connection((server.host, server.port)) as gone:
                head = f"POST {ROWS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                gone.sendall(f"{head}Content-Length: 999\r\n\r\n[".encode())
        assert Client(server.host, server.port).post(ROWS, [order(1)]).body == {"time": 1, "rows": 1, "txid": 2}
        server.stop()
        assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_reads_and_incomplete_bodies_delay_no_other_request(caplog: pytest.LogCaptureFixture) -> None:
    """Fails if the server waits for them when it stops: half a minute, and then they are cancelled with a trace."""
    with open_pipeline(storage()) as p, ThreadPoolExecutor(1) as threads:
        server = Server().start(make_app(p))
        client = Client(server.host, server.port)
        client.post(ROWS, [order(1)])
        waiting = threads.submit(client.raw, "GET", "/v1/tables/orders/changes?since=1&wait_s=60")
        with socket.create_connection((server.host, server.port)) as slow:
            head = f"POST {ROWS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            slow.sendall(f"{head}Content-Length: 999\r\nExpect: 100-continue\r\n\r\n[".encode())
            assert slow.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"  # the read is waiting
            server.stop()
            answer = b"".join(iter(lambda: slow.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 503")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error_code"] == "stopping"
        assert waiting.result().status == 200  # nothing was sent
        assert p.time == 1
    assert "Traceback" not in caplog.text


def test_a_download_that_the_client_does_not_read_is_cut_off_when_the_server_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await lifespan(receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            began.set()

    server = Server().start(app)
    with socket.create_connection((server.host, server.port)) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert began.wait(60)
        server.stop()
    assert "Traceback" not in caplog.text
    assert "without completing" not in caplog.text


async def lifespan(receive: Receive, send: Send) -> None:
    for _ in range(2):
        await send({"type": f"{(await receive())['type']}.complete"})


@contextmanager
def worker(path: Path) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    command = [sys.executable, "-m", "tests.server.serve_until_killed", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            where = process.stdout.readline().split()
            assert where, process.stderr.read()
            yield process, Client(where[0], int(where[1]))
        finally:
            process.kill()


def test_j10_each_push_is_applied_once_although_the_server_is_killed(tmp_path: Path) -> None:
    """Clients repeat requests without an answer. Fails if the number of a request is not bound with its rows: a bound
    push whose answer the kill cut off is there twice."""
    chance, clients = RandomStream(3), 4
    answered: dict[int, dict[int, int]] = {client: {} for client in range(clients)}

    def pushing(client: Client, producer: int) -> None:
        while True:
            sequence = len(answered[producer])
            try:
                answer = client.post(
                    "/v1/tables/notes/rows",
                    [{"text": f"{producer}-{sequence}"}],
                    numbered(f"till-{producer}", sequence),
                )
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                return
            assert answer.status == 200, answer
            answered[producer][sequence] = answer.body["time"]

    for _ in range(4):
        with worker(tmp_path / "s") as (process, client), ThreadPoolExecutor(clients) as threads:
            wanted = sum(map(len, answered.values())) + clients
            asked = [threads.submit(pushing, client, producer) for producer in range(clients)]
            while sum(map(len, answered.values())) <= wanted and not all(each.done() for each in asked):
                threading.Event().wait(0.01)
            threading.Event().wait(chance.below(400) / 1000)
            process.kill()
            for each in asked:
                each.result()
    with open_small(tmp_path / "s") as p, served(p) as client:
        for producer, done in answered.items():  # the request of each client that got no answer
            row = [{"text": f"{producer}-{len(done)}"}]
            answer = client.post("/v1/tables/notes/rows", row, numbered(f"till-{producer}", len(done)))
            done[len(done)] = answer.body["time"]
        changes = p.view("notes").to_pylist()
        expected = [f"{producer}-{sequence}" for producer, done in answered.items() for sequence in done]
        assert sorted(row["text"] for row in changes) == sorted(expected)
        assert len(expected) > 4 * clients
        assert rows_of(p, "counts") == [(0, len(expected))]
        assert max(max(done.values()) for done in answered.values()) <= p.time
