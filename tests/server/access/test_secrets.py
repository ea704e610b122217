"""A whole run with secrets everywhere: none of them is in any output.

A real process, a PostgreSQL that asks for a password and then for another one, a Meta in PostgreSQL, a webhook that
echoes its requests, tokens of every kind. The test sends all requests, right ones and wrong ones; then it searches all
output and all stored bytes for every secret, also in its URL and base64 forms.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, urlencode, urlsplit

import pytest

from evertide.server.access import ROLES
from tests.cli.kit import ROOT, evertide
from tests.sinks.test_webhook import Receiver
from tests.sources.postgres.server import LOCKED, Database, running_logical

SECRETS = {
    "pg": "pg-Pässword/with+odd=signs",
    "meta": "meta-password-7781",
    "hook": "hook-token-4411-abcdef",
    "hook_key": "hook-key-9921-abcdef",
    "file": "file-token-0123456789",
    "EVERTIDE_TOKEN": "env-admin-token-0123456789",
    "EVERTIDE_TOKEN_READ": "env-read-token-0123456789",
    "EVERTIDE_TOKEN_WRITE": "env-write-token-0123456789",
    "EVERTIDE_SHAPES_SECRET": "shapes-secret-0123456789",
    "wrong": "a-token-that-is-not-known",
}
SCRIPT = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, PRIMARY KEY (id))
USING postgres OPTIONS (url '{url}', user '{user}', password '${{FILE:pg.password}}', slot '{slot}');
CREATE TABLE notes (text STRING);
CREATE MATERIALIZED VIEW totals TBLPROPERTIES (
    'evertide.sinks' = 'hook',
    'evertide.sink.hook.connector' = 'webhook',
    'evertide.sink.hook.url' = '{hook}&key=${{FILE:hook.key}}',
    'evertide.sink.hook.header.authorization' = 'Bearer ${{ENV:HOOK}}'
) AS SELECT customer, sum(amount) AS amount FROM orders GROUP BY customer;
"""
WAIT_S = 240
LOCAL = threading.Event()


def spellings(secret: str) -> set[bytes]:
    plain = secret.encode()
    escaped = json.dumps(secret)[1:-1].encode()
    return {
        plain,
        escaped,
        quote(secret).encode(),
        quote_plus(secret).encode(),
        base64.b64encode(plain).rstrip(b"=")[:-1],
    }


def leaks(said: dict[str, bytes]) -> list[str]:
    """Return which secret is in which output."""
    return [
        f"{name} is in {where}: ...{content[max(0, content.find(text) - 80) : content.find(text) + 20]!r}"
        for where, content in said.items()
        for name, secret in SECRETS.items()
        for text in spellings(secret)
        if text in content
    ]


class Run:
    """`evertide run`, and all of its output."""

    def __init__(self, folder: Path, script: Path, meta: str) -> None:
        tokens = folder / "tokens.toml"
        tokens.write_text(
            f'[[token]]\nname = "file"\nrole = "read"\ntoken = "{SECRETS["file"]}"\nwhere = {{orders = "true"}}\n'
        )
        tokens.chmod(0o600)
        own = {name: text for name, text in SECRETS.items() if name.startswith("EVERTIDE_")}
        env = {**os.environ, **own, "HOOK": SECRETS["hook"], "SPARK_LOCAL_IP": "127.0.0.1", "EVERTIDE_META": meta}
        command = [
            "run",
            str(script),
            "--storage",
            str(folder / "s"),
            "--listen",
            ":0",
            "--tokens",
            str(tokens),
            "--json",
        ]
        options = ["--set", "stall_after_s=0.1", "--set", "slow_transaction_s=0.001"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "evertide.cli", *command, *options], env={**env, "PYTHONPATH": str(ROOT)}, **pipes
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self.address = ""
        self._listening = threading.Event()
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_out, self._read_err)]
        for reader in self._readers:
            reader.start()
        assert self._listening.wait(WAIT_S), "".join(self.err)
        assert self.address, "".join(self.err)

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.out.append(line)
            if '"listening"' in line:
                self.address = json.loads(line)["address"]
                self._listening.set()
        self._listening.set()

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.err.append(line)

    def ask(self, method: str, path: str, token: str = "", body: Any = None) -> tuple[int, bytes]:
        """Return head and body of the answer; of an endless stream, its beginning."""
        where = urlsplit(self.address)
        connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=60)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            with connection.getresponse() as answer:
                is_stream = answer.getheader("content-type", "").startswith("text/event-stream")
                content = answer.readline() if is_stream else answer.read()
                return answer.status, str(answer.getheaders()).encode() + content
        finally:
            connection.close()

    def wait_for(self, path: str, text: bytes) -> bytes:
        for _ in range(WAIT_S * 5):
            found = self.ask("GET", path, SECRETS["EVERTIDE_TOKEN"])[1]
            if text in found:
                return found
            LOCAL.wait(0.2)
        pytest.fail(f"{path} never said {text!r}: {found!r} {self.err}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)
        for reader in self._readers:
            reader.join(10)


@contextmanager
def started(folder: Path, script: Path, meta: str) -> Iterator[Run]:
    run = Run(folder, script, meta)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()
        for stream in (run.process.stdout, run.process.stderr):
            if stream is not None:
                stream.close()


def ask_everything(run: Run) -> dict[str, bytes]:
    admin, said = SECRETS["EVERTIDE_TOKEN"], {}
    for rule in ROLES:
        names = {"name": "totals" if "views" in rule.path else "orders", "table": "notes", "id": "x", "handle": "x"}
        path = rule.path.replace("{path:path}", "main.js").format(**names)
        if rule.method == "GET":
            more = "?since=0" if path.endswith("changes") else "?table=orders&offset=-1" if path == "/v1/shape" else ""
            said[f"GET {path}"] = run.ask("GET", path + more, admin)[1]
        for token in ("", SECRETS["wrong"], SECRETS["file"]):
            said[f"{rule.method} {path} {token}"] = run.ask(rule.method, path, token)[1]
    for body in ({"sql": "SELECT * FROM totals"}, {"sql": "SELECT nothing FROM nowhere"}, {"sql": 1}, "x"):
        said[f"query {body}"] = run.ask("POST", "/v1/query", admin, body)[1]
    for rows in ([{"text": "hello"}], [{"no": 1}], "x"):
        said[f"rows {rows}"] = run.ask("POST", "/v1/tables/notes/rows", SECRETS["EVERTIDE_TOKEN_WRITE"], rows)[1]
    for secret in ("EVERTIDE_SHAPES_SECRET", "wrong", "EVERTIDE_TOKEN_READ"):
        for table in ("orders", "no_such"):
            query = urlencode({"table": table, "offset": "-1", "secret": SECRETS[secret]})
            said[f"shape {secret} {table}"] = run.ask("GET", f"/v1/shape?{query}")[1]
            said[f"status {secret} {table}"] = run.ask("GET", f"/v1/status?{query}")[1]
    said["checkpoint"] = run.ask("POST", "/v1/checkpoints", admin, {})[1]
    return said


def read_everything_stored(folder: Path, meta: Database) -> dict[str, bytes]:
    said = {str(path): path.read_bytes() for path in (folder / "s").rglob("*") if path.is_file()}
    tables = meta.rows("SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables"
                       " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')")  # fmt: skip
    assert tables
    for (table,) in tables:
        rows = meta.rows(f"SELECT * FROM {table}")
        values = [value for row in rows for value in row]
        said[f"meta {table}"] = b"\n".join(
            bytes(each) if isinstance(each, bytes) else str(each).encode() for each in values
        )
    return said


def commands(folder: Path, script: Path, meta: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return the output of other commands, also of failing ones."""
    monkeypatch.setenv("HOOK", SECRETS["hook"])
    where = ("--storage", str(folder / "s"), "--meta", meta)
    nowhere = ("--storage", str(folder / "s"), "--meta", meta.replace("port=5432", "port=1"))
    (folder / "bad.toml").write_text(f'[[token]]\nname = "x"\nrole = "rea"\ntoken = "{SECRETS["file"]}"\n')
    (folder / "bad.toml").chmod(0o600)
    asked: dict[str, tuple[str, ...]] = {
        "status": ("status", *where, "--json"),
        "status for people": ("status", *where),
        "journal": ("journal", *where, "--json"),
        "checkpoints": ("checkpoints", *where),
        "fsck": ("fsck", *where),
        "no meta": ("status", *nowhere),
        "bad tokens": ("shapes", *where, "--listen", ":0", "--tokens", str(folder / "bad.toml")),
        "short secret": ("shapes", *where, "--listen", ":0", "--shapes-secret", SECRETS["hook"][:15]),
    }
    said = {}
    for name, command in asked.items():
        result = evertide(*command)
        said[name] = f"{result.stdout}\n{result.stderr}".encode()
    return said


@pytest.mark.timeout(1200)
def test_no_secret_of_a_whole_run_is_in_any_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail without `hide` in any connector, or without `remember` of the token."""
    (tmp_path / "pg.password").write_text(SECRETS["pg"])
    (tmp_path / "hook.key").write_text(f"{SECRETS['hook_key']}\n")
    said: dict[str, bytes] = {}
    with running_logical() as server, Receiver().serving() as receiver:
        db, meta = Database(server, "shop"), Database(server, "meta")
        db.run(
            f"CREATE USER {LOCKED} SUPERUSER PASSWORD '{SECRETS['pg']}'",
            "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount bigint)",
            "INSERT INTO orders VALUES (1, 'ann', 10), (2, 'bob', 20)",
        )
        script = tmp_path / "shop.sql"
        script.write_text(SCRIPT.format(url=db.dsn, user=LOCKED, slot=db.slot, hook=receiver.url))
        url = meta.dsn.replace("evertide@", f"evertide:{SECRETS['meta']}@")
        with started(tmp_path, script, url) as run:
            run.wait_for("/v1/views/totals/rows", b"bob")
            receiver.answers += [500, 403, 403, 403, 403, 403, 403, 403, 403, 403]
            db.run("INSERT INTO orders VALUES (3, 'cat', 30)")
            run.wait_for("/v1/status", b"status 403")
            db.run(f"ALTER USER {LOCKED} PASSWORD 'another'")
            db.cut_others(db.connection)
            run.wait_for("/v1/status", b"authentication failed")
            said |= ask_everything(run)
            run.stop()
            said |= {"stdout": "".join(run.out).encode(), "stderr": "".join(run.err).encode()}
        assert any(one.get("authorization") == f"Bearer {SECRETS['hook']}" for one in receiver.headers)
        said |= commands(tmp_path, script, url, monkeypatch)
        said |= read_everything_stored(tmp_path, meta)
        for each in (db, meta):
            each.connection.close()
    assert not leaks(said), "\n".join(leaks(said))
    found = b"\n".join(said.values())
    for expected in (b"***", b"ann", b"evertide_", b"unauthorized", b"forbidden"):
        assert expected in found, expected  # the search covers real output
    assert leaks({"a": f"x{SECRETS['pg']}y".encode(), "b": quote(SECRETS["hook"]).encode()})
