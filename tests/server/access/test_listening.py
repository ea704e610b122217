"""How a server listens: TLS with real certificates, host names, and clients that are slow, large or many."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from evertide.errors import InvalidInput
from evertide.pipeline.reading.reader import StorageReader
from evertide.server.access import Access, ListenOptions, Tls
from evertide.server.server import Server
from evertide.server.shapes_app import make_shapes_app
from evertide.settings import Settings
from evertide.shapes.service import ShapeService
from tests.cli.kit import evertide, make_storage, one_error
from tests.server.access.kit import ACCESS, Guarded, bearer, guarded, raw
from tests.server.kit import Client

QUICK = Settings(request_head_s=0.3, request_pause_s=0.3)
SMALL = Settings(request_head_bytes_max=4096, connections_max=3)


@dataclass(frozen=True)
class Made:
    """Certificates of one authority for a server and a client, and some that it did not sign."""

    folder: Path

    def path(self, name: str) -> Path:
        return self.folder / name

    @property
    def tls(self) -> Tls:
        return Tls(self.path("server.crt"), self.path("server.key"))

    def client(self, name: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.path("ca.crt")))
        if name:
            context.load_cert_chain(self.path(f"{name}.crt"), self.path(f"{name}.key"))
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Made:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("tls")

    def run(*args: str) -> None:
        subprocess.run([openssl, *args], cwd=folder, check=True, capture_output=True)

    key = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")
    leaf = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE")
    run(*key, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt")
    for name in ("server", "client"):
        run(
            *key,
            "-subj",
            f"/CN={name}",
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            *leaf,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.crt",
        )
    run(*key, "-subj", "/CN=stranger", *leaf, "-keyout", "stranger.key", "-out", "stranger.crt")
    run("ec", "-in", "server.key", "-aes256", "-passout", "pass:hush", "-out", "locked.key")
    (folder / "text").write_text("no certificate")
    return Made(folder)


def status_over(port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=30)
    try:
        connection.request("GET", "/v1/status", headers=bearer("reader"))
        with connection.getresponse() as answer:
            answer.read()
            return answer.status
    finally:
        connection.close()


def test_a_tls_server_refuses_plain_connections(certificates: Made) -> None:
    with guarded(ACCESS, ListenOptions(access=ACCESS, tls=certificates.tls)) as g:
        assert status_over(g.shop.port, certificates.client()) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            status_over(g.shop.port, ssl.create_default_context())
        old = certificates.client()
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            status_over(g.shop.port, old)
        with pytest.raises((http.client.HTTPException, OSError)):
            g.client("reader").get("/v1/status")


def test_clients_without_a_signed_certificate_are_refused(certificates: Made) -> None:
    """Fails if a client with an unsigned certificate, or none, is let in."""
    mutual = Tls(certificates.path("server.crt"), certificates.path("server.key"), certificates.path("ca.crt"))
    with guarded(ACCESS, ListenOptions(access=ACCESS, tls=mutual)) as g:
        assert status_over(g.shop.port, certificates.client("client")) == 200
        for name in ("", "stranger"):
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                status_over(g.shop.port, certificates.client(name))


def test_wrong_certificate_files_are_reported_before_the_server_starts(certificates: Made) -> None:
    path = certificates.path
    server, key = path("server.crt"), path("server.key")
    for wrong, why in (
        (Tls(path("none.crt"), key), "--tls-cert .*No such file"),
        (Tls(server, path("none.key")), "--tls-key .*No such file"),
        (Tls(server, path("client.key")), "the key does not belong to the certificate"),
        (Tls(path("text"), key), "expected a certificate and its key"),
        (Tls(server, path("text")), "expected a certificate and its key"),
        (Tls(server, path("locked.key")), "--tls-key .*encrypted"),
        (Tls(server, key, path("text")), "--tls-client-ca .*no PEM certificate"),
        (Tls(server, key, path("none")), "--tls-client-ca .*No such file"),
    ):
        with pytest.raises(InvalidInput, match=why):
            Server(listening=ListenOptions(tls=wrong))
    for given in ((server, None, None), (None, key, None), (None, None, path("ca.crt"))):
        with pytest.raises(InvalidInput, match="both are needed"):
            Tls.of(*given)
    with Server(listening=ListenOptions(tls=certificates.tls)) as made_:
        assert made_.address.startswith("https://127.0.0.1:")


def test_the_command_line_reports_wrong_certificate_files(
    tmp_path: Path, certificates: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVERTIDE_TOKEN", "EVERTIDE_TOKENS_FILE", "EVERTIDE_SHAPES_SECRET"):
        monkeypatch.delenv(name, raising=False)
    make_storage(tmp_path / "s", 1)
    (tmp_path / "shop.sql").write_text("CREATE TABLE t (a INT);")
    (tmp_path / "empty").write_text("")
    (tmp_path / "empty").chmod(0o600)
    run = ("run", str(tmp_path / "shop.sql"), "--storage", str(tmp_path / "r"))
    for command in (run, ("shapes", "--storage", str(tmp_path / "s"))):
        open_to_all = one_error(evertide(*command, "--listen", "0.0.0.0:0"), 2)
        assert "--tokens FILE" in open_to_all
        assert "--insecure" in open_to_all
        assert "the file has no tokens" in one_error(
            evertide(*command, "--listen", ":0", "--tokens", tmp_path / "empty"), 2
        )
        lone = one_error(evertide(*command, "--listen", ":0", "--tls-cert", certificates.path("server.crt")), 2)
        assert "both are needed" in lone
    assert not (tmp_path / "r").exists()


@pytest.fixture(scope="module")
def unguarded() -> Iterator[Guarded]:
    with guarded(None, ListenOptions(hosts=("Console.Example.",))) as made_:
        yield made_


def ask_status(g: Guarded, **headers: str) -> int:
    return int(raw(g.client(), "GET /v1/status", headers).split(b" ", 2)[1])


def test_a_foreign_host_name_is_refused(unguarded: Guarded) -> None:
    """DNS rebinding. Fails if `Host` is not checked."""
    good = ("localhost", "LOCALHOST:1", "a.localhost", "127.0.0.1:80", "[::1]", "127.9.9.9", "console.example:8443")
    assert [ask_status(unguarded, Host=host) for host in good] == [200] * len(good)
    bad = (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::2]",
        "10.0.0.1",
        "]",
        "x@localhost:y",
    )
    assert {
        host: ask_status(unguarded, Host=host) for host in bad if ask_status(unguarded, Host=host) not in (400, 403)
    } == {}
    twice = [("Host", "localhost"), ("Host", "evil.example")]
    assert raw(unguarded.client(), "GET /v1/status", twice).split(b" ", 2)[1] in (b"400", b"403")
    with guarded() as g:
        assert ask_status(g, Host="evil.example", **bearer("admin")) == 403


def test_without_tokens_a_page_of_another_host_is_refused(unguarded: Guarded) -> None:
    """Such a POST needs no preflight: the browser just sends it."""
    before = unguarded.shop.pipeline.time
    for origin in ("https://evil.example", "null", "http://localhost.evil.example", "file://", "https://[::2]"):
        given = {"Origin": origin, "Content-Type": "text/plain", "Content-Length": "2"}
        answer = raw(unguarded.client(), "POST /v1/checkpoints", given, b"{}")
        assert answer.startswith(b"HTTP/1.1 403"), origin
        assert ask_status(unguarded, Origin=origin) == 403
        assert b"access-control" not in raw(unguarded.client(), "OPTIONS /v1/shape", {"Origin": origin})
    for origin in ("http://localhost:5173", "https://console.example", "http://127.0.0.1"):
        assert ask_status(unguarded, Origin=origin) == 200
    assert unguarded.shop.pipeline.time == before
    with guarded() as g:  # the token decides
        assert ask_status(g, Origin="https://app.example", **bearer("reader")) == 200
        preflight = raw(g.client(), "OPTIONS /v1/shape", {"Origin": "https://app.example"}).lower()
        assert b"access-control-allow-origin: https://app.example" in preflight
        assert b"access-control-allow-credentials" not in preflight


CHANGING = (
    "POST /v1/pause",
    "POST /v1/checkpoints",
    "POST /v1/tables/orders/rows",
    "DELETE /v1/shape",
    "PUT /v1/pause",
)
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "what is this"])
def test_without_tokens_a_browser_without_origin_changes_nothing(unguarded: Guarded, site: str) -> None:
    """Fails if `Sec-Fetch-Site` is not checked: forms and images need no preflight, and may come without `Origin`."""
    pipeline = unguarded.shop.pipeline
    before = (pipeline.time, pipeline.status().state)
    for line in CHANGING:
        for media in FORMS:
            given = {"Sec-Fetch-Site": site, "Content-Type": media, "Content-Length": "2"}
            assert raw(unguarded.client(), line, given, b"[]").startswith(b"HTTP/1.1 403"), (line, media)
    assert (pipeline.time, pipeline.status().state) == before
    refused = 200 if site == "same-site" else 403
    for path in ("/v1/shape?table=orders&offset=-1", "/v1/status", "/v1/tables/orders/rows"):
        answer = raw(unguarded.client(), f"GET {path}", {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"})
        assert int(answer.split(b" ", 2)[1]) == refused, path


def test_a_link_to_the_console_may_be_followed_from_anywhere(unguarded: Guarded) -> None:
    given = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert raw(unguarded.client(), "GET /", given).startswith(b"HTTP/1.1 200")
    assert raw(unguarded.client(), "GET /", {**given, "Sec-Fetch-Mode": "no-cors"}).startswith(b"HTTP/1.1 403")
    assert raw(unguarded.client(), "POST /", {**given, "Content-Length": "0"}).startswith(b"HTTP/1.1 403")
    for site in ("same-origin", "none"):
        assert ask_status(unguarded, **{"Sec-Fetch-Site": site}) == 200
    both = {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost:5173"}  # another port, by another name
    assert ask_status(unguarded, **both) == 200
    with guarded() as g:  # the token decides
        assert ask_status(g, **{"Sec-Fetch-Site": "cross-site"}, **bearer("reader")) == 200


@pytest.fixture(scope="module")
def narrow() -> Iterator[Guarded]:
    with guarded(ACCESS, ListenOptions(access=ACCESS, settings=QUICK)) as made_:
        yield made_


def rest_of(connection: socket.socket) -> bytes:
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return found


def test_a_connection_with_an_incomplete_head_is_closed(narrow: Guarded) -> None:
    """Fails, by the socket's own limit, if the server sets no time limit."""
    for begun in (b"", b"GET /v1/sta", b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nA: b\r\n"):
        with socket.create_connection((narrow.shop.host, narrow.shop.port), timeout=30) as slow:
            slow.sendall(begun)
            answer = rest_of(slow)
            assert answer.startswith(b"HTTP/1.1 408")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error_code"] == "request_timeout"


@pytest.fixture(scope="module")
def small() -> Iterator[Client]:
    """Serve an app that answers nothing."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await Response()(scope, receive, send)

    with Server(listening=ListenOptions(settings=SMALL)) as server:
        server.start(app)
        yield Client(server.host, server.port)


def test_a_head_that_is_too_large_is_refused(small: Client) -> None:
    assert small.get("/").status == 200
    for begun in (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"GET /?x=", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 700):
        with socket.create_connection((small.host, small.port), timeout=30) as large:
            large.sendall(begun + b"y" * 5000)
            answer = rest_of(large)
            assert answer.startswith(b"HTTP/1.1 431"), answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error_code"] == "head_too_large"


CHUNKED = "POST /v1/query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "begin", ["0\r\n", "0\r\nX: ", "5;", ""], ids=["trailers", "one trailer", "chunk extension", "empty lines"]
)
def test_framing_without_content_is_bounded(begin: str) -> None:
    """Fails if only the head is counted: a client without a token would fill the memory with trailers."""
    with (
        guarded(listening=ListenOptions(access=ACCESS, settings=SMALL)) as g,
        socket.create_connection((g.shop.host, g.shop.port), timeout=60) as connection,
    ):
        head = CHUNKED if begin else "GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall((head + begin).encode())
        piece = {"0\r\n": b"X: a\r\n" * 100, "": b"\r\n" * 300}.get(begin, b"x" * 600)
        with pytest.raises(OSError, match=r"reset|pipe"):
            connection.sendall(piece * 100_000)


def test_a_body_in_small_chunks_is_accepted() -> None:
    """The framing between chunks counts only until the next chunk."""
    body = b"1\r\n[\r\n" + b"1;x=y\r\n \r\n" * 60_000 + b"1\r\n]\r\n0\r\n\r\n"
    with guarded(listening=ListenOptions(access=ACCESS, settings=SMALL)) as g:
        given = {**bearer("writer"), "Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        assert raw(g.client(), "POST /v1/tables/orders/rows", given, body).startswith(b"HTTP/1.1 200")


def test_a_connection_with_an_incomplete_body_is_closed(narrow: Guarded) -> None:
    with socket.create_connection((narrow.shop.host, narrow.shop.port), timeout=30) as slow:
        token = f"Authorization: {bearer('writer')['Authorization']}"
        head = f"POST /v1/tables/orders/rows HTTP/1.1\r\nHost: localhost\r\n{token}\r\nContent-Length: 9\r\n"
        slow.sendall(f"{head}Content-Type: application/json\r\n\r\n[".encode())
        answer = rest_of(slow)
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b"request_timeout" in answer


def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    """The answer is larger than all buffers on the way. Fails, by the event's own limit, if the server does
    not check."""
    ended = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        except ClientDisconnect:
            ended.set()

    with Server(listening=ListenOptions(settings=QUICK)) as server:
        server.start(app)
        with socket.create_connection((server.host, server.port), timeout=30) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert slow.recv(15) == b"HTTP/1.1 200 OK"
            assert ended.wait(60)
            with suppress(ConnectionError):
                while slow.recv(1 << 20):
                    pass


def test_a_connection_beyond_the_limit_is_refused_and_others_continue(small: Client) -> None:
    where = (small.host, small.port)
    with socket.create_connection(where, timeout=30), socket.create_connection(where, timeout=30):
        kept = http.client.HTTPConnection(*where, timeout=30)
        kept.request("GET", "/")
        with kept.getresponse() as found:
            assert (found.status, found.read()) == (200, b"")
        with socket.create_connection(where, timeout=30) as fourth:
            answer = rest_of(fourth)
            assert answer.startswith(b"HTTP/1.1 503")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error_code"] == "too_many_connections"
        kept.request("GET", "/")
        with kept.getresponse() as found:
            assert (found.status, found.read()) == (200, b"")
        kept.close()


def test_an_idle_connection_stays_open_for_as_long_as_the_answer_says(small: Client) -> None:
    """Fails if connections close after uvicorn's 5 seconds, or do not announce when they close."""
    kept = http.client.HTTPConnection(small.host, small.port, timeout=30)
    try:
        kept.request("GET", "/")
        with kept.getresponse() as found:
            found.read()
        assert (found.headers.get_all("connection"), found.headers["keep-alive"]) == (["keep-alive"], "timeout=75")
        kept.request("GET", "/", headers={"Connection": "close"})
        with kept.getresponse() as last:
            last.read()
        assert (last.headers.get_all("connection"), last.headers["keep-alive"]) == (["close"], None)
    finally:
        kept.close()
    assert SMALL.keep_alive_s >= 60


def test_how_long_an_idle_connection_stays_open_is_a_setting() -> None:
    """Fails, by the socket's own limit, if the setting does not reach the server."""
    with Server(listening=ListenOptions(settings=Settings(keep_alive_s=0.2))) as server:
        server.begin()
        with socket.create_connection((server.host, server.port), timeout=30) as idle:
            idle.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"keep-alive: timeout=0\r\n" in rest_of(idle)


def test_an_app_without_tokens_is_open() -> None:
    assert ListenOptions().access == Access()


@pytest.mark.parametrize(("access", "told"), [(ACCESS, {"status", "state"}), (None, {"status", "state", "why"})])
def test_health_of_a_process_for_shapes_has_a_reason_only_without_tokens(
    tmp_path: Path, access: Access | None, told: set[str]
) -> None:
    folder = make_storage(tmp_path / "s", 1)
    with StorageReader.open(str(folder)) as reader, ShapeService(reader.collections) as service, Server() as server:
        server.start(make_shapes_app(reader, service, access))
        found = Client(server.host, server.port).get("/v1/health")
        assert (found.status, found.body["status"], {*found.body}) == (202, "waiting", told)


def test_health_has_a_reason_only_without_tokens() -> None:
    """A health request needs no token; errors name collections and their content."""
    for access, told in [(ACCESS, {"status"}), (Access(), {"status", "why", "remedy", "since_s"})]:
        with guarded(access) as world:
            world.shop.pipeline.pause()
            for path in ("/v1/health", "/v1/health/ready"):
                assert set(world.client().get(path).body) == told
