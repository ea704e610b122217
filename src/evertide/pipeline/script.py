"""A script as text or as a file."""

from __future__ import annotations

from pathlib import Path

from evertide.errors import InvalidInput

__all__ = ["read_script"]


def read_script(script: str | Path) -> tuple[str, str, Path]:
    """Its text, how messages call it, and the directory that relative paths in it are relative to."""
    if isinstance(script, str) and (any(each.isspace() for each in script.strip()) or ";" in script):
        return script, "SQL", Path.cwd()
    path = Path(script)
    try:
        return path.read_text(encoding="utf-8"), str(path), path.absolute().parent
    except UnicodeDecodeError as error:
        raise InvalidInput(where=str(path), why=f"it is not UTF-8: byte {error.start} cannot be read") from error
    except OSError as error:
        raise InvalidInput(where=str(path), why=f"the script cannot be read: {error.strerror}") from error
