"""Frames between the server and its worker processes, over two pipes.

    head   12 bytes: the length of the text, the length of the body
    text   a JSON object
    body   rows as an Arrow stream, or empty

A frame cannot run code: the server treats what a worker sends as values only, because a worker runs arbitrary queries.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_HEAD = struct.Struct("<IQ")
_TEXT_MAX = 64 * 1024 * 1024
_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Frame:
    facts: dict[str, Any]
    body: bytearray


def write_frame(to: int, facts: Mapping[str, Any], body: memoryview | bytes = b"") -> None:
    """Raise `OSError` if the reader has closed the pipe."""
    text = json.dumps(facts).encode()
    for block in (_HEAD.pack(len(text), len(body)) + text, body):
        rest = memoryview(block)
        while rest:
            rest = rest[os.write(to, rest[:_CHUNK]) :]


def read_frame(at: int, body_max: int = _TEXT_MAX, *, wait: Callable[[], None] = lambda: None) -> Frame | None:
    """None at the end of the stream. `wait` is called before each read: it blocks until `at` is readable, or raises."""
    head = _read_exactly(at, _HEAD.size, wait)
    if head is None:
        return None
    text_size, body_size = _HEAD.unpack(head)
    if text_size > _TEXT_MAX or body_size > body_max:
        raise ValueError(f"a frame has {text_size} bytes of text and {body_size} of body, which is too much")
    text, body = _read_exactly(at, text_size, wait), _read_exactly(at, body_size, wait)
    return None if text is None or body is None else Frame(json.loads(text), body)


def _read_exactly(at: int, size: int, wait: Callable[[], None]) -> bytearray | None:
    taken = bytearray()
    while len(taken) < size:
        wait()
        block = os.read(at, min(_CHUNK, size - len(taken)))
        if not block:
            return None
        taken += block
    return taken
