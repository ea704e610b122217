"""`evertide shapes` as a separate process beside the pipeline's: killed and restarted."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evertide.runtime import SystemRuntime
from evertide.sources.generated.seeded import RandomStream
from evertide.store.open import open_storage
from tests.cli.kit import evertide, one_error, spawned
from tests.pipeline.kit import SETTINGS, open_pipeline
from tests.shapes.kit import Follower, Shop, engine, order
from tests.shapes.test_oracle import SHAPES, Watched, transaction


@contextmanager
def serving(path: Path, pipeline: Any, *options: str) -> Iterator[tuple[subprocess.Popen[str], Shop]]:
    listen = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    with spawned("shapes", "--storage", path, "--json", *listen, *options) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            host, port = json.loads(line)["address"].removeprefix("http://").split(":")
            yield process, Shop(pipeline, None, host, int(port))  # type: ignore[arg-type]
        finally:
            process.kill()
            assert process.stderr is not None
            print(process.stderr.read())  # shown if the test fails


def test_clients_continue_with_the_next_process_after_a_kill(tmp_path: Path) -> None:
    chance = RandomStream(5)
    store = open_storage(tmp_path / "s", runtime=SystemRuntime(), settings=SETTINGS)
    with open_pipeline(store, engine()) as pipeline:
        pipeline.push("orders", [order(1)])
        pipeline.commit()
        watched: list[Watched] = []
        for _ in range(3):
            with serving(tmp_path / "s", pipeline) as (process, s):
                watched = watched or [Watched(one, Follower(s, one.query)) for one in SHAPES]
                for _ in range(8):
                    transaction(s, chance)
                    for _ in range(5):
                        watched[chance.below(len(watched))].step(s, chance, may_wait=False)
                transaction(s, chance)
                for one in watched:
                    one.client.shop = s
                    one.client.caught_up()
                process.kill()
            pipeline.checkpoint()
            transaction(s, chance)  # while no process serves
        assert sum(one.client.refetched for one in watched) == 0
        with serving(tmp_path / "s", pipeline, "--allow-deletion") as (process, s):
            for one in watched:
                one.client.shop = s
                one.client.caught_up()
                expected = one.wanted.expected(s, pipeline.time)
                assert one.client.content(*one.wanted.columns) == expected
            ended = watched[0].client
            assert s.ask("DELETE", handle=ended.handle).status == 202
            assert ended.step().status == 409
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_the_secret_health_and_unknown_addresses(tmp_path: Path, monkeypatch: Any) -> None:
    store = open_storage(tmp_path / "s", runtime=SystemRuntime(), settings=SETTINGS)
    monkeypatch.setenv("EVERTIDE_SHAPES_SECRET", "hush-hush-hush-hush")
    with open_pipeline(store, engine()) as pipeline:
        pipeline.push("orders", [order(1)])
        pipeline.commit()
        with serving(tmp_path / "s", pipeline) as (_, s):
            assert s.get().status == 401
            assert s.get(secret="hush-hush-hush-hush").status == 200
            health = s.ask(path="/v1/health")
            assert (health.status, health.body) == (200, {"status": "active"})
            assert health.headers["cache-control"] == "no-cache, no-store, must-revalidate"
            assert (s.ask(path="/").status, s.ask(path="/").content) == (200, b"")
            assert s.ask(path="/v1/other").status == 401
            pipeline.close()
            waiting = s.ask(path="/v1/health")
            assert (waiting.status, waiting.body["status"]) == (202, "waiting")
            assert s.get(secret="hush-hush-hush-hush").status == 200  # existing shapes are still served
    assert "no storage" in one_error(evertide("shapes", "--storage", tmp_path / "none", "--listen", ":0"), 2)
    assert "expected HOST:PORT" in one_error(evertide("shapes", "--storage", tmp_path / "s", "--listen", "x"), 2)
