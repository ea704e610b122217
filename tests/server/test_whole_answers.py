"""A server that is killed during an answer leaves the client with a whole answer, or with none."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.processes import running
from tests.server.kit import Client

SHAPE = {"table": "orders", "offset": "-1"}


def address(path: str, **query: str) -> str:
    return f"{path}?{urlencode(query)}"


@pytest.mark.parametrize("rows", [200, 3000], ids=["small", "chunk"])
@pytest.mark.parametrize("kind", ["snapshot", "live", "arrow", "push"])
def test_a_kill_after_the_first_write_leaves_a_whole_answer(kind: str, rows: int, tmp_path: Path) -> None:
    """Fails if the head of an answer is written apart from its body, or the send buffer does not hold both."""
    with running("tests.server.kill_after_write", tmp_path / "s", rows) as worker:
        host, port = worker.began.split()
        client = Client(host, int(port), timeout_s=60)
        first = client.raw("GET", address("/v1/shape", **SHAPE))
        waiting: Mapping[str, str] = {**SHAPE, "offset": "0_inf", "handle": first.headers["electric-handle"]}
        asked = {
            "snapshot": ("GET", address("/v1/shape", **SHAPE), None),
            "live": ("GET", address("/v1/shape", **waiting, live="true"), None),
            "arrow": ("GET", "/v1/tables/orders/rows?format=arrow", None),
            "push": ("POST", "/v1/tables/orders/rows", b'[{"id": 10000}]'),
        }
        with closing(http.client.HTTPConnection(host, int(port), timeout=60)) as connection:
            connection.request(*asked[kind], {"X-Kill": "1", "Content-Type": "application/json"})
            if kind == "live":
                with suppress(ConnectionError):  # the process may be killed before it answers the push
                    client.post("/v1/tables/orders/rows", [{"id": 10_000 + number} for number in range(rows)])
            with connection.getresponse() as answer:
                content = answer.read()  # raises if a byte is missing
        assert (answer.status, int(answer.headers["content-length"])) == (200, len(content))
        assert worker.process.wait(60) == -9
