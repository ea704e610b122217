"""`evertide --url`: the same commands over HTTP, with the same output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from evertide.pipeline.pipeline import Pipeline
from evertide.problem import ComponentState
from evertide.runtime import SystemRuntime
from evertide.store.open import open_storage
from tests.cli.kit import document, evertide, lines, one_error, open_small, order
from tests.pipeline.kit import SETTINGS, VIEWS, Row, by_customer, engine, open_pipeline, rows_of
from tests.server.kit import served


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[Pipeline, str]]:
    """Serve a pipeline on a disk; return its folder and URL."""
    with open_small(tmp_path / "s") as p, served(p) as client:
        for number in range(1, 4):
            p.push("orders", [order(number, "bob" if number % 2 else "ann", number)])
            p.commit()
        yield p, f"http://{client.host}:{client.port}"


def far(url: str, *args: Any) -> Result:
    return evertide("--url", url, *args)


def test_a_server_and_its_storage_give_the_same_output(shop: tuple[Pipeline, str], tmp_path: Path) -> None:
    """Each command has one code path, and only the place it reads from differs. Fails if a server's answer is printed
    in another way."""
    _, url = shop
    storage = ("--storage", tmp_path / "s")
    for command in (
        ("journal", "--json"),
        ("journal", "--from", "1", "--to", "2"),
        ("checkpoints", "--json"),
        ("query", "SELECT * FROM revenue ORDER BY 1", "--format", "csv"),
        ("query", "SELECT * FROM revenue ORDER BY 1", "--json"),
        ("subscribe", "orders", "--no-follow"),
    ):
        near, there = evertide(*command, *storage), far(url, *command)
        assert (near.exit_code, there.exit_code) == (0, 0), there.stderr
        assert there.stdout == near.stdout != "", command
    changes = ("subscribe", "revenue", "--since", "1", "--no-follow", "--json")
    told = [lines(evertide(*changes, *storage)), lines(far(url, *changes))]
    assert told[0][-1] == told[1][-1] == {"complete": 3}
    assert [line for line in told[0] if "diff" in line] == [line for line in told[1] if "diff" in line]
    near, there = document(evertide("status", "--json", *storage)), document(far(url, "status", "--json"))
    assert near.keys() == there.keys()
    assert [near[name] for name in ("time", "state", "collections")] == [
        there[name] for name in ("time", "state", "collections")
    ]
    assert "time 3" in far(url, "status").stdout


def test_rows_are_pushed_checkpoints_made_and_the_pipeline_paused(shop: tuple[Pipeline, str], tmp_path: Path) -> None:
    p, url = shop
    file = tmp_path / "orders.csv"
    file.write_text("id,customer,amount\n7,eve,1\n8,eve,2\n")
    assert document(far(url, "push", "orders", file, "--json")) == {"table": "orders", "rows": 2, "time": 4}
    (tmp_path / "gone.jsonl").write_text('{"id": 7}\n')
    assert "1 row deleted" in far(url, "push", "orders", tmp_path / "gone.jsonl", "--delete").stdout
    assert [row[0] for row in rows_of(p, "orders")] == [1, 2, 3, 8]
    named = ("--producer", "till", "--sequence", "7")
    (tmp_path / "gone.csv").write_text("id,customer,amount\n8,eve,2\n")
    assert document(far(url, "push", "orders", tmp_path / "gone.csv", *named, "--json"))["time"] == 6
    assert document(far(url, "push", "orders", tmp_path / "gone.csv", *named, "--json"))["time"] == 6  # applied once
    assert "set both options" in one_error(far(url, "push", "orders", file, "--producer", "till"), 2)
    made = document(far(url, "checkpoint", "--json"))
    assert (made["time"], p.status().checkpoints[0]) == (7, (made["number"], 7))
    assert document(far(url, "pause", "--json")) == {"state": "paused"}
    assert "resume it with" in one_error(far(url, "push", "orders", file), 19)
    assert far(url, "resume").stdout == "running\n"
    bad = tmp_path / "bad.csv"
    bad.write_text("id,customer,amount\nx,eve,1\n")
    refused = far(url, "push", "orders", bad)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert ":2, table 'orders': column" in refused.stderr
    assert "cannot read the file" in one_error(far(url, "push", "orders", tmp_path / "none.csv"), 2)


def test_errors_of_a_server_equal_those_of_the_storage(shop: tuple[Pipeline, str]) -> None:
    p, url = shop
    assert "the last time is 3" in one_error(far(url, "query", "SELECT * FROM orders", "--as-of", "9"), 2)
    assert "no such collection" in one_error(far(url, "subscribe", "nothing", "--no-follow"), 2)
    p.checkpoint()
    p.push("orders", [order(9)])
    p.commit()
    p.checkpoint()
    told = json.loads(one_error(far(url, "subscribe", "orders", "--since", "0", "--no-follow", "--json"), 3))
    assert told["error_code"] == "time_compacted"
    assert "no connection" in one_error(far("http://127.0.0.1:1", "status"), 6)


def test_url_and_token_may_come_from_the_environment(
    shop: tuple[Pipeline, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = shop
    monkeypatch.setenv("EVERTIDE_URL", url)
    monkeypatch.setenv("EVERTIDE_TOKEN", "not asked for")
    assert len(lines(evertide("journal", "--json"))) == 4
    assert "storage" in one_error(evertide("status", "--storage", tmp_path / "s"), 2), "one or the other"
    assert "has none of the files" in one_error(evertide("fsck", "--storage", tmp_path), 2), (
        "this command uses no server"
    )
    missing = ("--token-file", tmp_path / "none", "status")
    assert "--token-file" in one_error(evertide(*missing), 2)


def test_a_view_that_a_service_made_fail_is_retried_on_request(tmp_path: Path) -> None:
    """No row is wrong, and none changes: without the command the view would stay failed after the service recovers."""
    is_away = False

    def call(tables: Mapping[str, list[Row]]) -> list[Row]:
        if is_away:
            raise ArithmeticError("the service is unavailable")
        return by_customer(tables)

    made = engine("revenue")
    made.small_views = [replace(made.small_views[0], function=call), VIEWS["counts"]]
    store = open_storage(tmp_path / "s", runtime=SystemRuntime(), settings=SETTINGS)
    with open_pipeline(store, made) as p, served(p) as client:
        url = f"http://{client.host}:{client.port}"
        is_away = True
        p.push("orders", [order(1)])
        p.commit()
        assert p.definition.list_away(ComponentState.FAILED) == ["revenue"]
        failed = far(url, "retry", "revenue")
        assert (failed.exit_code, failed.stdout) == (12, "")
        assert "the service is unavailable" in failed.stderr.splitlines()[-1]
        is_away = False
        p.advance()
        assert p.definition.list_away(ComponentState.FAILED) == ["revenue"]
        assert far(url, "retry", "REVENUE").stdout == "computed: REVENUE\n"
        assert (rows_of(p, "revenue"), p.time) == ([("ann", 10)], 1)
        assert "only a failed view can be retried" in one_error(far(url, "retry", "revenue"), 19)
        assert "no such view" in one_error(far(url, "retry", "nothing", "--json"), 2)
        is_away = True
        p.push("orders", [order(2)])
        p.commit()
        assert p.definition.list_away(ComponentState.FAILED) == ["revenue"]
        is_away = False
        assert document(far(url, "retry", "revenue", "--json")) == {"views": ["revenue"]}
        assert rows_of(p, "revenue") == [("ann", 20)]


def test_commands_that_need_a_running_process_are_refused_without_one(tmp_path: Path) -> None:
    assert "evertide --url URL pause" in one_error(evertide("pause"), 2)
