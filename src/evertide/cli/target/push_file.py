"""The file that `push` reads, which may be standard input: its format and its path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evertide.errors import InvalidInput
from evertide.pipeline.input.pushed_files import PushFormat
from evertide.scratch import scratch_file, using_scratch

_CHUNK_BYTES = 1 << 20
_SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}


def choose_format(file: Path, form: PushFormat | None) -> PushFormat:
    if form is not None:
        return form
    name = _SUFFIXES.get(file.suffix.lower())
    if name is None:
        why = "the format is not clear from the name; set --format to csv, json or parquet"
        raise InvalidInput(where="standard input" if str(file) == "-" else str(file), why=why)
    return PushFormat(name)


@contextmanager
def open_push_file(file: Path) -> Iterator[Path]:
    """The path to read. Standard input is copied to a scratch file, because the content is read twice."""
    if str(file) != "-":
        yield file
        return
    with scratch_file() as copy:
        with using_scratch(), copy.open("wb") as opened:
            while chunk := sys.stdin.buffer.read(_CHUNK_BYTES):
                opened.write(chunk)
        yield copy
