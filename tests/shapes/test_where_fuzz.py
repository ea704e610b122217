"""Any text is either a clause that every row can be tested against, or refused as invalid input."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.errors import InvalidInput
from evertide.pgexpr.clause import Where, parse_where
from tests.shapes.clauses import CLAUSES, ROWS, SCHEMA

MANY = settings(max_examples=300, deadline=None, derandomize=True)
PIECES = (
    "and or not is null true false unknown distinct from in between symmetric like ilike escape any all some array "
    "cast as case when end select exists collate at time zone interval date timestamp timestamptz uuid int4 numeric "
    "text now current_date lower upper coalesce greatest least array_cat array_append array_ndims timezone "
    "justify_days = <> != < > <= >= + - * / ^ |/ @ & | # ~ || ~~ ~~* !~~ !~~* @> <@ && -> % ; :: ( ) [ ] , . {} $1 $2 "
    'id y s i l n w r f b t "Name" name d ts tz tm iv x ia la ta na fa da mm "" "a $3 $ '
    "0 1 -1 2147483648 99999999999999999999 1.5 1e400 .5 1. 0x1F 'abc' '1' '{1,2}' '{' '2024-02-29' '1_day' 'P1D' '' "
    "'\\x00' 'NaN' 'UTC' 'Europe/Berlin' '%' '\\' 'it''s' ' E'x' $$ -- /* é 😀 \u200b \ufeff"
)
WORDS = PIECES.split(" ")
TOKENS = st.sampled_from(WORDS)


def try_clause(text: str, params: dict[str, str]) -> Where | None:
    try:
        found = parse_where(text, params, SCHEMA)
    except InvalidInput:
        return None
    matching = found.matches(ROWS)
    assert matching.null_count == 0
    assert len(matching) == ROWS.num_rows
    return found


@MANY
@given(st.lists(TOKENS, max_size=14).map(" ".join), st.lists(TOKENS | st.text(max_size=5), max_size=3))
def test_words_in_any_order(text: str, params: list[str]) -> None:
    try_clause(text, {str(number): value for number, value in enumerate(params, 1)})


@MANY
@given(CLAUSES, st.data())
def test_mutated_clauses(clause: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(clause)))
    end = data.draw(st.integers(at, min(at + 6, len(clause))))
    try_clause(clause[:at] + data.draw(TOKENS | st.text(max_size=2) | st.just("")) + clause[end:], {})


@MANY
@given(
    st.text(st.characters(codec=None), max_size=40),
    st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=3),
)
def test_any_text(text: str, params: dict[str, str]) -> None:
    try_clause(text, params)


@MANY
@given(st.text(max_size=12), st.sampled_from([name for name in SCHEMA.names if name != "Name"]))
def test_any_literal_for_any_column(text: str, column: str) -> None:
    try_clause(f"{column} = $1 OR {column} > $1", {"1": text})


LITERALS = st.text(st.sampled_from('0123456789-+:.TZ {}",\\PYMDHSeENaAInfity days'), max_size=24)


@MANY
@given(LITERALS, st.sampled_from([name for name in SCHEMA.names if name != "Name"]))
def test_texts_similar_to_literals(text: str, column: str) -> None:
    try_clause(f"{column} <= $1", {"1": text})


@pytest.mark.parametrize(
    "piece", ["(", "NOT ", "-", "- ", "@ ", "[", "ARRAY[", "1+", "'a'||", "id=1 OR ", "{", "lower(", "$1", "::int4"]
)
def test_long_repetitions(piece: str) -> None:
    for count in (100, 1_000, 50_000 // len(piece), 100_000):
        try_clause(piece * count, {"1": "x"})
        try_clause("id = ANY ($1) OR id = 1", {"1": piece * min(count, 1_000)})
        try_clause("t = ANY ($1)", {"1": "{" * count})
