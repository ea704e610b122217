"""`evertide plan` shows what a script would change; `run` asks before tables vanish or much is recomputed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.pipeline.reading.reader import StorageReader
from tests.cli.kit import ROOT, SHOP, document, evertide, make_storage, one_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OTHER = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, channel STRING, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW revenue AS SELECT customer, sum(amount + 1) AS amount FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW top AS SELECT max(amount) AS amount FROM orders;
"""


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A storage with the tables `orders` and `notes`."""
    return make_storage(tmp_path / "s")


def test_a_plan_shows_each_change_and_changes_nothing(tmp_path: Path, kept: Path, spark: SparkSession) -> None:
    (tmp_path / "shop.sql").write_text(OTHER)
    before = (kept / "meta.db").read_bytes()
    told = evertide("plan", tmp_path / "shop.sql", "--storage", kept)
    assert told.exit_code == 0, told.stderr
    assert [" ".join(line.split()) for line in told.stdout.splitlines()[1:]] == [
        "~ table orders new columns, NULL in stored rows: channel STRING",
        "- table notes no longer declared: its rows stay, and return when it is declared again",
        "~ view revenue changed: recomputed from about 3 rows; until then, only earlier times can be read",
        "+ view top new: computed from about 3 rows",
        "- view counts no longer declared: its content is deleted",
    ]
    found = document(evertide("plan", tmp_path / "shop.sql", "--storage", kept, "--json"))
    assert [(one["name"], one["effect"]) for one in found["changes"]][:2] == [
        ("orders", "changed"),
        ("notes", "removed"),
    ]
    assert found["reasons_to_ask"] == ["the script no longer declares 1 table: notes"]
    assert (kept / "meta.db").read_bytes() == before


def test_a_plan_for_a_missing_storage_creates_none(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "shop.sql").write_text(SHOP)
    told = evertide("plan", tmp_path / "shop.sql", "--storage", tmp_path / "none")
    assert "+ table  orders" in told.stdout
    assert not (tmp_path / "none").exists()


def test_run_without_a_terminal_refuses_lost_tables(tmp_path: Path, kept: Path, spark: SparkSession) -> None:
    (tmp_path / "shop.sql").write_text(OTHER)
    run = ("run", tmp_path / "shop.sql", "--storage", kept, "--until-idle")
    told = evertide(*run)
    assert told.exit_code == 19
    assert "- table  notes" in told.stderr
    assert "no longer declares 1 table: notes; set `evertide run --yes`" in told.stderr
    assert "no longer declares 1 table: notes" in one_error(evertide(*run, "--json"), 19)
    with StorageReader.open(kept) as reader:
        assert reader.definition is not None
        assert reader.definition.tables["notes"].is_declared
    assert evertide(*run, "--yes").exit_code == 0
    with StorageReader.open(kept) as reader:
        assert reader.definition is not None
        assert not reader.definition.tables["notes"].is_declared
    assert evertide(*run).exit_code == 0  # nothing changes any more


def test_push_does_not_change_the_declared_tables(tmp_path: Path, kept: Path, spark: SparkSession) -> None:
    (tmp_path / "shop.sql").write_text(OTHER)
    (tmp_path / "rows.csv").write_text("id,customer,amount\n9,ann,1\n")
    told = evertide("push", "orders", tmp_path / "rows.csv", "--storage", kept, "--script", tmp_path / "shop.sql")
    assert told.exit_code == 19
    assert "no longer declares 1 table: notes" in told.stderr


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 19), ("", 19)])
def test_run_asks_at_a_terminal(tmp_path: Path, kept: Path, answer: str, code: int) -> None:
    (tmp_path / "shop.sql").write_text(OTHER)
    command = [sys.executable, "-m", "evertide.cli", "run", str(tmp_path / "shop.sql"), "--storage", str(kept)]
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    with subprocess.Popen(
        [*command, "--until-idle"], stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL, env=env
    ) as p:
        os.close(theirs)
        seen = b""
        while b"Continue? [y/N]" not in seen:
            seen += os.read(ours, 4096)
        os.write(ours, f"{answer}\n".encode())
        seen += _read_to_end(ours)
        assert p.wait() == code, seen.decode()
    os.close(ours)
    assert b"- table  notes" in seen
    assert (b"the changes were not confirmed" in seen) == (code != 0)


def _read_to_end(source: int) -> bytes:
    found = b""
    try:
        while read := os.read(source, 4096):
            found += read
    except OSError:  # Linux reports the end of a terminal so
        pass
    return found
