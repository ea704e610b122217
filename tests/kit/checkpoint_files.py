"""The files that a checkpoint of a running pipeline names."""

from __future__ import annotations

from evertide.checkpoint.catalog import Checkpoints
from evertide.checkpoint.records import CatalogEntry, StateFile
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime


def checkpoint_files(pipeline: Pipeline, entry: CatalogEntry) -> tuple[StateFile, ...]:
    """Checkpoints share most of their files."""
    storage = pipeline.storage
    checkpoints = Checkpoints(storage.blob, storage.meta, runtime=SystemRuntime(), settings=pipeline.settings)
    return checkpoints.read(entry).files
