"""U4: an append became durable, and whoever made it did not learn so.

Either the process is gone: then the next one finds what it wrote. Or only the answer is lost: then the append reads
back (I14), by the token in the log, or in the shard's state if the log was truncated behind it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from evertide.errors import Fenced, OutcomeUnknown, UpperMismatch
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.shard.append import Outcome
from evertide.shard.shard import Shard, Shards
from evertide.store import Fault, Faults, FaultyMeta, LocalBlob, MemoryBlob, MemoryMeta, Meta, Record, SqliteMeta
from evertide.store.writers import Writer
from evertide.testing import ManualRuntime
from tests.shard.kit import BLOBS, INLINE, SCHEMA, HookMeta, Row, changes, make_shards, make_writer, updates_of

ROOT = Path(__file__).parents[2]
COUNT = 6

CHILD = """
    import os, signal, sys
    from pathlib import Path
    from evertide.runtime import SystemRuntime
    from evertide.store import LocalBlob, SqliteMeta
    from tests.shard.kit import BLOBS, SCHEMA, HookMeta, changes, make_shards, make_writer

    root, moment, victim = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    meta = HookMeta(SqliteMeta(root / "meta.db", SystemRuntime(), BLOBS))
    shards = make_shards(LocalBlob(root), meta, settings=BLOBS)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    for time in range(victim + 1):
        if time == victim:
            kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
            (meta.after_commit if moment == "after" else meta.before_commit)(kill)
        shard.append(changes([(time, "row")], time), time, time + 1, writer)
    os._exit(0)
"""


@pytest.mark.parametrize(("moment", "victim"), [("after", 0), ("after", 3), ("before", 3)])
def test_u4_killed_around_the_commit(tmp_path: Path, moment: str, victim: int) -> None:
    """Guards "an upper beyond ours is success without work": SIGKILL right after the commit became durable, before it
    returned; the next process goes on behind it. (Right before it: the next process writes it.)

    Taken out once (`append_missing` returning only if it appended itself): the next process ended in an error.
    """
    LocalBlob(tmp_path).make_root()
    arguments = [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path), moment, str(victim)]
    ended = subprocess.run(arguments, cwd=ROOT, timeout=120, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()

    meta = SqliteMeta(tmp_path / "meta.db", SystemRuntime(), BLOBS)
    try:
        shards = make_shards(LocalBlob(tmp_path), meta, settings=BLOBS)
        shard, writer = shards.open("t"), make_writer(shards)
        there = victim + 1 if moment == "after" else victim
        assert shard.upper == there
        outcomes = [shard.append(row(time), time, time + 1, writer) for time in range(COUNT)]
        expected = [Outcome(time + 1, time + 1) if time < there else Outcome(time, time + 1) for time in range(COUNT)]
        assert outcomes == expected
        assert updates_of(shard) == rows(COUNT)
    finally:
        meta.close()


@pytest.mark.parametrize("settings", [INLINE, BLOBS], ids=["inline", "blobs"])
@pytest.mark.parametrize("fault", [Fault.DONE_LOST, Fault.LOST, Fault.REFUSED])
def test_u4_every_commit_of_a_run_in_doubt(fault: Fault, settings: Settings) -> None:
    """Guards the read-back in `log.commit` and `commit_settled`: success is reported exactly when it is there.

    Taken out once, each time this failed: the doubt after `OutcomeUnknown` in `log.commit` (`UpperMismatch` for what we
    had written ourselves, and its blobs withdrawn), the read-back in `commit_settled`.
    """
    commits = run_with_fault(Fault.DONE, -1, settings)
    assert commits >= COUNT
    for number in range(commits):
        run_with_fault(fault, number, settings)


def run_with_fault(fault: Fault, at: int, settings: Settings) -> int:
    """A whole run, from registering on, in which one commit ends like this. Returns how many commits there were."""
    seen = 0

    def choose(operation: str, _key: str) -> Fault:
        nonlocal seen
        seen += operation == "commit"
        return fault if operation == "commit" and seen == at + 1 else Fault.DONE

    faults = Faults(choose, lambda _operation, _key: Fault.DONE)
    shards = make_shards(meta=FaultyMeta(MemoryMeta(), faults), runtime=ManualRuntime(3), settings=settings)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    for time in range(COUNT):
        shard.compare_and_append(row(time), time, time + 1, writer)
        assert updates_of(shard) == rows(time + 1)
        shard.log.roll_up(writer)
    writer.unregister()
    assert faults.injected == (Counter() if fault is Fault.DONE else Counter({fault: 1}))
    assert updates_of(make_shards(shards.blob, shards.meta).open("t")) == rows(COUNT)
    return seen


@pytest.mark.parametrize("seed", range(12))
def test_u4_a_run_in_which_a_third_of_all_calls_fail(seed: int) -> None:
    """Everything at once, by seed: reads and writes, two writers in turn, each with its own faults."""
    inner, blob = MemoryMeta(), MemoryBlob()
    peers: list[tuple[Shard, Writer]] = []
    for number in range(2):
        runtime = ManualRuntime(seed * 2 + number)
        shards = make_shards(blob, FaultyMeta(inner, Faults.seeded(runtime, 0.3)), runtime=runtime, settings=BLOBS)
        writer = make_writer(shards)
        peers.append((shards.create("t", SCHEMA, writer), writer))
    for time in range(40):
        shard, writer = peers[time % 2]
        shard.compare_and_append(row(time), time, time + 1, writer)
    calm = make_shards(blob, inner).open("t")
    assert updates_of(calm) == rows(40)
    assert {entry.key for entry in blob.list("parts/t")} == {part.key for part in calm.log.read().state.parts}


@pytest.mark.parametrize("fault", [Fault.DONE_LOST, Fault.LOST])
def test_u4_a_commit_that_stays_in_doubt(fault: Fault) -> None:
    """DONE_LOST for ever: read-back finds it, so it is success. LOST for ever: it is not there, and says so as unknown.

    Taken out once (no read-back): the first is `OutcomeUnknown`, too."""
    shards, shard, writer, faults = faulty()
    faults.append(fault)
    if fault is Fault.DONE_LOST:
        shard.compare_and_append(row(0), 0, 1, writer)
    else:
        with pytest.raises(OutcomeUnknown):
            shard.compare_and_append(row(0), 0, 1, writer)
    there = 1 if fault is Fault.DONE_LOST else 0
    assert updates_of(make_shards(shards.blob, inner_of(shards)).open("t")) == rows(there)


def test_u4_an_unknown_outcome_is_not_turned_into_did_not_happen() -> None:
    """I14: one answer is lost, then storage refuses until patience ends. The first commit may still be under way (rule
    6 of Meta), so the answer is `OutcomeUnknown`, never `Unavailable`; and its blobs stay unsettled for collectors.

    Taken out once (the latest error raised rather than the doubt): `Unavailable`."""
    shards, shard, writer, faults = faulty()
    faults.extend([Fault.LOST, Fault.REFUSED])
    with pytest.raises(OutcomeUnknown):
        shard.compare_and_append(row(0), 0, 1, writer)
    writer.beat()
    assert_kept(shards)


def test_u4_an_unknown_outcome_that_cannot_be_read_back() -> None:
    """The same with a commit that did happen, and reads that are refused from then on. Taken out once, in the same way:
    `Unavailable` for what was there."""
    shards, shard, writer, faults = faulty(reads_fail_after_a_fault=True)
    faults.append(Fault.DONE_LOST)
    with pytest.raises(OutcomeUnknown):
        shard.compare_and_append(row(0), 0, 1, writer)
    assert updates_of(make_shards(shards.blob, inner_of(shards)).open("t")) == rows(1)


def assert_kept(shards: Shards) -> None:
    """A collector leaves the parts of a commit that may still arrive."""
    blobs = list(shards.blob.list("parts/t"))
    assert blobs
    peers = make_shards(shards.blob, inner_of(shards), runtime=shards.runtime, settings=BLOBS)
    peers.open("t").collect_garbage(make_writer(peers))
    assert list(shards.blob.list("parts/t")) == blobs


def faulty(*, reads_fail_after_a_fault: bool = False) -> tuple[Shards, Shard, Writer, list[Fault]]:
    """A shard, and a list to fill: each commit to a shard takes the next fault of it, the last one for ever."""
    script: list[Fault] = []
    broken = False

    def choose(operation: str, key: str) -> Fault:
        nonlocal broken
        if operation != "commit" or not key.startswith("shard/") or not script:
            return Fault.DONE
        broken = True
        return script.pop(0) if len(script) > 1 else script[0]

    def choose_read(_operation: str, _key: str) -> Fault:
        return Fault.REFUSED if broken and reads_fail_after_a_fault else Fault.DONE

    meta = FaultyMeta(MemoryMeta(), Faults(choose, choose_read))
    shards = make_shards(meta=meta, runtime=ManualRuntime(1), settings=BLOBS)
    writer = make_writer(shards)
    return shards, shards.create("t", SCHEMA, writer), writer, script


def inner_of(shards: Shards) -> Meta:
    assert isinstance(shards.meta, FaultyMeta)
    return shards.meta._inner


class Doubt:
    """A writer whose next append happens, but whose answer is lost; `meanwhile` runs before it can read back."""

    def __init__(self, *, happens: bool = True) -> None:
        self.happens = happens
        self.runtime = ManualRuntime(5)
        self.blob, self.inner = MemoryBlob(), MemoryMeta()
        self.meta = HookMeta(self.inner)
        self.shards = make_shards(self.blob, self.meta, runtime=self.runtime, settings=BLOBS)
        self.writer = make_writer(self.shards)
        self.shard = self.shards.create("t", SCHEMA, self.writer)
        self.shard.compare_and_append(row(0), 0, 1, self.writer)
        peers = make_shards(self.blob, self.inner, runtime=self.runtime, settings=BLOBS)
        self.peer = peers.open("t")
        self.peer_writer = make_writer(peers)

    def append(self, meanwhile: Callable[[], None]) -> None:
        def lose() -> None:
            meanwhile()
            raise OutcomeUnknown(path=self.meta.path("shard/t"), why="the answer was lost")

        upper = self.shard.upper
        (self.meta.after_commit if self.happens else self.meta.before_commit)(lose)
        self.shard.compare_and_append(row(upper), upper, upper + 1, self.writer)

    def truncate(self) -> None:
        """What a peer's appends, roll-up and collection do to the log: nothing of the times before is left in it."""
        head = self.peer.log.read().seqno
        for time in range(self.peer.upper, self.peer.upper + 2):
            self.peer.compare_and_append(row(time), time, time + 1, self.peer_writer)
        self.peer.log.roll_up(self.peer_writer)
        assert self.peer.collect_garbage(self.peer_writer).diffs > 0
        assert self.inner.scan("shard/t")[0].seqno > head + 1

    def found(self) -> Counter[tuple[int, Row, int]]:
        return updates_of(make_shards(self.blob, self.inner).open("t"))


def test_u4_a_peer_appended_in_between() -> None:
    """Found by its token although it is not the head any more. Taken out once (looking at the head only):
    `UpperMismatch` for what was there."""
    doubt = Doubt()
    doubt.append(lambda: doubt.peer.compare_and_append(row(2), 2, 3, doubt.peer_writer))
    assert doubt.found() == rows(3)


def test_u4_a_peer_appended_instead() -> None:
    """Our commit did not happen and a peer wrote the time: that is a lost race, and nothing of ours is there.

    Taken out once (any diff above ours taken for ours): success."""
    doubt = Doubt(happens=False)
    with pytest.raises(UpperMismatch):
        doubt.append(lambda: doubt.peer.compare_and_append(row(1, "peer"), 1, 2, doubt.peer_writer))
    assert doubt.found() == rows(1) + Counter({(1, (1, "peer"), 1): 1})
    assert len(list(doubt.blob.list("parts/t"))) == 2


def test_u4_the_log_was_truncated_behind_it() -> None:
    """The tokens in the state decide. Taken out once (`wrote` only looking at the diffs): `UpperMismatch` for what was
    there."""
    doubt = Doubt()
    doubt.append(doubt.truncate)
    assert doubt.found() == rows(4)


def test_u4_the_log_was_truncated_and_it_did_not_happen() -> None:
    doubt = Doubt(happens=False)
    with pytest.raises(UpperMismatch):
        doubt.append(doubt.truncate)
    assert doubt.found() == rows(3)
    assert len(list(doubt.blob.list("parts/t"))) == 3


def test_u4_the_same_writer_compacted_and_the_log_was_truncated() -> None:
    """The writer is shared between the threads of a process: maintenance makes a diff with a later token of the same
    writer while an append is in doubt. It must not hide that the append is there.

    Taken out once (only a writer's last token kept): `UpperMismatch`, and a part that the shard names was withdrawn."""
    doubt = Doubt()
    maintained = make_shards(doubt.blob, doubt.inner, runtime=doubt.runtime, settings=BLOBS).open("t")
    maintenance = threading.Thread(target=lambda: maintained.advance_since(1, doubt.writer), daemon=True)

    def meanwhile() -> None:
        doubt.peer.compare_and_append(row(2), 2, 3, doubt.peer_writer)
        maintenance.start()
        maintenance.join(0.3)  # it may as well be made to wait until the doubt is over
        doubt.truncate()

    doubt.append(meanwhile)
    maintenance.join(30.0)
    assert not maintenance.is_alive()
    assert doubt.found() == rows(5)


def test_u4_another_diff_of_the_same_writer_is_not_taken_for_the_append() -> None:
    """Our commit did not happen, but one of the same writer's other threads did: the append is made, not assumed.

    Taken out once (the token compared by writer only): success for an append that was not there."""
    doubt = Doubt(happens=False)
    doubt.shard.compare_and_append(row(1), 1, 2, doubt.writer)
    maintained = make_shards(doubt.blob, doubt.inner, runtime=doubt.runtime, settings=BLOBS).open("t")
    maintenance = threading.Thread(target=lambda: maintained.advance_since(1, doubt.writer), daemon=True)

    def meanwhile() -> None:
        maintenance.start()
        maintenance.join(0.3)

    doubt.append(meanwhile)
    maintenance.join(30.0)
    assert doubt.found() == rows(3)


def test_u4_a_token_in_use_is_never_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread begins a commit at the worst moment of the first: what it says nobody asks for any more must not
    include the first's token, or its diff would make shards forget it."""
    writer = make_writer(make_shards())
    allot = writer.new_token
    settled: list[int] = []

    def interrupted() -> str:
        token = allot()
        monkeypatch.setattr(writer, "new_token", allot)
        with writer.open_token() as (_, below):
            settled.append(below)
        return token

    monkeypatch.setattr(writer, "new_token", interrupted)
    with writer.open_token() as (token, _), writer.open_token() as (_, below):
        assert all(found <= int(token) for found in (*settled, below))


class StoppedMeta(HookMeta):
    """Runs a hook before the next `scan` of a shard, too: a process that is stopped while it reads back."""

    def __init__(self, inner: Meta) -> None:
        super().__init__(inner)
        self.before_scan: list[Callable[[], None]] = []

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        if self.before_scan and key.startswith("shard/"):
            self.before_scan.pop(0)()
        return super().scan(key, after, limit)


def test_u4_a_writer_in_doubt_that_was_unregistered_and_forgotten() -> None:
    """Stopped (SIGSTOP) while reading back, for so long that a collector ended the writer, truncated the log and forgot
    its token: it finds itself fenced, and must not withdraw parts, as the shard names them.

    Taken out once (the look at the registration before a doubt is given up): `UpperMismatch`, and parts withdrawn."""
    doubt = Doubt()
    stopped = StoppedMeta(doubt.inner)
    shards = make_shards(doubt.blob, stopped, runtime=doubt.runtime, settings=BLOBS)
    shard, writer = shards.open("t"), make_writer(shards)

    def while_stopped() -> None:
        doubt.runtime.advance_s(BLOBS.writer_ttl_s + 1)
        doubt.peer_writer.beat()
        doubt.truncate()
        assert writer.id not in doubt.peer.log.read().state.tokens

    def lose() -> None:
        stopped.before_scan.append(while_stopped)
        raise OutcomeUnknown(path=stopped.path("shard/t"), why="the answer was lost")

    stopped.after_commit(lose)
    with pytest.raises((Fenced, OutcomeUnknown)):
        shard.compare_and_append(row(1), 1, 2, writer)
    assert doubt.found() == rows(4)


def row(time: int, name: str = "row") -> pa.Table:
    return changes([(time, name)], time)


def rows(count: int) -> Counter[tuple[int, Row, int]]:
    """Each time's row, once."""
    return Counter({(time, (time, "row"), 1): 1 for time in range(count)})
