"""`Client` over views that failed, or are computed again: it warns when that changes, and never continues with other
content."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from evertide import StaleViewWarning
from evertide.client import Client
from evertide.errors import NotAllowedNow, ShardEnded
from evertide.pipeline.pipeline import Pipeline
from tests.pipeline.kit import engine, open_pipeline
from tests.pipeline.test_evolution import fill_storage, redefined
from tests.pipeline.test_threads import wait_until
from tests.server.kit import order, served, stored

FAILED = "view 'share' is failed, and its content is that of transaction 1; its status says why"


@contextmanager
def connected(pipeline: Pipeline) -> Iterator[Client]:
    with served(pipeline) as known, Client(f"http://{known.host}:{known.port}/") as client:
        yield client


@contextmanager
def shop() -> Iterator[tuple[Pipeline, Client]]:
    """A shop in which an order with the amount 0 makes the view `share` fail."""
    with (
        TemporaryDirectory() as folder,
        open_pipeline(stored(Path(folder)), engine("revenue", "share")) as p,
        connected(p) as client,
    ):
        client.push("orders", [order(1, amount=50)])
        yield p, client


def test_every_read_of_a_failed_view_warns_at_the_line_that_reads() -> None:
    with shop() as (_, client):
        client.push("orders", [order(2, amount=0)])
        reads: list[Callable[[], object]] = [
            lambda: client.rows("share"),
            lambda: [*client.batches("share")],
            lambda: client.changes("share", since=0),
            lambda: client.query("SELECT * FROM share"),
            lambda: client.query("SELECT * FROM share JOIN orders USING (id)"),
        ]
        for read in reads:
            with pytest.warns(StaleViewWarning) as warned:
                read()
            assert [str(one.message) for one in warned] == [FAILED]
            assert [one.filename for one in warned] == [__file__]
        client.push("orders", [order(2, amount=10)])
        with warnings.catch_warnings(action="error"):
            client.rows("share")
            client.query("SELECT * FROM share")


def test_a_subscription_warns_once_when_the_view_fails_and_ends_when_it_was_computed_again() -> None:
    """Fails if the changes of the new content continue the old: the difference between them would be missing."""
    with shop() as (_, client), ThreadPoolExecutor(1) as threads:
        feed = client.subscribe("share")
        assert next(feed)[1].num_rows == 1
        client.push("orders", [order(2, amount=0)])
        with warnings.catch_warnings(record=True, action="always") as warned:
            waiting = threads.submit(next, feed)
            for number in range(3, 6):
                client.push("orders", [order(number)])
            assert not waiting.done()
            client.push("orders", [order(2, amount=10)])
            with pytest.raises(ShardEnded, match="'share': it was computed again"):
                waiting.result()
        assert [str(one.message) for one in warned if one.category is StaleViewWarning] in ([], [FAILED])
        [(_, rows)] = client.subscribe("share", follow=False)
        assert rows.num_rows == 5


def test_a_subscription_repeats_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evertide.client.client._WAIT_S", 0.1)
    with shop() as (_, client), ThreadPoolExecutor(1) as threads:
        client.push("orders", [order(2, amount=0)])
        with warnings.catch_warnings(record=True, action="always") as warned:
            feed = client.subscribe("share")
            next(feed)
            polls: list[int] = []
            read = client._read

            def count(*given: object) -> object:
                polls.append(1)
                return read(*given)  # type: ignore[arg-type]

            monkeypatch.setattr(client, "_read", count)
            waiting = threads.submit(next, feed)
            wait_until(lambda: len(polls) > 4)
            client.push("orders", [order(2, amount=10)])
            with pytest.raises(ShardEnded):
                waiting.result()
        assert [str(one.message) for one in warned] == [FAILED]


def test_a_subscription_does_not_continue_with_the_rows_of_another_query() -> None:
    """Fails without the id of the content: time 4 is in both contents, and no transaction is between them."""
    kept = fill_storage()
    with open_pipeline(kept, engine("revenue", "counts")) as p, connected(p) as client:
        feed = client.subscribe("revenue")
        upper, rows = next(feed)
        assert (upper, rows.num_rows) == (5, 1)
    with redefined(kept, "another query") as (p, may_go_on), connected(p) as later:
        client._http = later._http
        with pytest.raises(NotAllowedNow, match="its query changed"):
            later.rows("revenue")
        with pytest.raises(NotAllowedNow, match="its query changed"):
            later.changes("revenue", since=4, wait_s=0.1)
        may_go_on.set()
        assert p.wait_until_hydrated(20)
        later.push("orders", [order(9)])
        with pytest.raises(ShardEnded, match="its changes do not continue those that were read up to time 4"):
            next(feed)
        assert later.rows("revenue").to_pylist() == [{"customer": "all", "amount": 1}]
