"""Texts that people read, compared with files in tests/golden. `EVERTIDE_GOLDEN=write` rewrites the files.

A text that differs from run to run is normalized first: `normalize` for single facts, `normalize_numbers` for displays
in which most numbers change.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"

_FACTS = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d| UTC)?", "TIME"),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"\b[\d,]*\d(\.\d+)? (ns|us|µs|ms|s|min|h|d)\b( ago)?", lambda found: f"DURATION{found[3] or ''}"),
    (r"\b[\d,]*\d(\.\d+)? ([kKMG]i?B|bytes?|B)(?=/s|\b)", "SIZE"),
    (r"\b[\d,]*\d rows/s", "N rows/s"),
    (r"\b(process|pid) \d+", r"\1 PID"),
    (r"(127\.0\.0\.1|localhost):\d+", r"\1:PORT"),
    (r"\b(?=\d*[a-f])[0-9a-f]{16,}\b", "ID"),
)


def normalize(text: str, places: Mapping[str, str] | None = None) -> str:
    """The text without times, durations, sizes, process ids, ports and this host; `places` are other replacements."""
    for place, name in {**(places or {}), socket.gethostname(): "HOST"}.items():
        text = text.replace(place, name)
    for pattern, replacement in _FACTS:
        text = re.sub(pattern, replacement, text)
    return text


def normalize_numbers(text: str) -> str:
    """Also without numbers, and without the widths of columns that depend on them."""
    text = re.sub(r"\b[\d,]*\d(\.\d+)?\b", "N", text)
    text = re.sub(r"([━─═])+", r"\1", re.sub(r"(?<=\S)  +", "  ", text))
    return "\n".join(line.rstrip() for line in text.splitlines())


def compare_with_golden(name: str, text: str) -> None:
    """Compare the text with the file of this name; the text ends with one line break."""
    path, found = GOLDEN / name, text.rstrip("\n") + "\n"
    if os.environ.get("EVERTIDE_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, "utf-8")
    known = path.read_text("utf-8")
    difference = "\n".join(unified_diff(known.splitlines(), found.splitlines(), "known", "found", lineterm=""))
    assert found == known, f"{name}; EVERTIDE_GOLDEN=write rewrites it\n{difference}"
