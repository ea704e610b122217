"""Random shapes, transactions, clients and crashes: a client that is up to date has the query's result at that time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from evertide.runtime import SystemRuntime
from evertide.shapes.log.follower import enforce_limits
from evertide.sources.generated.seeded import RandomStream
from evertide.store.memory import MemoryBlob, MemoryMeta
from evertide.store.open import Storage
from tests.pipeline.kit import crash
from tests.shapes.kit import OPTIONS, Answer, Follower, Shop, shop
from tests.shapes.test_stream import streaming

Row = dict[str, Any]
NAMES = ("ann", "bob", "cid", None)
QUICK = replace(OPTIONS, long_poll_s=0.02, chunk_bytes=700, sse_s=0.05, idle_s=1e-9, memory_bytes=3000)


@dataclass(frozen=True)
class Wanted:
    """A shape, and the query with the same meaning."""

    table: str
    where: str = ""
    matches: Callable[[Row], bool] = lambda _: True
    columns: tuple[str, ...] = ()
    replica: str = "default"

    @property
    def query(self) -> dict[str, str]:
        given = {"table": self.table, "where": self.where, "columns": ",".join(self.columns), "replica": self.replica}
        return {name: value for name, value in given.items() if value}

    def expected(self, s: Shop, time: int) -> list[tuple[Any, ...]]:
        rows = [row for row in s.pipeline.view(self.table).as_of(time).to_pylist() if self.matches(row)]
        columns = self.columns or (*(rows[0] if rows else ()),)
        return sorted((tuple(_text(row[name]) for name in columns) for row in rows), key=repr)


def copy_follower(client: Follower) -> Follower:
    return replace(client, rows={key: dict(row) for key, row in client.rows.items()})


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


SHAPES = [
    Wanted("orders"),
    Wanted("orders", "customer = 'ann'", lambda row: row["customer"] == "ann"),
    Wanted("orders", "amount > 5 OR customer IS NULL", lambda row: (row["amount"] or 0) > 5 or row["customer"] is None),
    Wanted("orders", "customer IN ('bob','cid')", lambda row: row["customer"] in ("bob", "cid"), ("id", "customer")),
    Wanted("orders", "id = 3", lambda row: row["id"] == 3, replica="full"),
    Wanted("revenue"),
    Wanted("revenue", "amount >= 10", lambda row: row["amount"] >= 10),
    Wanted("buyers"),
    Wanted("buyers", "customer <> 'ann'", lambda row: row["customer"] not in ("ann", None)),
    Wanted("notes"),
    Wanted("notes", "text LIKE 'a%'", lambda row: (row["text"] or "").startswith("a"), replica="full"),
]


@dataclass
class Watched:
    wanted: Wanted
    client: Follower
    before: list[Follower] = field(default_factory=list)
    """An earlier state of the client, which may lose later messages and continue from there."""
    checked: int = 0

    def step(self, s: Shop, chance: RandomStream, *, may_wait: bool = True) -> None:
        self.client.shop = s
        kind = chance.below(10)
        if kind == 0 and self.before:
            self.client = copy_follower(self.before[chance.below(len(self.before))])
            self.client.shop = s
        elif kind == 1:
            self.client = Follower(s, self.wanted.query)
        elif kind == 2 and may_wait and self.client.offset != "-1" and self.client.is_up_to_date:
            self._stream(s)  # which is silent until it ends, if nothing happens
            return
        answer = self.client.step(live=may_wait and kind > 6 and self.client.offset != "-1")
        self._check(s, answer)

    def _check(self, s: Shop, answer: Answer) -> None:
        if answer.status == 200 and self.client.is_up_to_date:
            self._compare(s, int(answer.body[-1]["headers"]["global_last_seen_lsn"]))
        self._remember()

    def _remember(self) -> None:
        self.before = [*self.before[-4:], copy_follower(self.client)]

    def _compare(self, s: Shop, transaction: int) -> None:
        expected = self.wanted.expected(s, transaction - 1)
        found = self.client.content(*self.wanted.columns) if self.wanted.columns else self.client.content()
        assert found == expected, (self.wanted, transaction, self.client.offset)
        self.checked += 1

    def _stream(self, s: Shop) -> None:
        """Like Electric's client: received messages count once the client is up to date, and continues from there."""
        with streaming(s, self.client) as stream:
            if stream.status == 409:
                self.client = Follower(s, self.wanted.query)
                return
            assert stream.status == 200
            told = stream.batch()
        for message in told:
            self.client.apply(message)
        if told and told[-1]["headers"].get("control") == "up-to-date":
            transaction = int(told[-1]["headers"]["global_last_seen_lsn"])
            self.client.offset, self.client.again = f"{transaction}_0", str(transaction)
            self._compare(s, transaction)
        else:
            self.client = Follower(s, self.wanted.query)


def transaction(s: Shop, chance: RandomStream) -> None:
    rows = [
        {"id": chance.below(12), "customer": NAMES[chance.below(4)], "amount": chance.below(9)}
        for _ in range(chance.below(6))
    ]
    s.pipeline.push("orders", rows, deletes=[chance.below(12) for _ in range(chance.below(3))])
    if chance.below(2):
        s.pipeline.push("notes", [{"text": ("a", "ab", "b", None)[chance.below(4)]} for _ in range(chance.below(4))])
    s.pipeline.commit()


def beside(s: Shop, chance: RandomStream) -> None:
    """Background work that a process may do at any moment."""
    kind = chance.below(6)
    if kind == 0:
        s.pipeline.checkpoint()
    elif kind == 1:
        for shard in s.pipeline.collections.members().open_all().values():
            shard.compact(s.pipeline._writer)
    elif kind == 2:
        s.service.shapes.release_idle()
    elif kind == 3:
        enforce_limits(s.service.shapes)
    elif kind == 4 and chance.below(4) == 0:
        for shape in s.service.shapes.live()[:1]:
            s.ask("DELETE", handle=shape.handle)


@pytest.mark.parametrize("seed", range(3))
def test_every_client_equals_its_query_at_each_up_to_date(seed: int) -> None:
    chance = RandomStream(seed)
    blob, meta = MemoryBlob(), MemoryMeta(SystemRuntime())
    watched: list[Watched] = []
    for round_ in range(3):
        with shop(Storage(blob, meta, "memory"), QUICK, follow=bool(chance.below(2))) as s:
            if round_ == 0:
                watched = [Watched(one, Follower(s, one.query)) for one in SHAPES]
            for _ in range(15):
                transaction(s, chance)
                for _ in range(4):
                    watched[chance.below(len(watched))].step(s, chance)
                beside(s, chance)
            for one in watched:
                one.client.shop = s
                while True:
                    answer = one.client.step()
                    one._check(s, answer)
                    if one.client.is_up_to_date:
                        break
            crash(s.pipeline)
    assert all(one.checked >= 3 for one in watched)
