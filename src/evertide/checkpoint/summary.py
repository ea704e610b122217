"""Summaries of the published checkpoints, for display."""

from __future__ import annotations

from dataclasses import dataclass

from evertide.checkpoint.catalog import Checkpoints
from evertide.checkpoint.records import CatalogEntry
from evertide.errors import Damaged
from evertide.types import Generation

__all__ = ["CheckpointSummary", "summarize_checkpoints"]


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    number: int
    time: int
    made_at_s: float
    files: int
    """Other checkpoints need most of them, too."""
    bytes: int
    generation: Generation
    problem: str = ""
    """Why the checkpoint is unusable, if its manifest is damaged; its files are then unknown."""


def summarize_checkpoints(checkpoints: Checkpoints) -> list[CheckpointSummary]:
    """The newest first."""
    return [_one(checkpoints, entry) for entry in checkpoints.entries()]


def _one(checkpoints: Checkpoints, entry: CatalogEntry) -> CheckpointSummary:
    try:
        manifest = checkpoints.read(entry)
    except Damaged as error:
        return CheckpointSummary(entry.number, entry.time, entry.made_at_s, 0, 0, Generation(0), error.message)
    return CheckpointSummary(
        number=entry.number,
        time=entry.time,
        made_at_s=entry.made_at_s,
        files=len(manifest.files),
        bytes=sum(file.bytes for file in manifest.files),
        generation=manifest.generation,
    )
