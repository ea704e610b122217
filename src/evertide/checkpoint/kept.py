"""The checkpoints that are kept, each with what it needs: for people."""

from __future__ import annotations

from dataclasses import dataclass

from evertide.checkpoint.catalog import Checkpoints

__all__ = ["Kept", "kept"]


@dataclass(frozen=True, slots=True)
class Kept:
    number: int
    time: int
    made_at_s: float
    files: int
    """Most of them are needed by others, too."""
    bytes: int
    generation: int


def kept(checkpoints: Checkpoints) -> list[Kept]:
    """The newest first."""
    found = [(entry, checkpoints.read(entry)) for entry in checkpoints.entries()]
    return [
        Kept(
            number=entry.number,
            time=entry.time,
            made_at_s=entry.made_at_s,
            files=len(manifest.files),
            bytes=sum(file.bytes for file in manifest.files),
            generation=manifest.generation,
        )
        for entry, manifest in found
    ]
