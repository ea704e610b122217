"""pgbench, views and all sinks, killed repeatedly, for a share of `EVERTIDE_SOAK_MINUTES`; half of it with Spark.

Each round has a server and a storage of its own, and ends with a comparison of all views and targets with the source
(`tests/pipeline/test_everything.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from evertide.sources.generated.seeded import RandomStream
from tests.pipeline.everything import World
from tests.pipeline.test_everything import database, survive
from tests.servers.kafka import KafkaBroker
from tests.soak.rounds import Soak
from tests.sources.kafka.kit import new_topic


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_everything_that_is_killed(tmp_path: Path, soak: Soak, kafka_broker: KafkaBroker, spark: object) -> None:
    """The session that all tests share checks the end of a round."""

    def run_round(seed: int) -> str:
        kind, kills, rate = ("spark", 3, 100) if seed % 2 else ("small", 12, 60)
        rng = RandomStream(seed)
        directory = tmp_path / str(seed)
        directory.mkdir()
        with database(f"everything{seed}") as db:
            topic = new_topic(kafka_broker, 2)
            world = World(kind, str(directory / "s"), db.dsn, db.slot, kafka_broker.brokers, topic)
            return survive(world, db, kafka_broker, rng, kills=kills, rate=rate)

    soak.rounds("everything", run_round)
