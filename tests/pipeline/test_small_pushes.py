"""Small pushes: their rows are stored in the record of the journal, as far as it has space, and not in blobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from evertide.errors import BlobDamaged, OutcomeUnknown, Unavailable
from evertide.journal.staging import list_staged
from evertide.pipeline.pipeline import Pipeline
from evertide.store.open import Storage
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.pipeline.kit import SETTINGS, crash, open_pipeline, rows_of, storage

TEXT = "x" * 50


def blobs(kept: Storage) -> int:
    return len(list(kept.blob.list("journal")))


def push_note(pipeline: Pipeline, text: str) -> Any:
    with pipeline.transaction() as pushed:
        pushed.push("notes", [{"text": text}])
    return pushed


def test_pushes_that_wait_together_share_the_space_of_one_record() -> None:
    """Fails if each push may fill it: the record of a thousand pushes would have a thousand times its size."""
    kept = storage()
    pipeline = open_pipeline(kept)
    size = push_note(pipeline, TEXT).fragments[0].bytes
    pipeline.commit()
    assert blobs(kept) == 0
    crash(pipeline)
    pipeline = open_pipeline(kept, settings=replace(SETTINGS, inline_bytes_max=3 * size))
    for expected in (0, 2):  # the second time, the space of the first transaction is free again
        waiting = [push_note(pipeline, TEXT) for _ in range(5)]
        assert [bool(one.inline) for pushed in waiting for one in pushed.fragments] == [True] * 3 + [False] * 2
        assert blobs(kept) == expected + 2
        pipeline.commit()
        bound = list_staged(pipeline._runner.journal.read(pipeline.time))
        assert [one.has_blob for one in bound] == [False] * 3 + [True] * 2
    assert rows_of(pipeline, "notes") == [(TEXT,)] * 11
    assert pipeline._pushes._inline_bytes == 0
    for _ in range(3):
        pipeline.push("notes", [{"text": "last"}])
        pipeline.commit()
        pipeline.checkpoint()
    assert blobs(kept) == 0, "the truncation of the journal deletes blobs, and none that never were"
    pipeline.close()


def test_rows_of_an_aborted_push_free_their_space() -> None:
    kept = storage()
    pipeline = open_pipeline(kept, settings=replace(SETTINGS, push_buffer_bytes=1))
    for _ in range(3):
        pipeline.push("notes", [{"text": TEXT}])
        assert pipeline._pushes._inline_bytes > 0
        pipeline.abort()
        assert pipeline._pushes._inline_bytes == 0
    pipeline.push("notes", [{"text": "a"}])
    pipeline.commit()
    assert rows_of(pipeline, "notes") == [("a",)]
    pipeline.close()


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST, Fault.DONE_LOST])
@pytest.mark.parametrize("inline_bytes_max", [1, 65_536])
def test_rows_are_applied_once_if_the_answer_of_the_bind_is_lost(fault: Fault, inline_bytes_max: int) -> None:
    faults: list[Fault] = []
    kept = storage()
    meta = FaultyMeta(kept.meta, Faults(lambda *_: faults.pop() if faults else Fault.DONE, lambda *_: Fault.DONE))
    settings = replace(SETTINGS, inline_bytes_max=inline_bytes_max)
    pipeline = open_pipeline(storage(kept.blob, meta), settings=settings)
    for number in range(4):
        pipeline.push("notes", [{"text": f"{number}"}])
        faults.append(fault)
        while True:
            try:
                pipeline.commit()
                break
            except (Unavailable, OutcomeUnknown):
                faults.clear()
    assert rows_of(pipeline, "notes") == [(f"{number}",) for number in range(4)]
    assert pipeline._pushes._inline_bytes == 0
    pipeline.close()
    again = open_pipeline(kept)
    assert rows_of(again, "notes") == [(f"{number}",) for number in range(4)]
    again.close()


def test_a_changed_byte_of_rows_in_a_record_is_damage() -> None:
    kept = storage()
    pipeline = open_pipeline(kept)
    [staged] = push_note(pipeline, TEXT).fragments
    content = staged.inline
    wrong = msgspec.structs.replace(staged, inline=content[:60] + bytes([content[60] ^ 1]) + content[61:])
    with pytest.raises(BlobDamaged, match="the checksum does not match"):
        pipeline._runner.journal.load(wrong)
    crash(pipeline)
