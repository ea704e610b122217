"""Writers and the generation: who may change this storage (I16).

Where it lies: Meta keys `writer/<id>` (written once, removed once), `beat/<id>` (the heartbeat, apart, so that it never
fails a commit that guards the registration) and `generation`. Version 1 of each.

Every commit that changes a shard guards `writer/<id>` and `generation`. Hence:

1. A writer that was unregistered, or whose generation is over, can commit nothing more, whatever it still believes
   and however late it wakes up: it gets `Fenced`. No clock is involved.
2. A silent writer is unregistered by one compare-and-set on its registration *and* its last heartbeat: if it beats in
   between, it stays.
3. A blob that carries the id of a writer that is not registered, and that no shard read after that names, will never be
   named: it is an orphan. For a registered writer the same holds below its `settled` sequence number, which its
   heartbeat publishes: it will not name those any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from evertide.errors import Conflict, EvertideError, Fenced, GenerationMoved, OutcomeUnknown
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Guard, Meta, Stale, Write
from evertide.store.paths import GENERATION, beat_key, writer_key
from evertide.store.process import Origin, this_process
from evertide.store.retry import commit_under_new_id, commit_until_known, retry_read, truncate_sometimes
from evertide.store.sealed import seal, unseal
from evertide.types import Generation

__all__ = [
    "Beat",
    "GenerationRecord",
    "Registration",
    "Writer",
    "end_silent_writers",
    "read_generation",
    "read_registrations",
    "read_settled",
]


_stopped: set[str] = set()
"""Ids under which this process does not write (any more), although storage may have a registration of them."""


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    writer: str
    label: str
    host: str
    pid: int
    registered_at_s: float
    ttl_s: float
    boot: str = ""
    """This and the next two tell processes apart that have one host name and one pid: see `evertide.store.process`."""
    namespace: str = ""
    start_ticks: int = 0
    instance: str = ""
    """A random id: registrations with the same one are tries of the same registration, whose outcome was unknown."""

    @property
    def origin(self) -> Origin:
        return Origin(self.host, self.pid, self.boot, self.namespace, self.start_ticks)

    def has_ended(self) -> bool:
        """Whether it is proven that nothing writes under it: its process has ended, or this process has stopped it."""
        return self.writer in _stopped or self.origin.has_ended()


class Beat(msgspec.Struct, frozen=True):
    writer: str
    number: int
    beat_at_s: float
    settled: int
    """Sequence numbers below this are named by a shard already, or never will be."""


class GenerationRecord(msgspec.Struct, frozen=True):
    number: Generation
    members: tuple[str, ...]
    writer: str
    """Who made it: tells a commit whose outcome was unknown from a peer's."""


class Writer:
    """This process's registration: taken once, passed to everything that writes. Safe to share between threads."""

    def __init__(self, meta: Meta, runtime: Runtime, settings: Settings, writer: str, label: str = "") -> None:
        """For `register`, which is how a writer comes to be."""
        self.id = writer
        self.label = label
        self._meta = meta
        self._runtime = runtime
        self._settings = settings
        self._lock = threading.Lock()
        self._beating = threading.Lock()
        self._next_seq = 1
        self._open: set[int] = set()
        self._beats = 1
        self._tokens = 0
        self._open_tokens: set[int] = set()
        self._generation = Generation(0)
        self._hang: Callable[[], str] = lambda: ""
        self._beat_began_s: float | None = None
        """When the heartbeat under way began."""
        self._is_beat_lost = False
        self._recovered_s: float | None = None
        """When heartbeats got through again after some that did not, or took long."""

    @classmethod
    def register(
        cls, meta: Meta, *, runtime: Runtime, settings: Settings, label: str = "", instance: str = ""
    ) -> Writer:
        at, ttl_s = this_process(), settings.writer_ttl_s

        def writes(fresh: str) -> list[Write]:
            _stopped.add(fresh)  # until it is known to be the one: a try whose outcome was unknown leaves its id behind
            now_s = runtime.wall_s()
            registration = Registration(
                fresh, label, at.host, at.pid, now_s, ttl_s, at.boot, at.namespace, at.start_ticks, instance
            )
            beat = Beat(fresh, 1, now_s, 1)
            return [Write(writer_key(fresh), 0, seal(registration)), Write(beat_key(fresh), 0, seal(beat))]

        writer = cls(meta, runtime, settings, commit_under_new_id(meta, writes, runtime, settings), label)
        _stopped.discard(writer.id)
        writer.adopt_generation()
        return writer

    def new_token(self) -> str:
        """Names one commit of this writer, so that it can be recognised when its outcome was unknown."""
        with self._lock:
            self._tokens += 1
            return str(self._tokens)

    @contextmanager
    def open_token(self) -> Iterator[tuple[str, int]]:
        """A token for a commit that may have to be read back, and the number below which nobody asks any more."""
        with self._lock:  # in one go, or another thread could call this token settled before it is ever used
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
        """For every commit: I am still registered, and the generation is the one I know."""
        return Guard(writer_key(self.id), 1), Guard(GENERATION, self._generation)

    def check_registered(self) -> None:
        """Raise `Fenced` if this writer is not registered (any more): what is said of it in shards may be forgotten."""
        key = writer_key(self.id)
        if retry_read(lambda: self._meta.head(key), self._runtime, self._settings) is None:
            raise Fenced(writer=self.id, why="it was unregistered")

    def check(self, stale: Stale) -> None:
        """Raise `Fenced` if a commit failed on this writer's own guards."""
        if stale.key == writer_key(self.id):
            raise Fenced(writer=self.id, why="it was unregistered, as it had been silent for too long or was replaced")
        if stale.key == GENERATION:
            why = f"the generation moved on from record {stale.expected} to {stale.found}"
            raise GenerationMoved(writer=self.id, why=why)

    def beat_unless(self, hang: Callable[[], str]) -> None:
        """Beat no more while `hang` says why this process does not get on, whichever thread asks for the beat."""
        self._hang = hang

    def beat(self) -> None:
        """Say that this writer lives. Has a lock of its own: storage that does not answer must not hold up appends."""
        if self._hang():
            self.check_registered()
            return
        with self._beating, self._time_beat():
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
    def is_heard(self) -> bool:
        """Whether this writer's own heartbeats get through, and did for half the time to live.

        If not, storage is or was away, perhaps for all: then the silence of other writers says nothing of them.
        """
        now_s = self._runtime.monotonic_s()
        with self._lock:
            began_s, recovered_s = self._beat_began_s, self._recovered_s
            if self._is_beat_lost or (began_s is not None and self._is_slow(now_s - began_s)):
                return False
        return recovered_s is None or now_s - recovered_s >= self._settings.writer_ttl_s / 2

    def _adopt_beat(self, stale: Stale) -> None:
        """Only we write our beats: one that we do not know of is ours, and its answer was lost."""
        if stale.key != beat_key(self.id) or stale.found == 0:
            raise Fenced(writer=self.id, why="it was unregistered")
        self._beats = stale.found

    def _encode_beat(self, number: int) -> bytes:
        with self._lock:
            settled = min(self._open, default=self._next_seq)
        return seal(Beat(self.id, number, self._runtime.wall_s(), settled))

    @contextmanager
    def claim(self) -> Iterator[int]:
        """A sequence number for the names of new blobs.

        When the block ends, what it wrote is named by a shard or never will be, and a collector may judge it. Only a
        commit whose outcome stayed unknown leaves the number open, as it may still arrive.
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
        """A sequence number that stays open until `settle`: for a blob that a later call names, or gives up."""
        with self._lock:
            seq = self._next_seq
            self._next_seq += 1
            self._open.add(seq)
            return seq

    def is_open(self, seq: int) -> bool:
        """Whether a blob of this number may still be named: no collector has judged it."""
        with self._lock:
            return seq in self._open

    def settle(self, seq: int) -> None:
        """What carries this number is named, or never will be. May be said again."""
        with self._lock:
            self._open.discard(seq)

    def unregister(self) -> None:
        """The orderly end. Fenced already is fine: then another process ended it.

        If storage does not answer, the registration stays, and this process knows that it means nothing.
        """
        _stopped.add(self.id)
        with self._beating, suppress(Fenced):
            while True:
                writes = [Write(writer_key(self.id), 1, None), Write(beat_key(self.id), self._beats, None)]
                stale = commit_until_known(self._meta, writes, (), self._runtime, self._settings)
                if stale is None:
                    break
                self._adopt_beat(stale)
        _stopped.discard(self.id)

    def adopt_generation(self) -> GenerationRecord | None:
        """Take the current generation for ours, after looking at its members."""
        record = retry_read(lambda: self._meta.head(GENERATION), self._runtime, self._settings)
        self._generation = Generation(record.seqno if record else 0)
        return unseal(record.data, GenerationRecord, self._meta.path(GENERATION)) if record else None

    def know_generation(self, number: Generation) -> None:
        """Take a generation for ours, of which the caller has read the members."""
        self._generation = number

    @property
    def generation(self) -> Generation:
        """The number of the record that this writer knows."""
        return self._generation

    def change_generation(
        self, members: Sequence[str], writes: Sequence[Write] = (), guards: Sequence[Guard] = ()
    ) -> GenerationRecord:
        """Raise the generation: whoever knows only the old one is fenced from the same moment.

        `writes` are records that belong into the same commit; `guards` are keys that must be as they were read.
        """
        before = self._generation
        made = GenerationRecord(Generation(before + 1), tuple(members), self.id)
        all_writes = [Write(GENERATION, before, seal(made)), *writes]
        all_guards = [self.guards()[0], *guards]
        stale = commit_until_known(self._meta, all_writes, all_guards, self._runtime, self._settings)
        if stale is not None:
            self.check(stale)
            why = f"expected record {stale.expected}, found {stale.found}"
            raise Conflict(where=self._meta.path(stale.key), why=why)
        self._generation = made.number
        return made


def read_generation(meta: Meta) -> GenerationRecord | None:
    record = meta.head(GENERATION)
    return unseal(record.data, GenerationRecord, meta.path(GENERATION)) if record else None


def read_registrations(meta: Meta) -> dict[str, Registration]:
    """All registered writers, by id."""
    found = meta.heads(writer_key(""))
    return {
        registration.writer: registration
        for key, record in found.items()
        for registration in [unseal(record.data, Registration, meta.path(key))]
    }


def read_settled(meta: Meta) -> dict[str, int]:
    """Per registered writer, the sequence number below which it will name nothing more."""
    return {
        beat.writer: beat.settled
        for key, record in meta.heads(beat_key("")).items()
        for beat in [unseal(record.data, Beat, meta.path(key))]
    }


def end_silent_writers(meta: Meta, *, runtime: Runtime, settings: Settings, judge: Writer | None = None) -> list[str]:
    """Unregister writers that have not beaten for their time to live. Losing the race to a heartbeat is fine.

    None is ended while the heartbeats of `judge`, the caller's own writer, do not get through either.
    """
    ended: list[str] = []
    if judge is not None and not judge.is_heard:
        return ended
    now_s = runtime.wall_s()
    for writer, registration in read_registrations(meta).items():
        record = meta.head(beat_key(writer))
        if record is None:
            continue
        beat = unseal(record.data, Beat, meta.path(beat_key(writer)))
        if now_s - beat.beat_at_s <= registration.ttl_s:
            continue
        writes = [Write(writer_key(writer), 1, None), Write(beat_key(writer), record.seqno, None)]
        if commit_until_known(meta, writes, (), runtime, settings) is None:
            ended.append(writer)
    return ended
