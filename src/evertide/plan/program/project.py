"""A project of Spark Declarative Pipelines, as it lies on a disk: plain values, and no Spark.

`evertide.pipeline.project` reads one from a directory; `evertide.plan.program.project_files` makes statements of its
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Project", "ProjectFile"]


@dataclass(frozen=True, slots=True)
class ProjectFile:
    path: Path
    """As messages spell it."""
    place: Path
    """Where it lies, whatever the current directory."""
    text: str


@dataclass(frozen=True, slots=True)
class Project:
    name: str
    root: Path
    """The directory of the spec: relative paths are relative to it."""
    where: str
    """The spec: for messages."""
    configuration: Mapping[str, str] = field(default_factory=dict)
    sql: tuple[ProjectFile, ...] = ()
    python: tuple[ProjectFile, ...] = ()
