"""X16: a running pipeline is scanned as every role: what listens, which files can be read, which URLs it fetches."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.cli.kit import ROOT
from tests.servers.lure import Lure, running_lure
from tests.servers.probe import has_endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = """
CREATE TABLE notes (id BIGINT NOT NULL, text STRING, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW lengths AS SELECT id, length(text) AS n FROM notes;
CREATE TABLE documents (id BIGINT NOT NULL, xml STRING, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW read AS SELECT id, xpath_string(xml, 'a/b') AS b, from_xml(xml, 'b STRING').b AS c
FROM documents;
"""
TOKENS = {role: f"{role}-token-0123456789" for role in ("read", "write", "admin")}
WAIT_S = 240.0
_LISTEN = "0A"
_PROGRAMS = {
    "server": ("evertide.cli", {"http", "accumulators of Python functions"}),
    "query": ("evertide.server.query.worker", {"accumulators of Python functions"}),
    "daemon": ("pyspark.daemon", {"Python workers"}),
    "jvm": ("org.apache.spark.deploy.SparkSubmit", {"py4j", "driver RPC", "block manager"}),
}
"""The programs of a running pipeline, by a word of their command lines, and what each may listen for, on loopback."""


ATTACKS = {
    "spark": (
        """SELECT xpath_string('<!DOCTYPE a SYSTEM "{url}"><a>1</a>', 'a') AS x""",
        """SELECT xpath('<!DOCTYPE a SYSTEM "file://{file}"><a>1</a>', 'a') AS x""",
        "SELECT identifier('xpath_' || 'int')('<!DOCTYPE a SYSTEM \"{url}\"><a>1</a>', 'a') AS x",
        "SELECT from_protobuf(binary('x'), 'm', '{file}') AS x",
        "SELECT from_avro(binary('x'), '\"int\"', map('avroSchemaUrl', '{url}')) AS x",
        "SELECT from_xml('<a/>', 'b INT', map('rowValidationXSDPath', '{file}')) AS x",
        "SELECT java_method('java.lang.System', 'getenv', 'EVERTIDE_TOKEN_ADMIN') AS x",
        "SELECT count(*) OVER w FROM notes WINDOW w AS (ORDER BY reflect('java.lang.System', 'getenv', 'HOME'))",
        "SELECT * FROM text.`{file}`",
        "SELECT input_file_name() AS x FROM notes",
        "SELECT current_user AS x",
        "SELECT '${{env:EVERTIDE_TOKEN_ADMIN}}' AS x",
    ),
    "duckdb": (
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_csv('{url}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM glob('{file}')",
        "SELECT * FROM sniff_csv('{file}')",
        "SELECT * FROM query('SELECT * FROM read_text(''{file}'')')",
        "SELECT getenv('EVERTIDE_TOKEN_ADMIN') AS x",
        "SELECT current_setting('home_directory') AS x",
        "SELECT * FROM duckdb_settings()",
        "COPY notes TO '{file}.out'",
        "ATTACH '{file}' AS x",
        "LOAD httpfs",
    ),
}
"""What a query must not do: each is tried as every role."""


class Run:
    """`evertide run` with a token of every role, as a process of its own."""

    def __init__(self, folder: Path) -> None:
        script = folder / "notes.sql"
        script.write_text(SCRIPT)
        env = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
        env |= {f"EVERTIDE_TOKEN_{role.upper()}": token for role, token in TOKENS.items()}
        self.storage = folder / "storage"
        place = ["--storage", str(self.storage), "--listen", "127.0.0.1:0", "--json", "--log-level", "info"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "evertide.cli", "run", str(script), *place],
            env={**env, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        self._said = threading.Thread(target=self._listen, daemon=True)
        self._said.start()
        assert self.process.stdout is not None
        found = next((line for line in self.process.stdout if '"listening"' in line), None)
        assert found is not None, "".join(self.errors)
        self.address = urlsplit(json.loads(found)["address"])
        self._rest = threading.Thread(target=self.process.stdout.read, daemon=True)
        self._rest.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def ask(self, method: str, path: str, role: str = "", body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.address.port, timeout=WAIT_S)
        headers = {"Content-Type": "application/json"}
        if role:
            headers["Authorization"] = f"Bearer {TOKENS[role]}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            with connection.getresponse() as answer:
                content = answer.read()
                is_json = answer.getheader("content-type", "").startswith("application/")
                return answer.status, json.loads(content) if is_json else content.decode()
        finally:
            connection.close()

    def query(self, sql: str, engine: str, role: str = "read") -> tuple[int, Any]:
        return self.ask("POST", "/v1/query", role, {"sql": sql, "engine": engine})

    def processes(self) -> list[psutil.Process]:
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)
        for thread in (self._said, self._rest):
            thread.join(WAIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    made = Run(tmp_path_factory.mktemp("x16"))
    try:
        assert made.ask("POST", "/v1/tables/notes/rows", "write", [{"id": 1, "text": "hello"}])[0] == 200
        for engine in ("duckdb", "spark"):
            status, said = made.query("SELECT n FROM lengths", engine)
            assert (status, said["rows"]) == (200, [[5]]), said
        yield made
    finally:
        if made.process.poll() is None:
            made.stop()


@dataclass(frozen=True)
class Listening:
    """A socket at which a process takes connections, or packets."""

    pid: int
    kind: str
    address: str
    port: int


def listening(pid: int) -> list[Listening]:
    """As the process sees it: another network namespace has tables of its own."""
    own = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(str(fd.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    found = []
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in own and (kind.startswith("udp") or fields[3] == _LISTEN):
                address, _, port = fields[1].partition(":")
                found.append(Listening(pid, kind, _address(address), int(port, 16)))
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        is_listening = int(fields[3], 16) & 0x10000
        if f"socket:[{fields[6]}]" in own and is_listening:
            found.append(Listening(pid, "unix", fields[7] if len(fields) > 7 else "", 0))
    return found


def _address(text: str) -> str:
    words = [struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(words))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def program(process: psutil.Process) -> str:
    line = process.cmdline()
    return next((name for name, (word, _) in _PROGRAMS.items() if word in line), "")


def test_x16_a_running_pipeline_listens_on_loopback_for_what_is_documented(run: Run, spark: SparkSession) -> None:
    """Fails without `spark_network`: Spark's driver listens at the machine's address, and answers anybody."""
    found = {}
    for process in run.processes():
        if process.status() != psutil.STATUS_ZOMBIE:
            found[process.pid] = (program(process), listening(process.pid))
    places = [each for _, sockets in found.values() for each in sockets]
    assert [each for each in places if each.kind not in ("tcp", "tcp6")] == []
    assert [each for each in places if not ipaddress.ip_address(each.address).is_loopback] == []
    for name, sockets in found.values():
        _, expected = _PROGRAMS.get(name, ("", set()))
        assert len(sockets) <= len(expected), (name, sockets)
    names = [name for name, _ in found.values()]
    assert names.count("server") == 1
    assert names.count("query") == 2
    assert names.count("jvm") == 2
    drivers = [
        sockets
        for pid, (name, sockets) in found.items()
        if name == "jvm" and psutil.Process(pid).ppid() == run.process.pid
    ]
    for each in drivers[0]:
        assert not has_endpoint(spark, each.port, "BlockManagerMaster")


def test_the_probe_finds_an_endpoint_that_answers_anybody(spark: SparkSession) -> None:
    """This session was made by the tests, without a secret."""
    port = int(spark.conf.get("spark.driver.port") or 0)
    assert has_endpoint(spark, port, "BlockManagerMaster")


@pytest.fixture(scope="module")
def lure() -> Iterator[Lure]:
    with running_lure() as server:
        yield server


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_x16_no_role_makes_a_query_reach_a_file_or_an_address(
    run: Run, lure: Lure, tmp_path: Path, engine: str
) -> None:
    """Fails without the tables of functions. Whether a file is there is not told either."""
    secret = tmp_path / "secret"
    secret.write_text("file-secret")
    for text in ATTACKS[engine]:
        said = {}
        for role in ("", "read", "write", "admin"):
            status, answer = run.query(text.format(url=lure.url, file=secret), engine, role)
            assert status == (400 if role else 401), (text, answer)
            said[role] = str(answer)
            for hidden in ("file-secret", str(run.storage), TOKENS["admin"]):
                assert hidden not in said[role], (text, answer)
        _, missing = run.query(text.format(url=lure.url, file=secret.with_name("nobody")), engine)
        assert said["read"] == str(missing).replace("nobody", "secret")
    assert lure.asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_x16_a_row_makes_no_view_fetch_anything(run: Run, lure: Lure) -> None:
    """Fails if the JVM is started without `javax.xml.accessExternalDTD`: rows come from whoever may push."""
    rows = [{"id": 1, "xml": "<a><b>1</b></a>"}]
    assert run.ask("POST", "/v1/tables/documents/rows", "write", rows)[0] == 200
    assert run.ask("GET", "/v1/views/read/rows", "read")[1]["rows"] == [[1, "1", "1"]]
    rows = [{"id": 2, "xml": f'<!DOCTYPE a SYSTEM "{lure.url}"><a><b>1</b></a>'}]
    assert run.ask("POST", "/v1/tables/documents/rows", "write", rows)[0] == 200
    assert lure.asked == []
    collections = run.ask("GET", "/v1/status", "read")[1]["collections"]
    assert next(each["state"] for each in collections if each["name"] == "read") == "failed"
    assert run.ask("POST", "/v1/tables/documents/rows?deletes=true", "write", [{"id": 2}])[0] == 200


def test_x16_no_token_is_on_a_command_line_nor_with_a_process_that_answers_queries(run: Run) -> None:
    for process in run.processes():
        if process.status() == psutil.STATUS_ZOMBIE:
            continue
        assert not any(token in word for token in TOKENS.values() for word in process.cmdline())
        if psutil.Process(process.pid).ppid() != run.process.pid and process.pid != run.process.pid:
            continue
        if program(process) == "query":
            assert not any(token in process.environ().values() for token in TOKENS.values())
            assert Path(process.cwd()).stat().st_mode & 0o077 == 0
    assert any("isolation of queries by spark: " in line for line in run.errors)
