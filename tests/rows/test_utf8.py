"""V7: texts that are not valid UTF-8, as Arrow holds them, in Python and in statistics."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.pipeline.state.table_input import write_json_texts
from evertide.rows.changes import DIFF, consolidate_delta
from evertide.rows.python_rows import to_python_rows
from evertide.rows.utf8 import convert_texts_to_bytes, is_valid_utf8, replace_invalid_utf8
from evertide.shard.parts.statistics import Range, compute_range

BAD = b"\xff\xfe\x80abc"
SHOWN = "\ufffd\ufffd\ufffdabc"


def texts(*values: bytes | None) -> Any:
    return pa.array(values, pa.binary()).view(pa.string())


def nested() -> pa.Table:
    lists = pa.ListArray.from_arrays(pa.array([0, None, 2, 3], pa.int32()), texts(BAD, b"x", None))
    points = pa.StructArray.from_arrays([texts(b"a", BAD, None)], ["x"], mask=pa.array([False, False, True]))
    maps = pa.MapArray.from_arrays([0, 1, 1, 3], texts(BAD, b"k", b"l"), texts(b"\x80", None, b"v"))
    return pa.table({"s": texts(BAD, None, b"ok"), "l": lists, "p": points, "m": maps})


def test_each_invalid_sequence_is_replaced_at_any_depth() -> None:
    rows = nested()
    found = replace_invalid_utf8(rows)
    assert found.schema == rows.schema
    assert is_valid_utf8(found)
    assert not is_valid_utf8(rows)
    assert found.to_pylist() == to_python_rows(rows)
    assert to_python_rows(rows.slice(0, 1)) == [
        {"s": SHOWN, "l": [SHOWN, "x"], "p": {"x": "a"}, "m": [(SHOWN, "\ufffd")]}
    ]
    assert to_python_rows(rows.slice(1, 1)) == [{"s": None, "l": None, "p": {"x": SHOWN}, "m": []}]
    assert convert_texts_to_bytes(rows).column("s").to_pylist() == [BAD, None, b"ok"]


def test_valid_rows_are_not_copied() -> None:
    rows = pa.table({"s": ["a", "é", None], "n": [1, 2, 3]})
    assert replace_invalid_utf8(rows) is rows


def test_a_map_whose_keys_become_equal_is_a_list_of_pairs() -> None:
    """As a dict it would lose an entry."""
    maps = pa.MapArray.from_arrays([0, 2, 3], texts(b"\xff", b"\xfe", b"k"), pa.array([1, 2, 3]))
    found = [row["m"] for row in to_python_rows(pa.table({"m": maps}), has_text_maps=True)]
    assert found == [[("\ufffd", 1), ("\ufffd", 2)], {"k": 3}]


def test_other_columns_stay_python_values() -> None:
    rows = pa.table({"s": texts(BAD), "day": pa.array([date(2024, 2, 29)])})
    assert to_python_rows(rows) == [{"s": SHOWN, "day": date(2024, 2, 29)}]


def test_errors_and_dead_letters_quote_such_rows() -> None:
    rows = pa.table({"s": texts(BAD, BAD), DIFF: pa.array([2**62, 2**62])})
    with pytest.raises(InvalidInput, match=SHOWN):
        consolidate_delta(rows)
    assert write_json_texts(rows.select(["s"])) == [f'{{"s": "{SHOWN}"}}'] * 2


@pytest.mark.parametrize("other", [b"a", b"\xff", b"\xc3\xa9"])
def test_the_range_of_a_part_is_unknown(other: bytes) -> None:
    """Fails with a UnicodeDecodeError, or with a bound that excludes the replaced text."""
    assert compute_range(texts(b"0", b"z\x80", b"z\xc3\xa9", other, None)) == Range(None, None, 1)
    assert compute_range(texts(b"a", b"b")) == Range("a", "b", 0)
