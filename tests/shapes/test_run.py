"""`evertide run --listen` serves shapes too; on the Spark that all tests share."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.kit import SHOP, evertide
from tests.server.kit import Client
from tests.shapes.kit import Follower, Shop, order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HUSH = "hush-hush-hush-hush"
WRITE = "who-may-write-has-this"


def push_first(client: Client, *more: dict[str, Any]) -> Client:
    """Push the first transaction as soon as the server listens."""
    for _ in range(1200):
        try:
            if client.post("/v1/tables/orders/rows", [order(1), *more]).status != 503:  # the pipeline is being opened
                break
        except ConnectionRefusedError:
            pass
        threading.Event().wait(0.05)
    return client


def test_tables_and_views_of_a_run_are_followed_live(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERTIDE_TOKEN_WRITE", WRITE)
    (tmp_path / "shop.sql").write_text(SHOP)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def follow() -> list[Follower]:
        pushing = push_first(Client("127.0.0.1", port, token=WRITE), order(2, "bob"))
        shop = Shop(None, None, "127.0.0.1", port)  # type: ignore[arg-type]
        assert shop.get().status == 401
        followers = [Follower(shop, {"table": table, "secret": HUSH}).caught_up() for table in ("orders", "revenue")]
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(one.step, live=True) for one in followers]
            pushing.post("/v1/tables/orders/rows", [order(3)])
            assert all(one.result().is_up_to_date for one in waiting)
        pushing.post(
            "/v1/tables/orders/rows", [order(4)]
        )  # the last push: it ends the run, and no request waits for it
        return followers

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(follow)
        options = ("--listen", f":{port}", "--shapes-secret", HUSH, "--transactions", "3", "--json")
        result = evertide("run", tmp_path / "shop.sql", "--storage", tmp_path / "s", *options)
        assert result.exit_code == 0, result.stderr
        orders, revenue = asked.result()
    assert orders.content("id") == [("1",), ("2",), ("3",)]
    assert revenue.content("customer", "amount") == [("ann", "20"), ("bob", "10")]
    assert sorted(revenue.rows) == ['"public"."revenue"/"ann"', '"public"."revenue"/"bob"']  # keyed by its grouping


@pytest.mark.parametrize(("options", "status", "then"), [((), 405, 200), (("--allow-deletion",), 202, 409)])
def test_clients_may_end_shapes_only_with_the_option(
    tmp_path: Path, spark: SparkSession, options: tuple[str, ...], status: int, then: int
) -> None:
    (tmp_path / "shop.sql").write_text(SHOP.split(";")[0] + ";")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def ask() -> tuple[int, int]:
        pushing = push_first(Client("127.0.0.1", port))
        shop = Shop(None, None, "127.0.0.1", port)  # type: ignore[arg-type]
        handle = shop.get().handle
        ended = shop.ask("DELETE", handle=handle).status
        found = shop.get(offset="0_0", handle=handle).status
        pushing.post("/v1/tables/orders/rows", [order(2)])  # the last: it ends the run
        return ended, found

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask)
        given = ("--listen", f"127.0.0.1:{port}", "--transactions", "2", *options)
        result = evertide("run", tmp_path / "shop.sql", "--storage", tmp_path / "s", *given)
        assert result.exit_code == 0, result.stderr
        assert asked.result() == (status, then)
