"""Split a file of lines into records, block by block, so that a file of any size needs little memory.

A record is a line or, in CSV, the text between two line ends that are not inside quotes. A block has many complete
records. Where records begin and end depends only on the file, not on the blocks or on the record where reading starts.
Lines end in LF or CR LF; the last line end may be missing. A byte order mark is skipped.

Quotes follow RFC 4180: a field that starts with a quote ends at the next quote that is not doubled, across line ends.

1. A quote inside a field that does not start with one is an ordinary character.
2. Text between the closing quote and the next delimiter makes the record invalid; the record's end does not change.
3. A quote that is not closed within `record_bytes_max` would extend to the end of the file. Instead, its first line is
   an invalid record, and reading continues with the next line.
4. A longer line is an invalid record as well, and is never held in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from evertide.rows.columns import Longs

_LF, _CR, _QUOTE = 10, 13, ord('"')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_RAW_BYTES_MAX = 1000
_UNCLOSED = "a quote is not closed"
_AFTER_QUOTE = "text between a closing quote and the next delimiter"
_LONE_CR = "a carriage return that does not end a line"
_TOO_LONG = "the record is longer than {} bytes"


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """How a file is split into records."""

    delimiter: str = ""
    """The delimiter of CSV fields; empty if every line is a record."""
    block_bytes: int = 4 * 1024 * 1024
    record_bytes_max: int = 16 * 1024 * 1024

    @property
    def window(self) -> int:
        """A record, including its line end, has at most this many bytes."""
        return self.record_bytes_max + 2


@dataclass(frozen=True, slots=True)
class Block:
    content: bytes
    starts: Longs
    ends: Longs
    """The ranges of the records in the content, without line ends. Empty lines are omitted."""
    lines: Longs
    """The number of each record's first line in the file, counted from 1."""
    fields: Longs
    """The number of fields of each record, if there is a delimiter."""
    reasons: dict[int, str]
    """Why a record is invalid, by its index in this block."""
    begin: int
    end: int
    """The range of the block in the file."""
    next_line: int

    def raw(self, at: int) -> str:
        """The beginning of a record, for messages."""
        beginning = self.content[self.starts[at] : min(self.ends[at], self.starts[at] + _RAW_BYTES_MAX)]
        return beginning.decode("utf-8", "backslashreplace")

    def without_first(self) -> Block:
        return replace(
            self,
            starts=self.starts[1:],
            ends=self.ends[1:],
            lines=self.lines[1:],
            fields=self.fields[1:],
            reasons={at - 1: why for at, why in self.reasons.items() if at},
        )

    def find_invalid_utf8(self) -> list[int]:
        """The records that are not UTF-8."""
        return [] if _is_utf8(self.content) else [at for at in range(len(self.starts)) if not _is_utf8(self.record(at))]

    def record(self, at: int) -> bytes:
        return self.content[self.starts[at] : self.ends[at]]


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def read_blocks(file: BinaryIO, layout: RecordLayout, *, first: int, last: int, line: int) -> Iterator[Block]:
    """The records in the bytes [first, last) of a file, whose first line has the number `line`."""
    file.seek(first)
    rest = file.read(min(len(_BYTE_ORDER_MARK), last - first)) if first == 0 else b""
    if rest == _BYTE_ORDER_MARK:
        first, rest = len(_BYTE_ORDER_MARK), b""
    offset, want = first, layout.block_bytes
    is_last = False
    while not is_last:
        read = file.read(min(want, last - offset - len(rest)))
        content = rest + read
        is_last = not read or offset + len(content) >= last
        ends, reasons = _cut(content, layout, is_last=is_last) if content else ([], {})
        if ends:
            block = _block(content, layout, ends, reasons, offset=offset, line=line)
            rest, want = content[block.end - offset :], layout.block_bytes
        elif len(content) > layout.record_bytes_max + 1:  # the last one may be a carriage return
            block = _skip_long_record(file, content, layout, offset=offset, last=last, line=line)
            rest, want, is_last = b"", layout.block_bytes, block.end >= last
        else:
            rest, want = content, len(content)
            continue
        yield block
        offset, line = block.end, block.next_line


def _skip_long_record(
    file: BinaryIO, content: bytes, layout: RecordLayout, *, offset: int, last: int, line: int
) -> Block:
    """Skip a record that is too long, up to the end of its line."""
    end = offset + len(content)
    while end < last:
        read = file.read(min(layout.block_bytes, last - end))
        found = read.find(b"\n")
        end += len(read) if found < 0 else found + 1
        if found >= 0 or not read:
            file.seek(end)
            break
    kept, zero, one = content[:_RAW_BYTES_MAX], np.zeros(1, np.int64), np.ones(1, np.int64)
    why = {0: _TOO_LONG.format(layout.record_bytes_max)}
    return Block(kept, zero, one * len(kept), one * line, one, why, offset, end, line + 1)


def _cut(content: bytes, layout: RecordLayout, *, is_last: bool) -> tuple[list[int], dict[int, str]]:
    """The end of each complete record's line, and the reasons of invalid records, by that end."""
    line_ends = np.flatnonzero(np.frombuffer(content, np.uint8) == _LF)
    if is_last and content[-1] != _LF:
        line_ends = np.append(line_ends, len(content))
    if not layout.delimiter or b'"' not in content:
        return line_ends.tolist(), {}
    regular = _find_regular_quotes(np.frombuffer(content, np.uint8), layout.delimiter)
    if regular is not None:
        found = line_ends[_is_outside(line_ends, regular)]
        sizes = np.diff(found, prepend=-1, append=len(content))
        if (sizes <= layout.record_bytes_max).all() and not (is_last and len(regular) % 2):
            return found.tolist(), {}
    return _cut_one_by_one(content, layout, line_ends, is_last=is_last)


def _find_regular_quotes(array: Any, delimiter: str) -> Longs | None:
    """The offsets of all quotes, if each one opens a field, closes one, or is doubled inside one; else None.

    A byte is then inside quotes if and only if an odd number of quotes precede it, which avoids a scan field by field.
    CSV written by programs is regular."""
    quotes = np.flatnonzero(array == _QUOTE)
    padded = np.concatenate((np.array([_LF], np.uint8), array, np.array([_LF, _LF], np.uint8)))
    before, after, second = padded[quotes], padded[quotes + 2], padded[quotes + 3]
    opens = (before == ord(delimiter)) | (before == _LF) | (before == _QUOTE)
    closes = (after == ord(delimiter)) | (after == _LF) | (after == _QUOTE) | ((after == _CR) & (second == _LF))
    return quotes if opens[::2].all() and closes[1::2].all() else None


def _is_outside(places: Longs, quotes: Longs) -> Any:
    return np.searchsorted(quotes, places) % 2 == 0


def _cut_one_by_one(
    content: bytes, layout: RecordLayout, line_ends: Longs, *, is_last: bool
) -> tuple[list[int], dict[int, str]]:
    """A line without a quote is a record; lines with quotes are scanned field by field."""
    ends: list[int] = []
    reasons: dict[int, str] = {}
    done = 0
    quotes = np.flatnonzero(np.frombuffer(content, np.uint8) == _QUOTE)
    for number in np.unique(np.searchsorted(line_ends, quotes)).tolist():
        if number < done:
            continue  # the line is inside the quotes of the previous record
        ends += line_ends[done:number].tolist()
        if number == len(line_ends):
            return ends, reasons
        start = int(line_ends[number - 1]) + 1 if number else 0
        found = _scan(content, start, layout)
        is_open = found is None or found[0] == len(content)
        if is_open and not is_last and len(content) < start + layout.window:
            return ends, reasons
        end, why = found or (int(line_ends[number]), _UNCLOSED)
        if why:
            reasons[end] = why
        ends.append(end)
        done = int(np.searchsorted(line_ends, end)) + 1
    return ends + line_ends[done:].tolist(), reasons


def _scan(content: bytes, start: int, layout: RecordLayout) -> tuple[int, str] | None:
    """The end of the record's line, and the reason if it is invalid; None if the end is beyond the content or limit."""
    delimiter = layout.delimiter.encode()
    limit = start + layout.window
    at, why = start, ""
    while True:
        if content[at : at + 1] == b'"':
            closed = _find_closing_quote(content, at + 1, limit)
            if closed is None:
                return None
            at = closed + 1
            follows = content[at : at + 2]
            if follows and follows[:1] not in {delimiter, b"\n"} and follows not in {b"\r\n", b"\r"}:
                why = why or _AFTER_QUOTE
        end = content.find(b"\n", at, limit)
        next_field = content.find(delimiter, at, limit if end < 0 else end)
        if next_field < 0:
            is_whole = end >= 0 or len(content) < limit
            return (len(content) if end < 0 else end, why) if is_whole else None
        at = next_field + 1


def _find_closing_quote(content: bytes, at: int, limit: int) -> int | None:
    while (found := content.find(b'"', at, limit)) >= 0:
        if content[found + 1 : found + 2] != b'"':
            return found
        at = found + 2
    return None


def _block(
    content: bytes, layout: RecordLayout, ends: list[int], bad: dict[int, str], *, offset: int, line: int
) -> Block:
    used = min(ends[-1] + 1, len(content))
    array = np.frombuffer(content, np.uint8, used)
    stops = np.array(ends, np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), stops[:-1] + 1))
    line_ends = np.flatnonzero(array == _LF)
    lines = line + np.searchsorted(line_ends, starts)
    trimmed = stops - ((stops > starts) & (array[np.maximum(stops - 1, 0)] == _CR))
    kept = np.flatnonzero(trimmed > starts)
    reasons = {at: bad[stop] for at, stop in enumerate(stops[kept].tolist()) if stop in bad} if bad else {}
    starts, trimmed = starts[kept], trimmed[kept]
    fields = np.ones(len(kept), np.int64)
    if layout.delimiter:
        fields = _count_fields(array, starts, trimmed, reasons, layout.delimiter.encode())
    for at in np.flatnonzero(trimmed - starts > layout.record_bytes_max).tolist():
        reasons[at] = _TOO_LONG.format(layout.record_bytes_max)
    return Block(
        content=content,
        starts=starts,
        ends=trimmed,
        lines=lines[kept],
        fields=fields,
        reasons=reasons,
        begin=offset,
        end=offset + used,
        next_line=line + len(line_ends),
    )


def _count_fields(array: Any, starts: Longs, ends: Longs, reasons: dict[int, str], delimiter: bytes) -> Longs:
    """Count the fields of each record: the delimiters outside quotes, and one."""
    regular = None if reasons else _find_regular_quotes(array, delimiter.decode())  # invalid records may be irregular
    if regular is not None:
        counts = _count_within(array, delimiter[0], starts, ends, regular) + 1
        for at in np.flatnonzero(_count_within(array, _CR, starts, ends, regular)).tolist():
            reasons.setdefault(at, _LONE_CR)
        return counts
    counts = _count_within(array, delimiter[0], starts, ends) + 1
    lone = _count_within(array, _CR, starts, ends) > 0
    for at in np.flatnonzero(_count_within(array, _QUOTE, starts, ends)).tolist():
        if at not in reasons:
            counts[at], lone[at] = _count_quoted_fields(array[starts[at] : ends[at]].tobytes(), delimiter)
    for at in np.flatnonzero(lone).tolist():
        reasons.setdefault(at, _LONE_CR)
    return counts


def _count_within(array: Any, byte: int, starts: Longs, ends: Longs, quotes: Longs | None = None) -> Longs:
    """How often a byte occurs in each record, outside of these quotes."""
    places = np.flatnonzero(array == byte)
    if quotes is not None and len(quotes):
        places = places[_is_outside(places, quotes)]
    found: Longs = np.searchsorted(places, ends) - np.searchsorted(places, starts)
    return found


def _count_quoted_fields(record: bytes, delimiter: bytes) -> tuple[int, bool]:
    """The number of fields, and whether there is a carriage return outside quotes."""
    at, count, is_lone = 0, 1, False
    while True:
        if record[at : at + 1] == b'"':
            closed = _find_closing_quote(record, at + 1, len(record))
            at = len(record) if closed is None else closed + 1
        next_field = record.find(delimiter, at)
        is_lone = is_lone or b"\r" in record[at : next_field if next_field >= 0 else len(record)]
        if next_field < 0:
            return count, is_lone
        at, count = next_field + 1, count + 1
