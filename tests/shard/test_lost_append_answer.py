"""U4: an append became durable, and its caller did not get the answer.

Either the process died: then the next one finds what it wrote. Or only the answer is lost: then the append reads the
outcome back (I14), by the token in the log, or in the shard's state if the log was truncated beyond it.
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
from evertide.shard.shard import Shard, Shards
from evertide.store import LocalBlob, MemoryBlob, MemoryMeta, Meta, Record, SqliteMeta
from evertide.store.writers import Writer
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.kit.runtime import ManualRuntime
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
        shard.compare_and_append(changes([(time, "row")], time), time, time + 1, writer)
    os._exit(0)
"""


@pytest.mark.parametrize(("moment", "victim"), [("after", 0), ("after", 3), ("before", 3)])
def test_u4_the_next_process_continues_after_a_kill_around_the_commit(tmp_path: Path, moment: str, victim: int) -> None:
    """SIGKILL right after the commit became durable, before it returned: the next process continues after it. If
    SIGKILL comes right before the commit, the next process writes it.
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
        for time in range(there, COUNT):
            shard.compare_and_append(row(time), time, time + 1, writer)
        assert updates_of(shard) == rows(COUNT)
    finally:
        meta.close()


@pytest.mark.parametrize("settings", [INLINE, BLOBS], ids=["inline", "blobs"])
@pytest.mark.parametrize("fault", [Fault.DONE_LOST, Fault.LOST, Fault.REFUSED])
def test_u4_a_run_succeeds_with_any_one_commit_in_doubt(fault: Fault, settings: Settings) -> None:
    """Guards the read-back in `log.commit` and `commit_settled`: success is reported exactly when the commit is
    durable.

    Fails if `log.commit` has no doubt after `OutcomeUnknown` (`UpperMismatch` for the process's own commit, and its
    blobs withdrawn), and without the read-back in `commit_settled`.
    """
    commits = run_with_fault(Fault.DONE, -1, settings)
    assert commits >= COUNT
    for number in range(commits):
        run_with_fault(fault, number, settings)


def run_with_fault(fault: Fault, at: int, settings: Settings) -> int:
    """A whole run, from registration on, in which one commit ends with this fault. Returns the number of commits."""
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
def test_u4_a_run_succeeds_although_a_third_of_all_calls_fail(seed: int) -> None:
    """All faults together, by seed: reads and writes, two writers in turn, each with its own faults."""
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
def test_u4_a_commit_that_stays_in_doubt_is_read_back_or_unknown(fault: Fault) -> None:
    """DONE_LOST for ever: the read-back finds the commit, so the append succeeds. LOST for ever: the commit is not
    there, and the append reports an unknown outcome.

    Fails without the read-back: the first is `OutcomeUnknown`, too.
    """
    shards, shard, writer, faults = faulty()
    faults.append(fault)
    if fault is Fault.DONE_LOST:
        shard.compare_and_append(row(0), 0, 1, writer)
    else:
        with pytest.raises(OutcomeUnknown):
            shard.compare_and_append(row(0), 0, 1, writer)
    there = 1 if fault is Fault.DONE_LOST else 0
    assert updates_of(make_shards(shards.blob, inner_of(shards)).open("t")) == rows(there)


def test_u4_an_unknown_outcome_is_not_reported_as_not_happened() -> None:
    """I14: one answer is lost, then storage refuses until the retries end. The first commit may still be in flight
    (rule 6 of Meta), so the error is `OutcomeUnknown`, never `Unavailable`, and its blobs stay unsettled for
    collectors.

    Fails if the latest error is raised instead of the doubt: `Unavailable`.
    """
    shards, shard, writer, faults = faulty()
    faults.extend([Fault.LOST, Fault.REFUSED])
    with pytest.raises(OutcomeUnknown):
        shard.compare_and_append(row(0), 0, 1, writer)
    writer.beat()
    assert_kept(shards)


def test_u4_an_outcome_that_cannot_be_read_back_is_unknown() -> None:
    """The same with a commit that took effect, and reads that are refused from then on. Fails in the same way:
    `Unavailable` for a durable commit.
    """
    shards, shard, writer, faults = faulty(reads_fail_after_a_fault=True)
    faults.append(Fault.DONE_LOST)
    with pytest.raises(OutcomeUnknown):
        shard.compare_and_append(row(0), 0, 1, writer)
    assert updates_of(make_shards(shards.blob, inner_of(shards)).open("t")) == rows(1)


def assert_kept(shards: Shards) -> None:
    """A collector keeps the parts of a commit that may still take effect."""
    blobs = list(shards.blob.list("parts/t"))
    assert blobs
    peers = make_shards(shards.blob, inner_of(shards), runtime=shards.runtime, settings=BLOBS)
    peers.open("t").collect_garbage(make_writer(peers))
    assert list(shards.blob.list("parts/t")) == blobs


def faulty(*, reads_fail_after_a_fault: bool = False) -> tuple[Shards, Shard, Writer, list[Fault]]:
    """A shard, and a list of faults to fill: each commit to a shard takes the next fault, and the last one is
    repeated.
    """
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
    """A writer whose next append loses its answer. `meanwhile` runs before it can read back."""

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
        """What a peer's appends, roll-up and garbage collection do to the log: no diff of the earlier times remains."""
        head = self.peer.log.read().seqno
        for time in range(self.peer.upper, self.peer.upper + 2):
            self.peer.compare_and_append(row(time), time, time + 1, self.peer_writer)
        self.peer.log.roll_up(self.peer_writer)
        assert self.peer.collect_garbage(self.peer_writer).diffs > 0
        assert self.inner.scan("shard/t")[0].seqno > head + 1

    def read_rows(self) -> Counter[tuple[int, Row, int]]:
        return updates_of(make_shards(self.blob, self.inner).open("t"))


def test_u4_an_append_is_found_below_a_peers_append() -> None:
    """The token is found although the commit is no longer the head. Fails if only the head is read: `UpperMismatch` for
    a durable commit.
    """
    doubt = Doubt()
    doubt.append(lambda: doubt.peer.compare_and_append(row(2), 2, 3, doubt.peer_writer))
    assert doubt.read_rows() == rows(3)


def test_u4_a_peers_append_at_the_same_time_is_a_lost_race() -> None:
    """The commit did not happen and a peer wrote the time: a lost race, and none of its parts remain.

    Fails if any later diff is taken for its own: success.
    """
    doubt = Doubt(happens=False)
    with pytest.raises(UpperMismatch):
        doubt.append(lambda: doubt.peer.compare_and_append(row(1, "peer"), 1, 2, doubt.peer_writer))
    assert doubt.read_rows() == rows(1) + Counter({(1, (1, "peer"), 1): 1})
    assert len(list(doubt.blob.list("parts/t"))) == 2


def test_u4_an_append_is_found_after_the_log_was_truncated() -> None:
    """The tokens in the state decide. Fails if `wrote` reads only the diffs: `UpperMismatch` for a durable commit."""
    doubt = Doubt()
    doubt.append(doubt.truncate)
    assert doubt.read_rows() == rows(4)


def test_u4_an_append_that_did_not_happen_is_not_found_in_a_truncated_log() -> None:
    doubt = Doubt(happens=False)
    with pytest.raises(UpperMismatch):
        doubt.append(doubt.truncate)
    assert doubt.read_rows() == rows(3)
    assert len(list(doubt.blob.list("parts/t"))) == 3


def test_u4_an_append_is_found_after_its_writer_compacted_and_the_log_was_truncated() -> None:
    """The threads of a process share the writer: maintenance commits a diff with a later token of the same writer while
    an append is in doubt. That must not hide the append.

    Fails if only a writer's last token is kept: `UpperMismatch`, and a part that the shard names is withdrawn.
    """
    doubt = Doubt()
    maintained = make_shards(doubt.blob, doubt.inner, runtime=doubt.runtime, settings=BLOBS).open("t")
    maintenance = threading.Thread(target=lambda: maintained.advance_since(1, doubt.writer), daemon=True)

    def meanwhile() -> None:
        doubt.peer.compare_and_append(row(2), 2, 3, doubt.peer_writer)
        maintenance.start()
        maintenance.join(0.3)  # it may as well wait until the doubt is resolved
        doubt.truncate()

    doubt.append(meanwhile)
    maintenance.join(30.0)
    assert not maintenance.is_alive()
    assert doubt.read_rows() == rows(5)


def test_u4_another_diff_of_the_same_writer_is_not_mistaken_for_the_append() -> None:
    """The commit did not happen, but another thread of the same writer committed: the append is made, not assumed.

    Fails if tokens are compared by writer only: success for an append that did not happen.
    """
    doubt = Doubt(happens=False)
    doubt.shard.compare_and_append(row(1), 1, 2, doubt.writer)
    maintained = make_shards(doubt.blob, doubt.inner, runtime=doubt.runtime, settings=BLOBS).open("t")
    maintenance = threading.Thread(target=lambda: maintained.advance_since(1, doubt.writer), daemon=True)

    def meanwhile() -> None:
        maintenance.start()
        maintenance.join(0.3)

    doubt.append(meanwhile)
    maintenance.join(30.0)
    assert doubt.read_rows() == rows(3)


class InterruptedLock:
    """Another thread acts when the lock is released for the first time."""

    def __init__(self, lock: threading.Lock, act: Callable[[], None]) -> None:
        self._lock = lock
        self._act: Callable[[], None] | None = act

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        act, self._act = self._act, None
        if act is not None:
            act()


def test_u4_a_token_in_use_is_never_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread begins a commit at the worst moment of the first: the tokens that it settles must not include the
    first's, or its diff would make shards forget that token.

    Fails if `open_token` takes the number and adds it to the open ones in two steps.
    """
    writer = make_writer(make_shards())
    settled: list[int] = []

    def open_another() -> None:
        with writer.open_token() as (_, below):
            settled.append(below)

    monkeypatch.setattr(writer, "_lock", InterruptedLock(writer._lock, open_another))
    with writer.open_token() as (token, _), writer.open_token() as (_, below):
        assert len(settled) == 1
        assert max(*settled, below) <= int(token)


class StoppedMeta(HookMeta):
    """Also runs a hook before the next `scan` of a shard: a process that is stopped while it reads back."""

    def __init__(self, inner: Meta) -> None:
        super().__init__(inner)
        self.before_scan: list[Callable[[], None]] = []

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        if self.before_scan and key.startswith("shard/"):
            self.before_scan.pop(0)()
        return super().scan(key, after, limit)


def test_u4_a_writer_in_doubt_that_was_unregistered_is_fenced_and_keeps_its_parts() -> None:
    """Stopped (SIGSTOP) while reading back, for so long that a collector ended the writer, truncated the log and forgot
    its token: it finds itself fenced, and must not withdraw parts, because the shard names them.

    Fails if the registration is not checked before a doubt is given up: `UpperMismatch`, and parts withdrawn.
    """
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
    assert doubt.read_rows() == rows(4)


def row(time: int, name: str = "row") -> pa.Table:
    return changes([(time, name)], time)


def rows(count: int) -> Counter[tuple[int, Row, int]]:
    """Each time's row, once."""
    return Counter({(time, (time, "row"), 1): 1 for time in range(count)})
