"""`ArrangementManifest`: a saved arrangement, with everything needed to restore it.

The owner stores it in its checkpoint, encoded by msgspec. Version 1. It names every part with its length and checksums,
per run: the words of a run's parts ascend from one part to the next.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from evertide.errors import UnsupportedFormat
from evertide.flow.state.state_part import FORMAT_VERSION, PartEntry

__all__ = ["ArrangementManifest"]


class ArrangementManifest(msgspec.Struct, frozen=True):
    name: str
    schema: bytes
    """The collection's columns, as a schema message of Arrow IPC."""
    key: tuple[str, ...]
    runs: tuple[tuple[PartEntry, ...], ...]
    version: int = FORMAT_VERSION

    def read_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    def list_entries(self) -> Iterator[PartEntry]:
        for run in self.runs:
            yield from run

    def check(self, path: str) -> None:
        """`path` is for the error message."""
        if self.version != FORMAT_VERSION:
            raise UnsupportedFormat(path=path, found=self.version, supported=FORMAT_VERSION)
