"""pgbench, views and all sinks, killed again and again, for a share of `EVERTIDE_SOAK_MINUTES`; half of it with Spark.

Each round has a server and a storage of its own, and ends with a comparison of all views and targets with the source
(`tests/pipeline/test_everything.py`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evertide.sources.chance import Chance
from tests.pipeline.everything import World
from tests.pipeline.test_everything import database, survive
from tests.servers.kafka import KafkaBroker
from tests.soak.test_soak import soak
from tests.sources.kafka.kit import new_topic


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_everything_that_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kafka_broker: KafkaBroker, spark: object
) -> None:
    """The end of a round is looked at by the session that all tests share."""

    def once(number: int) -> str:
        kind, kills, rate = ("spark", 3, 100) if number % 2 else ("small", 12, 60)
        chance = Chance(os.getpid() * 1000 + number)
        directory = tmp_path / str(number)
        directory.mkdir()
        with database(f"everything{number}") as db:
            topic = new_topic(kafka_broker, 2)
            world = World(kind, str(directory / "s"), db.dsn, db.slot, kafka_broker.brokers, topic)
            return survive(world, db, kafka_broker, chance, kills=kills, rate=rate)

    soak("everything", capsys, once)
