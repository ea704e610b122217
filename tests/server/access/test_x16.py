"""X16: a scan of a running pipeline with every role: open sockets, readable files, fetched URLs."""

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.cli.kit import ROOT
from tests.metrics.kit import wait_for
from tests.servers.kafka import KafkaBroker
from tests.servers.lure import Lure, running_lure
from tests.servers.probe import has_endpoint
from tests.sources.kafka.kit import new_topic, produce
from tests.sources.postgres.server import Database, running_logical

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
    """`evertide run` with a token of every role, as a separate process."""

    def __init__(self, folder: Path, text: str = SCRIPT, *options: str, env: Mapping[str, str] = os.environ) -> None:
        script = folder / "notes.sql"
        script.write_text(text)
        env = {name: value for name, value in env.items() if name != "SPARK_LOCAL_IP"}
        env |= {f"EVERTIDE_TOKEN_{role.upper()}": token for role, token in TOKENS.items()}
        self.storage = folder / "storage"
        place = ["--storage", str(self.storage), "--listen", "127.0.0.1:0", "--json", "--log-level", "info"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "evertide.cli", "run", str(script), *place, *options],
            env={**env, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
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

    def sinks(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "/v1/status", "read")[1]["sinks"]
        return found

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
    """A socket on which a process accepts connections or packets."""

    pid: int
    kind: str
    address: str
    port: int


def listening(pid: int) -> list[Listening]:
    """Read the process's own tables: another network namespace has others."""
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


def check_listening(run: Run) -> dict[int, tuple[str, list[Listening]]]:
    """Check that each process of the pipeline listens only for what is documented, and on loopback; return programs and
    sockets by pid."""
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
    return found


def test_x16_a_running_pipeline_listens_only_on_loopback_and_documented_ports(run: Run, spark: SparkSession) -> None:
    """Fails without `spark_network`: Spark's driver listens on the machine's address, and answers every client."""
    found = check_listening(run)
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


CONNECTED = """
CREATE TABLE bought (id BIGINT NOT NULL, amount BIGINT, PRIMARY KEY (id))
USING postgres OPTIONS (url '{postgres}', table 'public.bought', slot 'x16');
CREATE TABLE seen (id BIGINT NOT NULL, amount BIGINT, PRIMARY KEY (id))
USING kafka OPTIONS (brokers '{brokers}', topic '{topic}', format 'json', envelope 'upsert');
CREATE MATERIALIZED VIEW both TBLPROPERTIES (
    'evertide.sinks' = 'rows, records, lake, log',
    'evertide.sink.rows.connector' = 'postgres', 'evertide.sink.rows.url' = '{postgres}',
    'evertide.sink.rows.table' = 'public.both', 'evertide.sink.rows.key' = 'id',
    'evertide.sink.records.connector' = 'kafka', 'evertide.sink.records.brokers' = '{brokers}',
    'evertide.sink.records.topic' = '{out}', 'evertide.sink.records.key' = 'id',
    'evertide.sink.lake.connector' = 'delta', 'evertide.sink.lake.path' = './lake', 'evertide.sink.lake.key' = 'id',
    'evertide.sink.log.connector' = 'files', 'evertide.sink.log.path' = './log'
) AS SELECT b.id, b.amount + s.amount AS amount FROM bought b JOIN seen s ON b.id = s.id;
"""


def test_x16_connectors_do_not_listen(tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    topic, out = new_topic(kafka_broker), new_topic(kafka_broker)
    produce(kafka_broker, topic, [({"id": 1}, {"id": 1, "amount": 3})])
    with running_logical() as server:
        database = Database(server, "x16")
        database.run("CREATE TABLE bought (id BIGINT PRIMARY KEY, amount BIGINT)", "INSERT INTO bought VALUES (1, 2)")
        places = {"postgres": database.dsn, "brokers": kafka_broker.brokers, "topic": topic, "out": out}
        made = Run(tmp_path, CONNECTED.format(**places))
        try:
            wait_for(lambda: all(one["last"] is not None for one in made.sinks()), WAIT_S)
            assert database.rows('SELECT * FROM public."both"') == [(1, 5)]
            check_listening(made)
        finally:
            made.stop()
            database.close()


def test_the_scan_finds_an_endpoint_that_answers_every_client(spark: SparkSession) -> None:
    """The tests started this session without a secret."""
    port = int(spark.conf.get("spark.driver.port") or 0)
    assert has_endpoint(spark, port, "BlockManagerMaster")


@pytest.fixture(scope="module")
def lure() -> Iterator[Lure]:
    with running_lure() as server:
        yield server


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_x16_no_role_can_read_a_file_or_an_address_by_a_query(
    run: Run, lure: Lure, tmp_path: Path, engine: str
) -> None:
    """Fails without the tables of functions. The answer does not reveal whether a file exists either."""
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


def test_x16_no_row_makes_a_view_fetch_a_url(run: Run, lure: Lure) -> None:
    """Fails if the JVM starts without `javax.xml.accessExternalDTD`: any client with the role write can push
    such rows."""
    rows = [{"id": 1, "xml": "<a><b>1</b></a>"}]
    assert run.ask("POST", "/v1/tables/documents/rows", "write", rows)[0] == 200
    assert run.ask("GET", "/v1/views/read/rows", "read")[1]["rows"] == [[1, "1", "1"]]
    rows = [{"id": 2, "xml": f'<!DOCTYPE a SYSTEM "{lure.url}"><a><b>1</b></a>'}]
    assert run.ask("POST", "/v1/tables/documents/rows", "write", rows)[0] == 200
    assert lure.asked == []
    collections = run.ask("GET", "/v1/status", "read")[1]["collections"]
    assert next(each["state"] for each in collections if each["name"] == "read") == "failed"
    assert run.ask("POST", "/v1/tables/documents/rows?deletes=true", "write", [{"id": 2}])[0] == 200


def test_x16_no_token_is_on_a_command_line_or_in_a_worker(run: Run) -> None:
    for process in run.processes():
        if process.status() == psutil.STATUS_ZOMBIE:
            continue
        assert not any(token in word for token in TOKENS.values() for word in process.cmdline())
        if psutil.Process(process.pid).ppid() != run.process.pid and process.pid != run.process.pid:
            continue
        if program(process) == "query":
            assert not any(token in process.environ().values() for token in TOKENS.values())
            assert Path(process.cwd()).stat().st_mode & 0o077 == 0


@pytest.mark.skipif(sys.platform != "linux", reason="isolation is Linux's")
def test_x16_every_worker_is_isolated(run: Run) -> None:
    """Fails if the worker does not call `isolate`, or a child escapes: the kernel reports the restrictions of each
    process."""
    if any("query process runs without" in line for line in run.errors):
        pytest.skip("this system does not allow all of it")
    outside = Path(f"/proc/{run.process.pid}/ns/net").readlink()
    alive = [each for each in run.processes() if each.status() != psutil.STATUS_ZOMBIE]
    workers = [each for each in alive if program(each) == "query"]
    assert len(workers) == 2
    seen = set()
    for worker in workers:
        for process in (worker, *worker.children(recursive=True)):
            if process not in alive:
                continue
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            seen.add(program(process))
            assert facts["NoNewPrivs"] == "1"
            assert int(facts["CapEff"], 16) & ~0b11111 == 0
            has_sockets = facts["Seccomp"] == "0"
            assert has_sockets == bool(worker.children())  # only Spark has child processes
            assert not has_sockets or Path(f"/proc/{process.pid}/ns/net").readlink() != outside
    assert {"query", "jvm"} <= seen
