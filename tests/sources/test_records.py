"""Records of a file: the same for any block boundaries; what programs write is split as they wrote it."""

from __future__ import annotations

import csv
import io
from typing import Any
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from evertide.sources.files import records
from evertide.sources.files.records import RecordLayout, read_blocks

WILD = st.text('",\n\ra', max_size=40).map(str.encode)


def cut(content: bytes, block_bytes: int = 1 << 20, most: int = 1 << 20, delimiter: str = ",") -> list[Any]:
    layout = RecordLayout(delimiter, block_bytes, most)
    found = []
    for block in read_blocks(io.BytesIO(content), layout, first=0, last=len(content), line=1):
        for at in range(len(block.starts)):
            why = block.reasons.get(at)
            found.append(
                (block.record(at)[: min(most, 10)], int(block.lines[at]), why, None if why else int(block.fields[at]))
            )
    return found


@settings(deadline=None)
@given(WILD, st.integers(1, 12))
@example(b'a,"\n""\n",a\n', 3)
def test_block_boundaries_do_not_matter(content: bytes, block_bytes: int) -> None:
    assert cut(content, block_bytes) == cut(content)


@settings(deadline=None)
@given(WILD, st.integers(1, 12), st.integers(1, 10))
@example(b"aa\na\r\n", 1, 1)
@example(b'"a\na"\r\na\n', 1, 5)
def test_block_boundaries_do_not_matter_with_a_limit_of_record_size(
    content: bytes, block_bytes: int, most: int
) -> None:
    assert cut(content, block_bytes, most) == cut(content, 1 << 20, most)


@settings(deadline=None)
@given(WILD)
def test_the_fast_path_through_quotes_agrees_with_the_slow_one(content: bytes) -> None:
    short = cut(content)
    with mock.patch.object(records, "_find_regular_quotes", return_value=None):
        assert cut(content) == short


@settings(deadline=None)
@given(st.lists(st.lists(st.text('",\n a', max_size=4), min_size=2, max_size=3), max_size=5), st.integers(1, 9))
def test_csv_written_by_programs_is_split_at_its_records(rows: list[list[str]], block_bytes: int) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    found = cut(text.getvalue().encode(), block_bytes)
    assert [one[3] for one in found] == [len(row) for row in rows]
    assert [one[2] for one in found] == [None] * len(rows)


def test_a_stray_quote_inside_a_field_is_a_character() -> None:
    assert cut(b'5" pipe,1\n6,2\n') == [(b'5" pipe,1', 1, None, 2), (b"6,2", 2, None, 2)]


def test_an_unclosed_quote_affects_its_own_line_only() -> None:
    found = cut(b'1,"a\n2,b\n3,c\n')
    assert found == [
        (b'1,"a', 1, "a quote is not closed", None),
        (b"2,b", 2, None, 2),
        (b"3,c", 3, None, 2),
    ]


def test_text_after_a_closing_quote_is_bad_and_the_next_record_is_not() -> None:
    found = cut(b'"a"x,1\n"b\n",2\n')
    assert found[0][2] == "text between a closing quote and the next delimiter"
    assert found[1] == (b'"b\n",2', 2, None, 2)


def test_a_line_that_is_too_long_is_bad_and_is_not_kept_in_memory() -> None:
    """Without the limit the whole line would be in memory: the reader would ask for ever larger blocks."""
    content = b"1,a\n" + b"x" * 5_000 + b"\n2,b\n"
    largest = 0

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal largest
            largest = max(largest, size or 0)
            return super().read(size)

    layout = RecordLayout("", 64, 200)
    found = list(read_blocks(Watched(content), layout, first=0, last=len(content), line=1))
    assert [line for block in found for line in block.lines.tolist()] == [1, 2, 3]
    assert [why for block in found for why in block.reasons.values()] == ["the record is longer than 200 bytes"]
    assert largest <= 400


def test_line_ends_blank_lines_and_the_byte_order_mark_are_no_part_of_records() -> None:
    assert cut(b"\xef\xbb\xbfa,b\r\n\r\n\n1,2") == [(b"a,b", 1, None, 2), (b"1,2", 4, None, 2)]
    assert cut(b"a,b\rc\n")[0][2] == "a carriage return that does not end a line"
