"""Chunks of snapshots: served as they are created, and complete even if the snapshot is dropped meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from evertide.errors import EvertideError, NotAllowedNow, Unavailable
from evertide.shapes.log.snapshot import Chunks, Snapshots, SnapshotUsage
from tests.shapes.kit import OPTIONS


def make_chunks(count: int, size: int = 100_000, chunk_bytes: int = 250_000) -> Chunks:
    chunks = Chunks(SnapshotUsage())
    chunks.make((str(number).encode() * size for number in range(count)), chunk_bytes)
    return chunks


def test_chunks_hold_all_messages_once() -> None:
    chunks = make_chunks(10)
    found = [b"".join(chunks.read_blocks(number)) for number in range(4)]
    assert not chunks.has(4)
    assert b",".join(one[1:-1] for one in found) == b",".join(str(number).encode() * 100_000 for number in range(10))
    assert [one.count(b",") for one in found] == [2, 2, 2, 0]
    whole = make_chunks(6)  # the last message ends a chunk
    assert [whole.has(number) for number in range(3)] == [True, True, False]


def test_without_a_row_there_is_one_empty_chunk() -> None:
    chunks = make_chunks(0)
    assert (chunks.has(0), chunks.has(1), b"".join(chunks.read_blocks(0)), chunks.size(0)) == (True, False, b"[]", 0)


@pytest.mark.parametrize("count", [1, 10])
def test_a_chunk_that_is_dropped_while_it_is_read_is_complete(count: int) -> None:
    """Fails if the file is opened only when the client reads: it would read nothing and take that for the end."""
    chunks = make_chunks(count, 10_000 if count == 1 else 100_000)
    expected = b"".join(chunks.read_blocks(0))
    reading = chunks.read_blocks(0)
    chunks.close()
    assert b"".join(reading) == expected
    with pytest.raises(NotAllowedNow):
        chunks.read_blocks(0)
    with pytest.raises(NotAllowedNow):
        chunks.has(1)


def test_a_chunk_is_served_while_the_next_is_created() -> None:
    goes_on = threading.Event()

    def messages() -> Iterator[bytes]:
        yield b"a" * 300_000
        assert goes_on.wait(30)
        yield b"b"

    snapshots = Snapshots(OPTIONS)
    chunks = snapshots.get("h", messages, 250_000)
    assert chunks.has(0)
    assert len(b"".join(chunks.read_blocks(0))) == 300_002
    goes_on.set()
    assert chunks.has(1)
    assert snapshots.get("h", messages, 250_000) is chunks
    snapshots.stop()


def test_an_error_is_reported_to_waiting_clients_and_the_next_request_retries() -> None:
    def failing() -> Iterator[bytes]:
        yield b"a"
        raise Unavailable(path="there", why="it rains")

    snapshots = Snapshots(OPTIONS)
    chunks = snapshots.get("h", failing, 1000)
    with pytest.raises(EvertideError, match="it rains"):
        chunks.has(0)
    again = snapshots.get("h", lambda: iter([b"a"]), 1000)
    assert again.has(0)
    snapshots.stop()


def test_the_least_recently_used_snapshots_are_dropped_first() -> None:
    snapshots = Snapshots(replace(OPTIONS, memory_bytes=75_000, disk_bytes=400_000))

    def of(handle: str, size: int) -> Chunks:
        found = snapshots.get(handle, lambda: iter([b"x" * size]), 1000)
        assert found.has(0)
        return found

    small = [of(f"small{number}", 900) for number in range(30)]
    large = [of(f"large{number}", 100_000) for number in range(5)]
    of("small29", 900)
    of("last", 1)
    assert [one.has_failed for one in small] == [True] * 3 + [False] * 27
    assert [one.has_failed for one in large] == [True] + [False] * 4
    snapshots.stop()


def test_the_size_of_snapshots_is_updated_as_they_come_and_go() -> None:
    """The usage is never summed over all snapshots: with ten thousand, new clients would wait for it."""
    usage = SnapshotUsage()
    small, large = Chunks(usage), Chunks(usage)
    small.make(iter([b"x" * 10]), 250_000)
    large.make((b"y" * 100_000 for _ in range(4)), 250_000)
    assert (usage.memory_bytes, usage.disk_bytes) == (small.memory_bytes, large.disk_bytes)
    assert small.memory_bytes == 10
    assert large.disk_bytes > 400_000
    for chunks in (small, large, small):
        chunks.close()
    assert (usage.memory_bytes, usage.disk_bytes) == (0, 0)
