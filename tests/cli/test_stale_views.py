"""`query` and `subscribe` over a view that failed, or is computed again: a line on standard error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evertide.pipeline.pipeline import Pipeline
from tests.cli.kit import evertide, lines, open_small, order, spawned
from tests.server.kit import served

FAILED = "evertide: view 'share' is failed, and its content is that of transaction 1"


@contextmanager
def failed(folder: Path) -> Iterator[Pipeline]:
    with open_small(folder / "s", "revenue", "share") as p:
        for amount in (50, 0):
            p.push("orders", [order(amount, amount=amount)])
            p.commit()
        yield p


def test_query_and_subscribe_say_that_a_view_failed_on_standard_error(tmp_path: Path) -> None:
    with failed(tmp_path) as p, served(p) as known:
        for where in (("--storage", tmp_path / "s"), ("--url", f"http://{known.host}:{known.port}")):
            before, after = (where, ()) if where[0] == "--url" else ((), where)
            asked = evertide(*before, "query", "SELECT * FROM share", *after, "--json")
            assert json.loads(asked.stdout)["rows"] == [{"id": 50, "share": 2}]
            assert asked.stderr.splitlines() == [FAILED]
            told = evertide(*before, "subscribe", "share", *after, "--no-follow", "--json")
            assert lines(told)[-1] == {"complete": 1}
            assert told.stderr.splitlines() == [f"{FAILED}; its status says why"]


def test_subscribe_says_when_the_view_fails_and_ends_when_it_was_computed_again(tmp_path: Path) -> None:
    """Fails if only the shard is followed: it does not change while the view stands still."""
    with open_small(tmp_path / "s", "revenue", "share") as p:
        p.push("orders", [order(1, amount=50)])
        p.commit()
        command = spawned("subscribe", "share", "--storage", tmp_path / "s", "--json")
        assert command.stdout is not None
        assert command.stderr is not None
        assert [json.loads(command.stdout.readline()).get("complete") for _ in range(2)] == [None, 1]
        p.push("orders", [order(2, amount=0)])
        p.commit()
        assert command.stderr.readline() == f"{FAILED}; its status says why\n"
        p.push("orders", [order(2, amount=10)])
        p.commit()
        told, error = command.communicate(timeout=60)
        assert told == ""
        assert json.loads(error)["error_code"] == "shard_ended"
