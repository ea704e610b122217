"""Computes the decoded size of a Parquet file from its page headers, before the file is decoded.

1. The sizes in a footer need not be true. The reader relies on the page headers: it allocates the size that a header
   states, and decodes as many values as it states, and a few bytes can state a billion. So the page headers are
   counted, over the same byte ranges that the reader reads.
2. A dictionary can refer to a large text many times in a few bits. Unless an upper bound of the expanded size is small
   enough, the columns are read once as dictionaries, which is cheap, and the expanded values are counted.
3. The footer is parsed here as well, because Arrow's own parser aborts the process on some malformed footers.
4. Both are in Thrift's compact protocol, which is parsed as far as Parquet uses it: a struct becomes a dict by field
   number. Any input yields a struct or `Malformed`, in time linear in its length. A repeated field is malformed,
   because two readers could each use another value. So is a map, which Parquet does not use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evertide.server.bodies.arrow_size import count_plain_bytes

_MAGIC = b"PAR1"
_FOOTER_BYTES = 2 * 1024 * 1024
_PAGES = 200_000
"""Maximum number of pages of a file, since parsing each header takes time."""

_TEXT = 6
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, _TEXT: 8}
"""Bytes of a value by physical type; type 7 (fixed length) states its own."""
_LEVELS_BYTES = 4
"""Definition and repetition level of a value."""
_ROW_BYTES = 8
_BATCH_ROWS = 16_384

_SIZE, _STORED = 2, 3
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
"""Fields of a page header, one for each kind of page."""
_VALUES = 1
_ENCODINGS = {_DATA: 2, _DATA_V2: 4}
_DELTA_BYTE_ARRAY = 7
_DICTIONARY_ENCODINGS = frozenset((2, 8))
_PADDING_BYTES = 100
"""The reader reads this far beyond a chunk if the file claims to be from a certain old version of the writer."""

_DEPTH = 16
_SKIPPED = {1: 0, 2: 0, 3: 1, 7: 8}
"""Types whose values are ignored, and their size in bytes: true, false, byte, double."""
_TRUE, _FALSE, _BYTES, _LIST, _SET, _STRUCT = 1, 2, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)


@dataclass(frozen=True, slots=True)
class _ParquetPage:
    bytes: int
    values: int
    encodings: frozenset[int] = frozenset()
    is_dictionary: bool = False


@dataclass(frozen=True, slots=True)
class _ColumnChunk:
    name: str
    width: int
    is_text: bool
    start: int
    end: int


def count_parquet_bytes(content: bytes, limit: int) -> int:
    """The decoded size; counting stops beyond `limit`. `ValueError` or Arrow's error if this is no Parquet file.

    An upper bound for delta encodings, where a value depends on the one before.
    """
    try:
        return _count_pages(content, limit)
    except Malformed as error:
        raise ValueError("its metadata is malformed") from error


def _count_pages(content: bytes, limit: int) -> int:
    footer = _read_footer(content)
    total = sum(max(0, _read_number(group, 3)) for group in _read_structs(footer, 4)) * _ROW_BYTES
    expanded, count, repeated = 0, 0, set[str]()
    for chunk in _list_chunks(footer, len(content)):
        pages = [*islice(_read_pages(content, chunk), _PAGES + 1 - count)]
        count += len(pages)
        if count > _PAGES:
            raise ValueError(f"it has more than {_PAGES} pages")
        total += sum(_count_page_bytes(page, chunk.width) for page in pages)
        if total > limit:
            return total
        if chunk.is_text and (at_most := _bound_expanded_bytes(pages)):
            expanded += at_most
            repeated.add(chunk.name)
    if total + expanded <= limit:
        return total
    return total + _count_by_dictionaries(content, sorted(repeated), limit - total)


def _count_page_bytes(page: _ParquetPage, width: int) -> int:
    if _DELTA_BYTE_ARRAY in page.encodings:  # each value may repeat a prefix of the one before
        width += page.bytes
    return page.bytes + page.values * (width + _LEVELS_BYTES)


def _bound_expanded_bytes(pages: list[_ParquetPage]) -> int:
    """Upper bound of the expanded size, as if each value were the whole dictionary."""
    largest = max((page.bytes for page in pages if page.is_dictionary), default=0)
    return largest * sum(page.values for page in pages if page.encodings & _DICTIONARY_ENCODINGS)


def _count_by_dictionaries(content: bytes, columns: list[str], limit: int) -> int:
    """Count by row group, since each has its own dictionaries and an array of a nested column can have only one."""
    total = 0
    with pq.ParquetFile(pa.BufferReader(content), read_dictionary=columns) as file:
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(_BATCH_ROWS, [group], columns):
                total += sum(map(count_plain_bytes, batch.columns))
                if total > limit:
                    return total
    return total


def _read_footer(content: bytes) -> dict[int, Any]:
    size = int.from_bytes(content[-8:-4], "little")
    if len(content) < 12 or content[-4:] != _MAGIC or size > len(content) - 8:
        raise ValueError("it has no footer")
    if size > _FOOTER_BYTES:
        raise ValueError(
            f"its footer has {size} bytes, but at most {_FOOTER_BYTES} are allowed: write larger row groups"
        )
    return read_struct(content[-8 - size : -8], has_lists=True)[0]


def _list_chunks(footer: dict[int, Any], length: int) -> Iterator[_ColumnChunk]:
    leaves = [*_list_leaves(_read_structs(footer, 2))]
    if len({name for name, _ in leaves}) < len(leaves):
        raise ValueError("two of its columns have the same name")
    for group in _read_structs(footer, 4):
        columns = _read_structs(group, 1)
        if len(columns) != len(leaves):
            raise Malformed
        for (name, leaf), column in zip(leaves, columns, strict=True):
            meta = column.get(3)
            if not isinstance(meta, dict):
                raise Malformed
            start, dictionary = _read_number(meta, 9), _read_number(meta, 11)
            start = dictionary if 0 < dictionary < start else start
            end = start + _read_number(meta, 7)
            if not 0 <= start <= end <= length:
                raise ValueError(f"the column {name!r} lies outside of the file")
            kind = _read_number(leaf, 1)
            yield _ColumnChunk(name, _WIDTHS.get(kind, max(0, _read_number(leaf, 2))), kind == _TEXT, start, end)


def _list_leaves(elements: list[dict[int, Any]]) -> Iterator[tuple[str, dict[int, Any]]]:
    """The leaf columns with their dotted paths. `elements` is the schema tree in depth-first order."""
    inside: list[tuple[list[str], int]] = []
    for at, element in enumerate(elements):
        while inside and inside[-1][1] == 0:
            inside.pop()
        path = inside[-1][0] if inside else []
        if inside:
            inside[-1] = path, inside[-1][1] - 1
            path = [*path, _read_text(element, 4)]
        elif at:
            raise Malformed
        children = _read_number(element, 5)
        if children <= 0 and 1 in element:
            yield ".".join(path), element
        else:
            inside.append((path, children))


def _read_pages(content: bytes, chunk: _ColumnChunk) -> Iterator[_ParquetPage]:
    at = chunk.start
    while at < chunk.end:
        page, at = _read_page(content, at)
        yield page
    while at < min(chunk.end + _PADDING_BYTES, len(content)):  # usually pages of the next column, counted twice
        try:
            page, at = _read_page(content, at)
        except Malformed:
            return
        yield _ParquetPage(page.bytes, page.values)


def _read_page(content: bytes, at: int) -> tuple[_ParquetPage, int]:
    """Parse a page header. The largest count of values in it applies, whatever kind of page it claims to be."""
    head, at = read_struct(content, at, has_lists=False)
    meta = {kind: head[kind] for kind in (_DATA, _DICTIONARY, _DATA_V2) if isinstance(head.get(kind), dict)}
    size, stored = _read_number(head, _SIZE), _read_number(head, _STORED)
    values = [_read_number(one, _VALUES) for one in meta.values()]
    encodings = frozenset(_read_number(meta[kind], field) for kind, field in _ENCODINGS.items() if kind in meta)
    if min(size, stored, *values) < 0:
        raise Malformed
    return _ParquetPage(size, max(values, default=0), encodings, _DICTIONARY in meta), at + stored


def _read_structs(struct: dict[int, Any], field: int) -> list[dict[int, Any]]:
    found = struct.get(field, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Malformed
    return found


def _read_number(struct: dict[int, Any], field: int) -> int:
    found = struct.get(field, 0)
    if not isinstance(found, int):
        raise Malformed
    return found


def _read_text(struct: dict[int, Any], field: int) -> str:
    found = struct.get(field, b"")
    if not isinstance(found, bytes):
        raise Malformed
    return found.decode("utf-8", "replace")


class Malformed(Exception):
    pass


def read_struct(content: bytes, at: int = 0, *, has_lists: bool) -> tuple[dict[int, Any], int]:
    """The struct at `at`, and the position after it."""
    try:
        return _read_struct(content, at, _DEPTH if has_lists else 0, _DEPTH)
    except IndexError as error:
        raise Malformed from error


def _read_struct(content: bytes, at: int, lists: int, depth: int) -> tuple[dict[int, Any], int]:
    found: dict[int, Any] = {}
    number = 0
    while (first := content[at]) != 0:
        at += 1
        if first >> 4:
            number += first >> 4
        else:
            number, at = _read_integer(content, at)
        if number in found:
            raise Malformed
        found[number], at = _read_value(content, at, first & 15, lists, depth - 1)
    return found, at + 1


def _read_value(content: bytes, at: int, kind: int, lists: int, depth: int) -> tuple[Any, int]:
    if depth == 0:
        raise Malformed
    if kind in _SKIPPED:
        return None, at + _SKIPPED[kind]
    if kind in _INTEGERS:
        return _read_integer(content, at)
    if kind == _STRUCT:
        return _read_struct(content, at, lists, depth)
    if kind == _BYTES:
        length, at = _read_varint(content, at)
        if at + length > len(content):
            raise Malformed
        return content[at : at + length], at + length
    if kind in (_LIST, _SET) and lists:
        return _read_list(content, at, lists, depth)
    raise Malformed


def _read_list(content: bytes, at: int, lists: int, depth: int) -> tuple[list[Any], int]:
    first = content[at]
    count, at = (first >> 4, at + 1) if first >> 4 < 15 else _read_varint(content, at + 1)
    kind = first & 15
    if at + count > len(content):  # each element has at least one byte
        raise Malformed
    if kind in (_TRUE, _FALSE):
        return [], at + count
    found = []
    for _ in range(count):
        value, at = _read_value(content, at, kind, lists, depth - 1)
        found.append(value)
    return found, at


def _read_integer(content: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(content, at)
    return (value >> 1) ^ -(value & 1), at


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise Malformed
