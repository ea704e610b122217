"""`push`, `run`, `checkpoint` on the Spark that all tests share; wrong commands are refused before Spark starts."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.cli.kit import SHOP, document, evertide, lines, make_storage, one_error, open_small, order
from tests.pipeline.kit import open_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PROJECT = "name: shop\nstorage: file:///tmp/shop\nlibraries:\n  - glob:\n      include: code/**\n"
PRICED = """
import os
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

SERVICE = os.environ["EVERTIDE_TEST_SERVICE"]

def ask(amount):
    if not Path(SERVICE).exists():
        raise ConnectionError("the service is away")
    return 2 * amount

@dp.materialized_view
def priced():
    price = udf(ask, "long", useArrow=False)
    return SparkSession.active().table("orders").select("id", price("amount").alias("price"))
"""


@pytest.fixture
def shop(tmp_path: Path) -> tuple[str | Path, ...]:
    (tmp_path / "shop.sql").write_text(SHOP)
    return ("--storage", tmp_path / "s", "--script", tmp_path / "shop.sql")


def _revenue(storage: Path) -> dict[str, int]:
    told = lines(evertide("subscribe", "revenue", "--storage", storage, "--no-follow", "--json"))
    return {line["row"]["customer"]: line["row"]["amount"] for line in told if "row" in line}


def test_push_files_of_all_kinds_each_as_one_transaction(
    tmp_path: Path, shop: tuple[str | Path, ...], spark: SparkSession
) -> None:
    (tmp_path / "a.csv").write_text("amount,customer,id\n5,ann,1\n7,,2\n")
    pq.write_table(pa.table({"id": [3], "customer": ["ann"], "amount": [8]}), tmp_path / "b.parquet")
    found = document(evertide("push", "orders", tmp_path / "a.csv", *shop, "--json"))
    assert found == {"table": "orders", "rows": 2, "time": 1}
    assert "at time 2" in evertide("push", "orders", tmp_path / "b.parquet", *shop).stdout
    stdin = '{"id": 1, "customer": "bob", "amount": 1}\n'
    assert evertide("push", "ORDERS", "-", *shop, "--format", "json", stdin=stdin).exit_code == 0
    assert _revenue(tmp_path / "s") == {"ann": 8, "bob": 1, None: 7}
    (tmp_path / "gone.csv").write_text("id,customer\n2,whoever\n")
    assert document(evertide("push", "orders", tmp_path / "gone.csv", *shop, "--delete", "--json"))["time"] == 4
    assert _revenue(tmp_path / "s") == {"ann": 8, "bob": 1}
    entry = document(evertide("checkpoint", *shop, "--json"))
    assert entry["time"] == 5


def test_a_view_of_a_storage_is_retried_and_fails_or_recovers(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view calls a Python function whose service is a file here."""
    project = tmp_path / "project"
    (project / "code").mkdir(parents=True)
    (project / "spark-pipeline.yml").write_text(PROJECT)
    (project / "code" / "orders.sql").write_text(SHOP.split(";")[0] + ";")
    (project / "code" / "views.py").write_text(PRICED)
    monkeypatch.setenv("EVERTIDE_TEST_SERVICE", str(tmp_path / "service"))
    place = ("--storage", tmp_path / "s", "--script", project)
    (tmp_path / "a.csv").write_text("id,customer,amount\n1,ann,5\n")
    assert evertide("push", "orders", tmp_path / "a.csv", *place).exit_code == 0
    failed = evertide("retry", "priced", *place)
    assert (failed.exit_code, failed.stdout) == (12, "")
    assert "ConnectionError: the service is away" in failed.stderr.splitlines()[-1]
    (tmp_path / "service").touch()
    assert document(evertide("retry", "priced", *place, "--json")) == {"views": ["priced"]}
    told = lines(evertide("subscribe", "priced", "--storage", tmp_path / "s", "--no-follow", "--json"))
    assert [line["row"] for line in told if "row" in line] == [{"id": 1, "price": 10}]
    assert "only a failed view" in one_error(evertide("retry", "priced", *place), 19)


def test_a_file_with_one_bad_row_is_refused_as_a_whole(
    tmp_path: Path, shop: tuple[str | Path, ...], spark: SparkSession
) -> None:
    (tmp_path / "a.csv").write_text("id,customer,amount\n1,ann,5\n2,bob,many\n")
    refused = evertide("push", "orders", tmp_path / "a.csv", *shop)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "a.csv:3, table 'orders': column 'amount': 'many' is not a" in refused.stderr
    assert "  3 | 2,bob,many" in refused.stderr
    assert _revenue(tmp_path / "s") == {}
    assert document(evertide("status", "--storage", tmp_path / "s", "--json"))["time"] == 0
    assert "set --format" in one_error(evertide("push", "orders", "-", *shop), 2)
    assert "no such table" in one_error(evertide("push", "nothing", tmp_path / "a.csv", *shop), 2)
    assert "cannot be read" in one_error(evertide("push", "orders", tmp_path / "none.csv", *shop), 2)


def test_run_until_idle_reads_all_input_and_makes_a_checkpoint(tmp_path: Path, spark: SparkSession) -> None:
    script = tmp_path / "made.sql"
    script.write_text(
        """
        CREATE TABLE bid (auction BIGINT NOT NULL, price BIGINT NOT NULL)
        USING nexmark OPTIONS (events '500', events_per_transaction '200');
        CREATE MATERIALIZED VIEW best AS SELECT auction, max(price) AS price FROM bid GROUP BY auction;
        """
    )
    run = ("run", script, "--storage", tmp_path / "s", "--json")
    opened, first, stopped = lines(evertide(*run, "--transactions", "1"))
    assert opened == {"event": "opened", "time": 0, "tables": ["bid"], "views": ["best"], "leads": True}
    assert (first["event"], first["time"], first["rows"]) == ("transaction", 1, 184)
    assert (stopped["event"], stopped["time"], stopped["checkpoint"]["time"]) == ("stopped", 1, 2)
    *_, stopped = lines(evertide(*run, "--until-idle"))
    assert (stopped["transactions"], stopped["rows"], stopped["time"]) == (2, 276, 3)
    said = evertide("run", script, "--storage", tmp_path / "s", "--until-idle", "--quiet")
    assert (said.exit_code, said.stdout) == (0, "")


def test_a_source_that_stalls_is_an_error_when_run_until_idle(tmp_path: Path, spark: SparkSession) -> None:
    """Otherwise a script that loads files would read nothing and seem to succeed."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("other\n1\n")
    script = tmp_path / "files.sql"
    script.write_text("CREATE TABLE t (id BIGINT) USING csv OPTIONS (path 'in', settle_ms '0');")
    result = evertide("run", script, "--storage", tmp_path / "s", "--until-idle", "--quiet", "--json")
    assert result.exit_code == 10
    assert json.loads(result.stderr.splitlines()[-1])["source"] == "t"


def test_an_idle_pipeline_makes_its_checkpoint(tmp_path: Path) -> None:
    """If only transactions caused checkpoints, the last ones would be replayed after every crash."""
    settings = Settings(checkpoint_interval_s=0.02, transaction_interval_s=0.01)
    store = open_storage(tmp_path / "s", runtime=SystemRuntime(), settings=settings)
    with open_pipeline(store, settings=settings) as p:
        p.push("orders", [order(1)])
        p.commit()
        thread = threading.Thread(target=p.run)
        thread.start()
        try:
            deadline_s = SystemRuntime().monotonic_s() + 20
            while p.status().checkpoints[0][1] < 2 and SystemRuntime().monotonic_s() < deadline_s:
                SystemRuntime().sleep_s(0.01)
            assert p.status().checkpoints[0][1] == 2
        finally:
            p.stop()
            thread.join()


def test_run_until_idle_does_not_end_while_it_is_paused(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as p:
        p.pause()
        thread = threading.Thread(target=p.run, kwargs={"until_idle": True})
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        p.resume()
        thread.join(20)
        assert not thread.is_alive()


def _no_spark(master: str | None) -> None:
    raise AssertionError(master)


@pytest.mark.parametrize("command", ["push", "checkpoint"])
def test_a_second_process_is_refused_before_spark_starts_and_the_first_is_named(
    tmp_path: Path, shop: tuple[str | Path, ...], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the early check, a refused process would start a Spark first."""
    monkeypatch.setattr("evertide.cli.running.open_pipeline.open_spark", _no_spark)
    args = {
        "push": ("orders", tmp_path / "a.csv", *shop),
        "checkpoint": shop,
    }[command]
    with open_small(tmp_path / "s") as p:
        line = one_error(evertide(command, *args), 3)
        assert p.status().state == "running"
    assert "runs the pipeline" in line
    assert "stop it first" in line


def test_a_wrong_command_line_is_refused_at_once(
    tmp_path: Path, shop: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertide.cli.running.open_pipeline.open_spark", _no_spark)
    make_storage(tmp_path / "s")
    assert "cannot be read" in one_error(evertide("run", tmp_path / "none.sql", *shop[:2]), 2)
    assert "no storage here" in one_error(evertide("checkpoint", "--storage", tmp_path / "x", *shop[2:]), 2)
    every = ("run", tmp_path / "shop.sql", *shop[:2], "--checkpoint-every", "-1")
    assert "checkpoint_interval_s" in one_error(evertide(*every), 2)
