"""Ctrl-C while the storage of `evertide run` does not answer: one is enough, and nothing is lost."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from tests.cli.kit import document, evertide
from tests.cli.test_processes import running, until
from tests.servers.postgres import running_postgres
from tests.servers.proxy import CuttingProxy, cutting_proxy
from tests.servers.s3 import running_s3

SCRIPT = """
CREATE TABLE bid (auction BIGINT NOT NULL, price BIGINT NOT NULL) USING nexmark OPTIONS (rate '300');
CREATE MATERIALIZED VIEW best TBLPROPERTIES (
    'evertide.sinks' = 'lake', 'evertide.sink.lake.connector' = 'files', 'evertide.sink.lake.path' = './out')
AS SELECT auction, max(price) AS price FROM bid GROUP BY auction;
"""
PATIENT = ("retry_limit_s=100000", "postgres_silence_s=100000", "inline_bytes_max=64")
"""A command that waits for these limits does not end while a test runs."""


@dataclass(frozen=True)
class Place:
    options: tuple[str | Path, ...]
    take_away: Callable[[], object]
    bring_back: Callable[[], object]


@contextmanager
def local(folder: Path) -> Iterator[Place]:
    storage, aside = folder / "s", folder / "aside"
    yield Place(("--storage", storage), lambda: shutil.move(storage, aside), lambda: shutil.move(aside, storage))


def _failing(proxy: CuttingProxy, stack: ExitStack, *, is_silent: bool) -> tuple[Callable[[], object], ...]:
    if is_silent:
        return proxy.speaks.clear, proxy.speaks.set
    return lambda: stack.enter_context(proxy.away()), proxy.back


@contextmanager
def remote(folder: Path, patch: pytest.MonkeyPatch, *, has_s3: bool, is_silent: bool) -> Iterator[Place]:
    """Use PostgreSQL, which fails; or PostgreSQL and S3, of which S3 fails."""
    with ExitStack() as stack:
        postgres = stack.enter_context(running_postgres())
        proxy = stack.enter_context(cutting_proxy(postgres.dsn.partition("host=")[2], 5432))
        meta, storage = f"postgresql://evertide@127.0.0.1:{proxy.port}/postgres", str(folder / "s")
        if has_s3:
            (folder / "s3").mkdir()
            s3 = stack.enter_context(running_s3(folder / "s3"))
            at = urlsplit(s3.endpoint)
            proxy = stack.enter_context(cutting_proxy(str(at.hostname), at.port or 0))
            for name, value in s3.environment(f"http://127.0.0.1:{proxy.port}").items():
                patch.setenv(name, value)
            storage = f"s3://{s3.bucket}/x"
        yield Place(("--storage", storage, "--meta", meta), *_failing(proxy, stack, is_silent=is_silent))


@pytest.mark.parametrize("kind", ["local", "postgres", "postgres-silent", "s3", "s3-silent"])
def test_one_ctrl_c_ends_a_run_whose_storage_does_not_answer(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail: each call was retried for `retry_limit_s`, one after the other, and a silent server was
    waited for."""
    script = tmp_path / "made.sql"
    script.write_text(SCRIPT)
    name, _, how = kind.partition("-")
    at = local(tmp_path) if kind == "local" else remote(tmp_path, monkeypatch, has_s3=name == "s3", is_silent=bool(how))
    settings = [part for one in PATIENT for part in ("--set", one)]
    with at as place:
        with running("run", script, *place.options, *settings, "--listen", "127.0.0.1:0", "--json") as process:
            address = until(process, "listening")["address"]
            made = until(process, "transaction", 3)["time"]
            place.take_away()
            asking = threading.Thread(target=_ask, args=(address,))
            asking.start()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
            asking.join()
        told = json.loads(errors.splitlines()[-1])
        assert process.returncode == told["exit_code"], errors
        if kind == "local" and told["error_code"] == "record_damaged":
            assert "removed or replaced" in told["why"]  # by a commit; a put is unavailable
        else:
            assert told["exit_code"] in {6, 7}, errors
            assert "without a checkpoint" in told["why"]
            assert "nothing is lost" in told["why"]
        place.bring_back()
        assert document(evertide("status", *place.options, "--json"))["time"] >= made
        assert evertide("fsck", *place.options).exit_code == 0


def _ask(address: str) -> None:
    """Keep a query in progress; its result does not matter here."""
    body = json.dumps({"sql": "SELECT count(*) FROM best"}).encode()
    with suppress(URLError, ConnectionError):
        urlopen(Request(f"{address}/v1/query", body, {"Content-Type": "application/json"}), timeout=120).read()
