"""What a server and the processes that answer its queries say to each other: frames, over two pipes.

    head   12 bytes: how long the text is, how long the body is
    text   a JSON object
    body   rows as an Arrow stream; or nothing

Nothing here can run code: what comes from a process that computes whatever people ask is looked at as values only.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Frame", "read_frame", "write_frame"]

_HEAD = struct.Struct("<IQ")
_TEXT_MAX = 64 * 1024 * 1024
_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Frame:
    told: dict[str, Any]
    body: bytearray


def write_frame(to: int, told: Mapping[str, Any], body: memoryview | bytes = b"") -> None:
    """`OSError` if nobody reads there any more."""
    text = json.dumps(told).encode()
    for piece in (_HEAD.pack(len(text), len(body)) + text, body):
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(to, rest[:_CHUNK]) :]


def read_frame(at: int, body_max: int = _TEXT_MAX, *, wait: Callable[[], None] = lambda: None) -> Frame | None:
    """None if there is no more. `wait` is called before each look, until there is something; it may raise."""
    head = _taken(at, _HEAD.size, wait)
    if head is None:
        return None
    text_size, body_size = _HEAD.unpack(head)
    if text_size > _TEXT_MAX or body_size > body_max:
        raise ValueError(f"a frame of {text_size} and {body_size} bytes is none of ours")
    text, body = _taken(at, text_size, wait), _taken(at, body_size, wait)
    return None if text is None or body is None else Frame(json.loads(text), body)


def _taken(at: int, size: int, wait: Callable[[], None]) -> bytearray | None:
    taken = bytearray()
    while len(taken) < size:
        wait()
        piece = os.read(at, min(_CHUNK, size - len(taken)))
        if not piece:
            return None
        taken += piece
    return taken
