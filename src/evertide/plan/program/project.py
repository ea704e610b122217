"""The files of a project of Spark Declarative Pipelines, as plain values without Spark.

`evertide.pipeline.script_reader` reads a project from a directory; `evertide.plan.program.project_files` converts its
files to statements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProjectFile:
    path: Path
    """The path for messages."""
    place: Path
    """The absolute path."""
    text: str


@dataclass(frozen=True, slots=True)
class Project:
    name: str
    root: Path
    """The directory of the spec, to which relative paths are relative."""
    where: str
    """The path of the spec, for messages."""
    configuration: Mapping[str, str] = field(default_factory=dict)
    sql: tuple[ProjectFile, ...] = ()
    python: tuple[ProjectFile, ...] = ()
