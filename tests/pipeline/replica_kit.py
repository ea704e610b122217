"""Several replicas of a pipeline on one storage, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.settings import Settings
from evertide.store.open import Storage
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import SETTINGS, Row, engine, open_pipeline, storage

QUICK = replace(SETTINGS, lead_interval_s=1e-6, inline_bytes_max=256)


class Shared(Storage):
    """One storage for several pipelines: `close` leaves it open for the others."""

    def close(self) -> None:
        pass


def shared() -> Storage:
    made = storage()
    return Shared(made.blob, made.meta, made.root)


def replica(
    kept: Storage, made: SmallEngine | None = None, role: ProcessRole = ProcessRole.REPLICA, settings: Settings = QUICK
) -> Pipeline:
    return open_pipeline(kept, made, role=role, settings=settings)


@contextmanager
def pair(kept: Storage, *views: str, settings: Settings = QUICK) -> Iterator[tuple[Pipeline, Pipeline]]:
    """Open a leader and a follower."""
    first = replica(kept, engine(*views), settings=settings)
    second = replica(kept, engine(*views), settings=settings)
    try:
        yield first, second
    finally:
        for one in (first, second):
            if not one._is_closed:
                one.close(checkpoint=False)


def order(number: int, amount: int = 10) -> Row:
    return {"id": number, "customer": f"c{number % 2}", "amount": amount}


def leaders(*several: Pipeline) -> list[Pipeline]:
    return [one for one in several if one.leads]


def caught_up(*several: Pipeline) -> None:
    last = max(one._context.journal.committed_upper for one in several)
    for one in several:
        while one.time < last - 1:
            assert one.advance() is not None


def advance_all(p: Pipeline) -> None:
    """Advance until three steps in a row find nothing to do."""
    idle = 0
    while idle < 3:
        idle = idle + 1 if p.advance() is None else 0
