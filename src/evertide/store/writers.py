"""Writers and the generation: which processes may change this storage (I16).

Stored as Meta keys `writer/<id>` (written once, removed once), `beat/<id>` (the heartbeat, in a separate key, so that
it never fails a commit that guards the registration) and `generation`. Version 1 of each.

Every commit that changes a shard guards `writer/<id>` and `generation`. Hence:

1. A writer that was unregistered, or whose generation has been replaced, can commit nothing more, however late it wakes
   up: it gets `Fenced`. No clock is involved.
2. A silent writer is unregistered by one compare-and-set on its registration *and* its last heartbeat: if it writes a
   heartbeat in between, it stays.
3. A blob is an orphan if its writer is not registered, and no shard that is read after that names the blob: none ever
   will. A registered writer settles a sequence number when its blob is named, or never will be; its heartbeat
   has the number `settled`, below which all are settled, and the same holds for blobs below it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec

from evertide.errors import Conflict, EvertideError, Fenced, GenerationMoved, OutcomeUnknown
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Guard, Meta, Stale, Write, seal, unseal
from evertide.store.paths import GENERATION, Name, beat_key, writer_key
from evertide.store.process_identity import Origin, this_process
from evertide.store.retry import commit_under_new_id, commit_until_known, retry_read, truncate_sometimes
from evertide.types import Generation

_stopped: set[str] = set()
"""Ids under which this process does not write (any more), although storage may have registrations for them."""


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a writer: the process that may change the storage under this id."""

    writer: str
    label: str
    host: str
    pid: int
    registered_at_s: float
    ttl_s: float
    boot: str = ""
    """This and the next two distinguish processes with the same host name and pid: see
    `evertide.store.process_identity`."""
    namespace: str = ""
    start_ticks: int = 0
    instance: str = ""
    """A random id: registrations that share it are attempts of one registration whose outcome was unknown."""

    @property
    def origin(self) -> Origin:
        return Origin(self.host, self.pid, self.boot, self.namespace, self.start_ticks)

    def has_ended(self) -> bool:
        """Whether no thread can write under this id: its process has ended, or this process has stopped it."""
        return self.writer in _stopped or self.origin.has_ended()


class HeartbeatRecord(msgspec.Struct, frozen=True):
    writer: str
    number: int
    beat_at_s: float
    settled: int
    """Blobs with lower sequence numbers are named by a shard already, or never will be."""


class GenerationRecord(msgspec.Struct, frozen=True):
    number: Generation
    members: tuple[str, ...]
    writer: str
    """The writer of the record: distinguishes a commit with unknown outcome from a peer's."""


class Writer:
    """This process's registration, passed to all components that write. Safe to share between threads."""

    def __init__(self, meta: Meta, runtime: Runtime, settings: Settings, writer: str, label: str = "") -> None:
        self.id = writer
        self.label = label
        self._meta = meta
        self._runtime = runtime
        self._settings = settings
        self._lock = threading.Lock()
        self._beat_lock = threading.Lock()
        self._next_seq = 1
        self._open: set[int] = set()
        self._beats = 1
        self._tokens = 0
        self._open_tokens: set[int] = set()
        self._generation = Generation(0)
        self._hang: Callable[[], str] = lambda: ""
        self._beat_began_s: float | None = None
        """When the current heartbeat began."""
        self._is_beat_lost = False
        self._recovered_s: float | None = None
        """When heartbeats succeeded again after failed or slow ones."""

    @classmethod
    def register(
        cls, meta: Meta, *, runtime: Runtime, settings: Settings, label: str = "", instance: str = ""
    ) -> Writer:
        at, ttl_s = this_process(), settings.writer_ttl_s

        def writes(fresh: str) -> list[Write]:
            _stopped.add(fresh)  # until its registration is known: an attempt with unknown outcome leaves its id behind
            now_s = runtime.wall_s()
            registration = Registration(
                fresh, label, at.host, at.pid, now_s, ttl_s, at.boot, at.namespace, at.start_ticks, instance
            )
            beat = HeartbeatRecord(fresh, 1, now_s, 1)
            return [Write(writer_key(fresh), 0, seal(registration)), Write(beat_key(fresh), 0, seal(beat))]

        writer = cls(meta, runtime, settings, commit_under_new_id(meta, writes, runtime, settings), label)
        _stopped.discard(writer.id)
        writer.adopt_generation()
        return writer

    def new_token(self) -> str:
        """A new name for one commit of this writer, by which the commit is found if its outcome was unknown."""
        with self._lock:
            self._tokens += 1
            return str(self._tokens)

    @contextmanager
    def open_token(self) -> Iterator[tuple[str, int]]:
        """A token for a commit that may have to be read back, and the lowest token that may still be looked up."""
        with self._lock:  # in one step, or another thread could settle this token before it is used
            self._tokens += 1
            number = self._tokens
            self._open_tokens.add(number)
            settled = min(self._open_tokens)
        try:
            yield str(number), settled
        finally:
            with self._lock:
                self._open_tokens.discard(number)

    def guards(self) -> tuple[Guard, Guard]:
        """Guards for every commit: the writer is still registered, and the generation is the one that it knows."""
        return Guard(writer_key(self.id), 1), Guard(GENERATION, self._generation)

    def check_registered(self) -> None:
        """Raise `Fenced` if this writer is not registered (any more): shards may have dropped its tokens."""
        key = writer_key(self.id)
        if retry_read(lambda: self._meta.head(key), self._runtime, self._settings) is None:
            raise Fenced(writer=self.id, why="it was unregistered")

    def check(self, stale: Stale) -> None:
        """Raise `Fenced` if a commit failed on this writer's own guards."""
        if stale.key == writer_key(self.id):
            raise Fenced(writer=self.id, why="it was unregistered, as it had been silent for too long or was replaced")
        if stale.key == GENERATION:
            why = f"another writer changed the generation from {stale.expected} to {stale.found}"
            raise GenerationMoved(writer=self.id, why=why)

    def skip_beats_while(self, hang: Callable[[], str]) -> None:
        """Skip heartbeats while `hang` returns why this process makes no progress, whichever thread calls `beat`."""
        self._hang = hang

    def beat(self) -> None:
        """Write the heartbeat. It has its own lock, so that an unreachable storage does not block appends."""
        if self._hang():
            self.check_registered()
            return
        with self._beat_lock, self._time_beat():
            while True:
                number = self._beats + 1
                writes = [Write(beat_key(self.id), self._beats, self._encode_beat(number))]
                stale = commit_until_known(self._meta, writes, self.guards()[:1], self._runtime, self._settings)
                if stale is None:
                    break
                self._adopt_beat(stale)
            self._beats = number
        truncate_sometimes(self._meta, beat_key(self.id), number)

    @contextmanager
    def _time_beat(self) -> Iterator[None]:
        began_s = self._runtime.monotonic_s()
        with self._lock:
            self._beat_began_s = began_s
        is_done = False
        try:
            yield
            is_done = True
        finally:
            now_s = self._runtime.monotonic_s()
            with self._lock:
                if is_done and (self._is_beat_lost or self._is_slow(now_s - began_s)):
                    self._recovered_s = now_s
                self._beat_began_s, self._is_beat_lost = None, not is_done

    def _is_slow(self, took_s: float) -> bool:
        return took_s > self._settings.writer_ttl_s / 4

    @property
    def has_working_heartbeat(self) -> bool:
        """Whether this writer's own heartbeats succeed, and have for half the time to live.

        If not, storage is or was unreachable, perhaps for all processes: then the silence of other writers proves
        nothing.
        """
        now_s = self._runtime.monotonic_s()
        with self._lock:
            began_s, recovered_s = self._beat_began_s, self._recovered_s
            if self._is_beat_lost or (began_s is not None and self._is_slow(now_s - began_s)):
                return False
        return recovered_s is None or now_s - recovered_s >= self._settings.writer_ttl_s / 2

    def _adopt_beat(self, stale: Stale) -> None:
        """Only this writer writes its beats: an unknown one is its own, whose answer was lost."""
        if stale.key != beat_key(self.id) or stale.found == 0:
            raise Fenced(writer=self.id, why="it was unregistered")
        self._beats = stale.found

    def _encode_beat(self, number: int) -> bytes:
        with self._lock:
            settled = min(self._open, default=self._next_seq)
        return seal(HeartbeatRecord(self.id, number, self._runtime.wall_s(), settled))

    @contextmanager
    def claim(self) -> Iterator[int]:
        """A sequence number for the names of new blobs.

        When the block ends, a shard names the blobs or never will, and garbage collection may delete orphans among
        them. Only a commit whose outcome stayed unknown leaves the number open, because it may still arrive.
        """
        seq = self.open_claim()
        try:
            yield seq
        except OutcomeUnknown:
            raise
        except EvertideError:
            self.settle(seq)
            raise
        self.settle(seq)

    def open_claim(self) -> int:
        """A sequence number that stays open until `settle`: for a blob that a later call names or drops."""
        with self._lock:
            seq = self._next_seq
            self._next_seq += 1
            self._open.add(seq)
            return seq

    def is_open(self, seq: int) -> bool:
        """Whether a blob with this number may still be named, so that garbage collection keeps it."""
        with self._lock:
            return seq in self._open

    def settle(self, seq: int) -> None:
        """Close a sequence number: its blobs are named, or never will be. Idempotent."""
        with self._lock:
            self._open.discard(seq)

    def unregister(self) -> None:
        """End the registration. If another process has ended it already, do nothing.

        If storage does not answer, the registration stays, and this process treats it as ended.
        """
        _stopped.add(self.id)
        with self._beat_lock, suppress(Fenced):
            while True:
                writes = [Write(writer_key(self.id), 1, None), Write(beat_key(self.id), self._beats, None)]
                stale = commit_until_known(self._meta, writes, (), self._runtime, self._settings)
                if stale is None:
                    break
                self._adopt_beat(stale)
        _stopped.discard(self.id)

    def adopt_generation(self) -> GenerationRecord | None:
        record = retry_read(lambda: self._meta.head(GENERATION), self._runtime, self._settings)
        self._generation = Generation(record.seqno if record else 0)
        return unseal(record.data, GenerationRecord, self._meta.path(GENERATION)) if record else None

    def set_generation(self, number: Generation) -> None:
        """Adopt a generation whose members the caller has read."""
        self._generation = number

    @property
    def generation(self) -> Generation:
        return self._generation

    def change_generation(
        self, members: Sequence[str], writes: Sequence[Write] = (), guards: Sequence[Guard] = ()
    ) -> GenerationRecord:
        """Raise the generation. From that moment every writer that knows only the old one is fenced.

        `writes` are further records for the same commit; `guards` are keys that must not have changed since they were
        read.
        """
        before = self._generation
        record = GenerationRecord(Generation(before + 1), tuple(members), self.id)
        all_writes = [Write(GENERATION, before, seal(record)), *writes]
        all_guards = [self.guards()[0], *guards]
        stale = commit_until_known(self._meta, all_writes, all_guards, self._runtime, self._settings)
        if stale is not None:
            self.check(stale)
            why = f"the newest record is {stale.found}, not {stale.expected}"
            raise Conflict(where=self._meta.path(stale.key), why=why)
        self._generation = record.number
        return record


def read_generation(meta: Meta) -> GenerationRecord | None:
    record = meta.head(GENERATION)
    return unseal(record.data, GenerationRecord, meta.path(GENERATION)) if record else None


def read_registrations(meta: Meta) -> dict[str, Registration]:
    found = meta.heads(writer_key(""))
    return {
        registration.writer: registration
        for key, record in found.items()
        for registration in [unseal(record.data, Registration, meta.path(key))]
    }


def read_settled_numbers(meta: Meta) -> dict[str, int]:
    """By writer, the sequence number below which it will name no more blobs."""
    return {
        beat.writer: beat.settled
        for key, record in meta.heads(beat_key("")).items()
        for beat in [unseal(record.data, HeartbeatRecord, meta.path(key))]
    }


def read_open_numbers(meta: Meta) -> dict[str, int]:
    """The same, only of registered writers: the others will name nothing more."""
    known = read_registrations(meta)
    return {name: floor for name, floor in read_settled_numbers(meta).items() if name in known}


def will_not_be_named(key: str, open_numbers: Mapping[str, int]) -> bool:
    """Whether no process will name the blob: its writer is not registered, or has settled its sequence number."""
    name = Name.parse(key)
    return name is not None and (name.writer not in open_numbers or name.seq < open_numbers[name.writer])


def end_silent_writers(
    meta: Meta, *, runtime: Runtime, settings: Settings, own_writer: Writer | None = None
) -> list[str]:
    """Unregister writers without a heartbeat for their time to live. A writer that writes a heartbeat meanwhile stays.

    No writer is ended while the heartbeats of `own_writer`, the caller's own writer, fail, too.
    """
    ended: list[str] = []
    if own_writer is not None and not own_writer.has_working_heartbeat:
        return ended
    now_s = runtime.wall_s()
    for writer, registration in read_registrations(meta).items():
        record = meta.head(beat_key(writer))
        if record is None:
            continue
        beat = unseal(record.data, HeartbeatRecord, meta.path(beat_key(writer)))
        if now_s - beat.beat_at_s <= registration.ttl_s:
            continue
        writes = [Write(writer_key(writer), 1, None), Write(beat_key(writer), record.seqno, None)]
        if commit_until_known(meta, writes, (), runtime, settings) is None:
            ended.append(writer)
    return ended
