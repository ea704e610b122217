"""Reads a script, given as text, as a file, or as a project of Spark Declarative Pipelines."""

from __future__ import annotations

from pathlib import Path

from evertide.pipeline.project import is_project, read_project, read_text
from evertide.plan.program.project import Project

__all__ = ["read_script"]


def read_script(script: str | Path) -> tuple[str | Project, str, Path]:
    """The text or project, its name in messages, and the base directory of relative paths in it."""
    if isinstance(script, str) and (any(each.isspace() for each in script.strip()) or ";" in script):
        return script, "SQL", Path.cwd()
    path = Path(script)
    if is_project(path):
        project = read_project(path)
        return project, project.where, project.root
    return read_text(path), str(path), path.absolute().parent
