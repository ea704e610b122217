"""S: status reports what is wrong, since when, why, and what to do."""

from __future__ import annotations

import pytest

from evertide.errors import BlobMissing, Unavailable
from evertide.journal.journal import Journal
from evertide.pipeline.status.status import Status, read_status
from evertide.runtime import SystemRuntime
from evertide.shard.shard import Shards
from evertide.store.memory import MemoryMeta
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.kit.runtime import ManualRuntime
from tests.pipeline.kit import SETTINGS, Row, crash, open_pipeline, rows_of, storage


def order(number: int) -> Row:
    return {"id": number, "customer": "ann", "amount": 10}


def test_s1_a_bound_transaction_that_does_not_commit_is_a_stall() -> None:
    """Within ten seconds the state is `stalled`, with the shards that wait, their time, and the process that holds
    them."""
    runtime = ManualRuntime()
    with open_pipeline(storage(), runtime=runtime) as p:
        p.push("orders", [order(1)])
        p._pushes.offer_pushed(p._pushed)
        inputs, _ = p._input_reader.read(p.definition)
        p._runner.bind(inputs)
        assert p.status().state == "running"
        runtime.advance_s(10)
        status = p.status()
        assert status.state == "stalled"
        for name in ("orders", "revenue", "counts"):
            assert name in status.why
        assert "transaction 1 is bound" in status.why
        assert "process" in status.why
        assert status.remedy
        assert p.advance() == 1
        assert p.status().state == "running"


def test_a_transaction_that_commits_during_a_status_does_not_count_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail with two reads of the upper: status asked for the transaction after the last, which is not bound."""
    with open_pipeline(storage()) as p:
        p.push("orders", [order(1)])
        p._pushes.offer_pushed(p._pushed)
        inputs, _ = p._input_reader.read(p.definition)
        p._runner.bind(inputs)
        upper = Journal.__dict__["committed_upper"]

        def moving(journal: Journal) -> int:
            found: int = upper.__get__(journal)
            monkeypatch.undo()
            assert p.advance() == 1
            return found

        monkeypatch.setattr(Journal, "committed_upper", property(moving))
        assert p.status().state == "running"
        assert p.time == 1


def test_s2_a_missing_part_freezes_the_pipeline_and_is_named() -> None:
    kept = storage()
    settings = SETTINGS.__class__(inline_bytes_max=1)
    p = open_pipeline(kept, settings=settings)
    p.push("notes", [{"text": "a"}])
    p.commit()
    [entry] = [each for each in kept.blob.list("parts") if "notes" in each.key]
    kept.blob.delete(entry.key)
    p.push("notes", deletes=[{"text": "a"}])
    with pytest.raises(BlobMissing, match=entry.key):
        p.commit()
    status = p.status()
    assert status.state == "frozen"
    assert entry.key in status.why
    with pytest.raises(BlobMissing):
        p.push("notes", [{"text": "b"}])
    crash(p)


def test_u1_transactions_below_the_upper_are_computed_and_not_appended() -> None:
    """The shards are at 11, the state is at 5: the times between are replayed, and none is appended again."""
    kept = storage()
    p = open_pipeline(kept)
    for number in range(1, 11):
        p.push("orders", [order(number)])
        p.commit()
        if number == 4:
            p.checkpoint()
    uppers = {name: shard.log.read() for name, shard in p._runner.members.open_all().items()}
    crash(p)
    p = open_pipeline(kept)
    for name, before in uppers.items():
        after = p._runner.members.shard(name).log.read().state
        assert after.upper == before.state.upper == 11
        assert [batch.digest for batch in after.batches] == [batch.digest for batch in before.state.batches]
    p.push("orders", [order(11)])
    assert p.commit() == 11
    assert rows_of(p, "counts") == [(11, 0)]
    p.close()


def test_j5_a_checkpoint_lies_between_two_transactions() -> None:
    with open_pipeline(storage()) as p:
        p.push("orders", [order(1)])
        p._pushes.offer_pushed(p._pushed)
        inputs, read = p._input_reader.read(p.definition)
        bound = p._runner.bind(inputs)
        commit, p._runner.commit = p._runner.commit, lambda: None  # type: ignore[method-assign]
        p._runner.complete(bound, read)  # computed, and not yet committed
        p._runner.commit = commit  # type: ignore[method-assign]
        entry = p.checkpoint()
        assert entry.time == 2
        assert p.time == 1


def test_status_has_sources_collections_and_checkpoints() -> None:
    with open_pipeline(storage()) as p:
        p.push("orders", [order(1)])
        p.commit()
        status = p.status()
        assert (status.state, status.time, status.bound) == ("running", 1, 1)
        assert {one.name: one.upper for one in status.collections} == dict.fromkeys(
            ["orders", "notes", "revenue", "counts", "evertide_errors"], 2
        )
        assert status.checkpoints == ((1, 1),)
        assert [one.name for one in status.sources] == ["push"]


def test_s2_the_error_that_ended_a_pipeline_is_in_its_storage() -> None:
    """Also after the process has ended; without the record, other processes would only see that no process runs the
    pipeline."""
    kept = storage()
    p = open_pipeline(kept, settings=SETTINGS.__class__(inline_bytes_max=1))
    shards = Shards(kept.blob, kept.meta, runtime=SystemRuntime(), settings=SETTINGS)

    def status() -> Status:
        return read_status(kept, shards, p._context.journal, p._context.checkpoints)

    assert status().state == "running"
    p.push("notes", [{"text": "a"}])
    p.commit()
    [entry] = [each for each in kept.blob.list("parts") if "notes" in each.key]
    data = kept.blob.get(entry.key)
    kept.blob.delete(entry.key)
    p.push("notes", deletes=[{"text": "a"}])
    with pytest.raises(BlobMissing):
        p.commit()
    assert status().state == "frozen"
    crash(p)
    found = status()
    assert (found.state, found.problems[0].error_code) == ("frozen", "blob_missing")
    assert entry.key in found.why
    kept.blob.put(entry.key, data)
    with open_pipeline(kept) as p:
        assert status().state == "running"
        assert rows_of(p, "notes") == []
    assert status().state == "stopped"


class Switched:
    """A Meta that refuses every call while it is off."""

    def __init__(self) -> None:
        self.is_off = False
        faults = Faults(self._choose, self._choose)
        self.meta = FaultyMeta(MemoryMeta(SystemRuntime()), faults)

    def _choose(self, _operation: str, _key: str) -> Fault:
        return Fault.REFUSED if self.is_off else Fault.DONE


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_s1_status_during_an_outage_of_meta_reports_it_and_the_last_status(*, is_asked_before: bool) -> None:
    """Fails if the last status from storage is not kept: then the status is the error."""
    switched = Switched()
    with open_pipeline(storage(meta=switched.meta)) as p:
        p.push("orders", [order(1)])
        p.commit()
        before = p.status() if is_asked_before else None
        switched.is_off = True
        found = p.status()
        assert (found.state, found.problems[0].error_code) == ("stalled", "unavailable")
        assert "refused" in found.why
        assert found.remedy == Unavailable.remedy
        assert found.remedy not in found.why
        assert (found.time, found.bound, found.generation) == (1, 1, p.definition.generation)
        assert {one.name: (one.upper, one.state) for one in found.collections} == dict.fromkeys(
            ["orders", "notes", "revenue", "counts", "evertide_errors"], (2, "running")
        )
        assert [one.name for one in found.sources] == ["push"]
        assert found.stored_at_s is not None
        assert p.status().since_s == found.since_s, "the outage begins with the first failure, not with this status"
        if before is not None:
            assert (found.checkpoints, found.replicas) == (before.checkpoints, before.replicas)
            assert found.stored_at_s <= found.since_s
        switched.is_off = False
        assert (p.status().state, p.status().stored_at_s) == ("running", None)


def test_s1_status_does_not_wait_as_long_as_a_transaction_does_for_storage() -> None:
    """Fails if a status repeats its calls for `retry_limit_s`."""
    switched, runtime = Switched(), ManualRuntime()
    settings = SETTINGS.__class__(retry_limit_s=1000.0)
    with open_pipeline(storage(meta=switched.meta), runtime=runtime, settings=settings) as p:
        switched.is_off = True
        began_s = runtime.monotonic_s()
        assert p.status().state == "stalled"
        assert runtime.monotonic_s() - began_s < 20
        switched.is_off = False


def test_s2_an_error_stays_the_first_problem_while_meta_is_away() -> None:
    switched = Switched()
    p = open_pipeline(storage(meta=switched.meta))
    p._fail(BlobMissing(path="parts/x", why="gone"))
    switched.is_off = True
    found = p.status()
    assert found.state == "frozen"
    assert [one.error_code for one in found.problems[:2]] == ["blob_missing", "unavailable"]
    switched.is_off = False
    crash(p)
