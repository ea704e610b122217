"""Where clauses: valid ones, refusals and their reasons, equal clauses, and index keys."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.pgexpr.clause import PARAMS_MAX, Where, parse_where
from evertide.pgexpr.syntax import DEPTH_MAX
from evertide.pgexpr.tokens import TEXT_MAX

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("i", pa.int32()),
        ("n", pa.decimal128(10, 2)),
        ("f", pa.float64()),
        ("t", pa.string()),
        ("userId", pa.string()),
        ("order", pa.int32()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("ia", pa.list_(pa.int32())),
        ("js", pa.struct([("a", pa.int32())])),
    ]
)


def where(text: str, *params: str) -> Where:
    return parse_where(text, {str(number): value for number, value in enumerate(params, 1)}, SCHEMA)


def rows(**columns: list[Any]) -> pa.Table:
    count = len(next(iter(columns.values())))
    return pa.table({field.name: pa.array(columns.get(field.name, [None] * count), field.type) for field in SCHEMA})


REFUSED = [
    ("", 1, "the clause is empty"),
    ("   ", 1, "the clause is empty"),
    ("nope = 1", 1, "'nope': the column does not exist; the columns are id, i,"),
    ('"ID" = 1', 1, "'\"ID\"': the column does not exist"),
    ("tbl.id = 1", 4, "'.': write columns without their table"),
    ("ia[1] = 1", 3, "'[': write columns without their table; parts of values"),
    ("id", 1, "'id': expected a condition, not a value of type int8"),
    ("id = 1 AND i", 12, "'i': expected a condition, not a value of type int4"),
    ("id =", 5, "the end: expected a value here"),
    ("id = 1 id = 2", 8, "'id': unexpected text after the clause"),
    ("(id = 1", 8, "the end: expected ')'"),
    ("id = 1)", 7, "')': unexpected text after the clause"),
    ("id = 'x'", 4, "'=': 'x' is not a valid int8"),
    ("id = '99999999999999999999'", 4, "out of range"),
    ("id = t", 4, "'=': not supported for int8 and text; a cast may help"),
    ("t = 5", 3, "'=': not supported for text and int4"),
    ("b = 1", 3, "not supported for bool and int4"),
    ("t + 1 = 2", 3, "'+': not supported for text and int4"),
    ("js = '{}'", 4, "values of type jsonb cannot be written here"),
    ("js IS NOT DISTINCT FROM js", 4, "not supported for jsonb and jsonb"),
    ("coalesce(js, js) IS NULL", 1, "columns of type jsonb can only be tested for NULL"),
    ("js::text = ''", 3, "cannot cast jsonb to text"),
    ("ia = '{1'", 4, "is not a valid array"),
    ("ia = '{{1},{2,3}}'", 4, "the inner arrays have different sizes"),
    ("ia @> 1", 4, "'@>': not supported for int4[] and int4"),
    ("i = ANY (id)", 3, "ANY and ALL need an array, not int8"),
    ("t = ANY (ia)", 3, "not supported for text and int4"),
    ("id IN ()", 8, "')': expected a value here"),
    ("id IN (1, 'x')", 4, "'IN': 'x' is not a valid int8"),
    ("id IN 1", 7, "'1': expected '(', as IN is followed by a list"),
    ("id IN (SELECT 1)", 8, "'SELECT': sub-selects are not supported"),
    ("EXISTS (SELECT 1)", 1, "'EXISTS': sub-selects are not supported"),
    ("id = (SELECT 1)", 7, "'SELECT': sub-selects are not supported"),
    ("id = ANY (SELECT 1)", 11, "'SELECT': sub-selects are not supported"),
    ("(id, i) = (1, 2)", 4, "',': rows of several values are not supported"),
    ("CASE WHEN b THEN true END", 1, "'CASE': CASE is not supported"),
    ("t COLLATE \"C\" = 'x'", 3, "'COLLATE': unexpected text after the clause"),
    ("t SIMILAR TO 'x'", 3, "'SIMILAR': unexpected text after the clause"),
    ("t NOT SIMILAR TO 'x'", 7, "'SIMILAR': not supported"),
    ("at > now()", 6, "'now': a clause must depend on a single row alone"),
    ("at > current_timestamp", 6, "'current_timestamp': its value changes with time"),
    ("count(id) > 1", 1, "'count': a clause must depend on a single row alone"),
    ("length(t) = 1", 1, "'length': this function is not supported; supported are array_append,"),
    ("pg_sleep(10) IS NULL", 1, "'pg_sleep': this function is not supported"),
    ("lower() = ''", 1, "'lower': the function takes 1 arguments, not 0"),
    ("lower(i) = ''", 1, "'lower': expected text, not int4"),
    ("coalesce(i, t) IS NULL", 1, "'coalesce': int4, text have no common type"),
    ("array_ndims(i) = 1", 1, "the function takes an array, not int4"),
    ("array_append(i, ia) IS NULL", 1, "not supported for int4 and int4[]"),
    ("t ~ 'x'", 3, "'~': this operator is not supported"),
    ("js -> 'a' IS NULL", 4, "'->': this operator is not supported"),
    ("i % 2 = 0", 3, "'%': this operator is not supported"),
    ("@-1 = i", 1, "'@-': expected a value here"),
    ("~f = 1", 1, "'~': the operator ~ does not exist for float8"),
    ("-t = 1", 1, "'-': the operator - does not exist for text"),
    ("n ^ 2 = 1", 3, "'^': powers of numeric are not supported; cast to float8"),
    ("d * 2 = d", 3, "'*': not supported for date and int4"),
    ("id = 1 = b", 8, "'=': use parentheses between two operators of this kind"),
    ("t LIKE 'a' LIKE 'b'", 12, "'LIKE': use parentheses between two operators of this kind"),
    ("b = NOT b", 5, "'NOT': expected a value here"),
    ("b IS 5", 6, "'5': IS is followed by NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM"),
    ("i IS TRUE", 1, "'i': expected a condition"),
    ("i BETWEEN 1 OR 2", 13, "'OR': expected 'and', between the ends of BETWEEN"),
    ("t LIKE 'a\\'", 3, "'LIKE': a LIKE pattern must not end with its escape"),
    ("t LIKE 'a' ESCAPE 'xy'", 3, "the escape of LIKE must be one character or empty"),
    ("t LIKE t ESCAPE 'x'", 3, "ESCAPE needs a constant pattern"),
    ("i = 1 / 0", 7, "'/': division by zero"),
    ("i = 2147483647 + 1", 16, "'+': integer out of range"),
    ("f = |/ -1", 5, "'|/': cannot take square root of a negative number"),
    ("i::json IS NULL", 4, "'json': this type is not supported"),
    ("t::varchar(5) = ''", 4, "only numeric can have a size"),
    ("t::date = '2026-01-31'", 2, "cannot cast text to date"),
    ("b::float8 = 1", 2, "cannot cast bool to float8"),
    ("t = 'x'::uuid", 8, "'x' is not a valid uuid"),
    ("d = 'today'", 3, "'today' is not a valid date: expected a form such as '2026-01-31'"),
    ("d = '2026-02-30'", 3, "the day does not exist"),
    ("at = 'infinity'", 4, "'infinity' is not a valid timestamptz"),
    ("at > '2026-01-31 25:00'", 4, "the time of day does not exist"),
    ("at + interval '1 blue moon' IS NULL", 6, "the unit 'blue' does not exist"),
    ("at AT TIME ZONE 'CET' IS NULL", 4, "'CET' is not a time zone; expected a name such as 'Europe/Berlin' or 'UTC'"),
    ("at AT TIME ZONE '../../etc/passwd' IS NULL", 4, "is not a time zone"),
    ("id = 1 -- all", 8, "'--': comments are not supported"),
    ("id = 1 /* all */", 8, "'/*': comments are not supported"),
    ("id = 1; DROP TABLE x", 7, "';' is not valid here"),
    ("t = 'abc", 5, '"\'" is not valid here (the quote is not closed)'),
    ('"t = 1', 1, "'\"' is not valid here (the quote is not closed)"),
    ("t = E'a\\n'", 5, "only plain texts in single quotes are supported"),
    ("t = $$a$$", 5, "only plain texts in single quotes are supported"),
    ("t = 'a\0b'", 7, "a text cannot contain"),
    ("t = '\ud800'", 6, "a text cannot contain"),
    ("id = 12abc", 8, "'a' follows a number without a space"),
    ("n = 1e9999", 5, "a number has at most 1000 digits"),
    ("id = " + "9" * 1001, 6, "a number has at most 1000 digits"),
    ("order = 1 AND and", 15, "'and': expected a value here; write a column of that name in double quotes"),
    ("id = $1", 6, "'$1': the parameter has no value"),
    ("id = $0", 6, "'$0': the parameter has no value"),
]


@pytest.mark.parametrize(("text", "place", "why"), REFUSED, ids=[ascii(case[0][:40]) for case in REFUSED])
def test_a_refusal_names_the_place_and_the_reason(text: str, place: int, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        where(text)
    assert refused.value.why.startswith(f"character {place}: ")
    assert why in refused.value.why
    assert "Nothing was changed" in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"1": "5", "2": "6"}, "the where clause does not use params[2]"),
        ({"0": "5"}, "parameters must be numbered from 1 without gaps"),
        ({"2": "5"}, "parameters must be numbered from 1 without gaps"),
        ({"01": "5"}, "parameters must be numbered from 1 without gaps"),
        ({"one": "5"}, "parameters must be numbered from 1 without gaps, not 'one'"),
        ({"1": "a\0"}, "contains a character that a text cannot have"),
        ({"1": "\udfff"}, "contains a character that a text cannot have"),
        ({"1": "1" * (PARAMS_MAX + 1)}, "all parameters together may have at most"),
        ({"1": "five"}, "'five' is not a valid int8"),
    ],
)
def test_parameters_must_be_numbered_present_and_used(params: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_where("id = $1", params, SCHEMA)
    assert why in refused.value.why


def test_clauses_that_are_too_long_or_too_deep_are_refused() -> None:
    long = "id IN (" + ", ".join(map(str, range(8_000))) + ")"
    assert where(long).matches(rows(id=[7_999, 8_000])).to_pylist() == [True, False]
    either = where(" OR ".join(f"id = {number}" for number in range(3_000)))
    assert either.matches(rows(id=[-1, 2_999])).to_pylist() == [False, True]
    with pytest.raises(InvalidInput, match=f"the clause has {TEXT_MAX + 1} characters"):
        where(" " * (TEXT_MAX - 5) + "id = 1")
    for deep in ("(" * 40 + "id = 1" + ")" * 40, "NOT " * 40 + "b", "i" + " + 1" * 40 + " = 1"):
        where(deep)
    for deeper in (
        *("(" * 40_000 + "id = 1", "NOT " * 10_000 + "b", "i" + " + 1" * 10_000 + " = 1", "i" + "::int4" * 5_000),
        *("- " * 20_000 + "1 = i", "ARRAY" + "[" * 20_000, "lower(" * 5_000 + "t", "b" + " IS NULL" * 5_000),
        *("t || (" * 5_000, "CAST(" * 5_000),
    ):
        with pytest.raises(InvalidInput, match=f"nested more than {DEPTH_MAX} deep"):
            where(deeper)


@pytest.mark.parametrize(
    ("clause", "is_fit"),
    [
        ("b" + " IS TRUE" * 40, True),
        ("(" * 15 + "b" + " BETWEEN b AND b)" * 15, True),
        ("(" * 40 + "b" + " BETWEEN b AND b)" * 40, False),
        ("(" * 40 + "b" + " BETWEEN SYMMETRIC b AND b)" * 40, False),
        ("(" * 40 + "b" + " IN (b, b IS NULL, b IS TRUE))" * 40, False),
        ("(" * 40 + "b" + " IS DISTINCT FROM b)" * 40, True),
    ],
)
def test_nested_repeated_values_are_refused(clause: str, is_fit: bool) -> None:
    """A clause that nests repeated values is refused before it takes memory."""
    if is_fit:
        assert len(where(clause).matches(rows(b=[True, None]))) == 2
    else:
        with pytest.raises(InvalidInput, match="the clause with its parameters has more than"):
            where(clause)


def test_a_long_parameter_cannot_be_repeated_without_limit() -> None:
    assert where("t = ANY ($1)", "{" + "x," * 200_000 + "y}").matches(rows(t=["y", "z"])).to_pylist() == [True, False]
    with pytest.raises(InvalidInput, match="counted once per use"):
        where(" OR ".join(["t < $1"] * 1_000), "x" * 1_000)


SAME = [
    (
        "id = 5",
        "ID=5",
        "5 = id",
        "id = '5'",
        "id = 5::int4",
        "(id) = (5)",
        "id IN (5)",
        "id = ANY ('{5}')",
        "id IN (5, 5)",
    ),
    (
        "id IN (1, 2)",
        "id = ANY ('{2,1}')",
        "id in ('1', 2, 1)",
        "id = ANY (ARRAY[1, 2])",
        "id = SOME ('{1,2}'::int8[])",
    ),
    ("id = 1 AND b", "b AND id = 1", "(b) and (1 = id) and b", "NOT NOT b AND id = 1"),
    ("b OR i = 1 OR id = 2", "id = 2 OR (i = 1 OR b)"),
    ("t <> 'x'", "t != 'x'", "'x' <> t", "t <> 'x'::text", "t <> CAST('x' AS text)", "t <> 'x'::varchar"),
    ("i < 3", "3 > i", "i < 1 + 2"),
    ("n = 1.5", "n = 1.500", "n = '1.5'", "1.50 = n"),
    ("b IS NOT TRUE", "NOT (b IS TRUE)"),
    ("t NOT LIKE 'a%'", "NOT t ~~ 'a%'", "t !~~ 'a%'", "NOT like(t, 'a%')"),
    ("i NOT IN (1, 2)", "i <> ALL ('{1,2}')", "NOT i IN (2, 1)"),
    ("id BETWEEN 1 AND 2", "id >= 1 AND id <= 2"),
    ("userid = 'a'", "\"userId\" = 'a'", "USERID = 'a'"),
    ("i = id", "id = i"),
    ("at > '2026-01-31T10:00:00Z'", "at > '2026-01-31 12:00+02'", "at > TIMESTAMPTZ '2026-01-31 10:00'"),
    ("t = '6F9619FF-8B86-D011-B42D-00C04FC964FF'::uuid", "t = uuid '{6f9619ff8b86d011b42d00c04fc964ff}'"),
]


@pytest.mark.parametrize("clauses", SAME, ids=lambda clauses: str(clauses[0]))
def test_clauses_with_the_same_meaning_are_equal(clauses: tuple[str, ...]) -> None:
    made = {where(clause) for clause in clauses}
    assert len(made) == 1
    assert {parse_where(each.canonical, {}, SCHEMA) for each in made} == made


def test_a_clause_with_parameters_equals_one_with_literals() -> None:
    assert where("id = $1 AND t = $2", "5", "it's") == where("id = 5 AND t = 'it''s'")
    assert where("id = ANY ($1)", "{5,6}") == where("id IN (5, 6)")
    assert where("id = ANY ($1::int8[])", "{5,6}") == where("id IN (5, 6)")
    assert where("t = $1 OR t = $1", "x") == where("t = 'x'")
    assert where("t = $1", "1 OR true").matches(rows(t=["1 OR true", "1"])).to_pylist() == [True, False]
    assert where("t = $1", "x' OR 'a' = 'a").matches(rows(t=["a"])).to_pylist() == [False]


def test_clauses_with_other_meanings_are_not_equal() -> None:
    different = [
        "id = 5",
        "id = 6",
        "i = 5",
        "t = '5'",
        "id <> 5",
        "id IN (5, 6)",
        "id IS NULL",
        "t ILIKE '5'",
        "t LIKE '5'",
    ]
    assert len({where(clause) for clause in different}) == len(different)
    narrow = pa.schema([("id", pa.int32()), ("i", pa.int32())])
    assert parse_where("id + i > 1", {}, narrow) != where("id + i > 1")
    assert parse_where("id IS NULL", {}, narrow) != where("id IS NULL")


def test_columns_of_a_clause_are_those_that_it_needs() -> None:
    assert where("id = 1 AND (t = 'x' OR userId IS NULL)").columns == {"id", "t", "userId"}
    assert where("true").columns == frozenset()


def test_a_column_may_have_the_name_of_a_type() -> None:
    schema = pa.schema(
        [("date", pa.date32()), ("time", pa.int32()), ("timestamp", pa.timestamp("us")), ("text", pa.string())]
    )
    found = parse_where("date = date '2026-01-31' AND time = 1 AND timestamp > '2026-01-01' AND text = 'a'", {}, schema)
    assert found.columns == {"date", "time", "timestamp", "text"}


def test_no_row_makes_a_clause_fail() -> None:
    """Where PostgreSQL fails, the operation is NULL, and the row matches only if the value does not matter."""
    some = rows(i=[0, 2, -(2**31)], t=["x", "7", None], f=[-1.0, 1e308, 0.0])
    assert where("10 / i = 5").matches(some).to_pylist() == [False, True, False]
    assert where("NOT (10 / i = 5)").matches(some).to_pylist() == [False, False, True]
    assert where("10 / i = 5 OR f = -1").matches(some).to_pylist() == [True, True, False]
    assert where("(10 / i) IS NULL").matches(some).to_pylist() == [True, False, False]
    assert where("-i > 0").matches(some).to_pylist() == [False, False, False]
    assert where("i - 1 < 0").matches(some).to_pylist() == [True, False, False]
    assert where("t::int4 = 7").matches(some).to_pylist() == [False, True, False]
    assert where("f * 10 > 0").matches(some).to_pylist() == [False, False, False]
    assert where("|/ f >= 0").matches(some).to_pylist() == [False, True, True]


def test_constant_clauses_and_empty_tables() -> None:
    empty = SCHEMA.empty_table()
    for clause in ("true", "NULL", "id = 1", "i + 1 > 2 AND t LIKE 'a%'", "ia @> '{1}'", "n > 1 OR f IN (1, 2)", "b"):
        found = where(clause).matches(empty)
        assert found.type == pa.bool_()
        assert len(found) == 0
    assert where("NULL").matches(rows(id=[1])).to_pylist() == [False]
    assert where("true").matches(rows(id=[1, 2])).to_pylist() == [True, True]


def test_rows_in_several_chunks() -> None:
    whole = rows(id=[1, 2, 3], t=["a", None, "c"], i=[None, 1, 2], ia=[[1], None, [2]])
    chunks = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    for clause in (
        "id > 1",
        "t IS NULL",
        "i + 1 = 2",
        "coalesce(t, 'x') = 'x'",
        "2 = ANY (ia)",
        "i IS DISTINCT FROM 1",
    ):
        assert where(clause).matches(chunks).to_pylist() == where(clause).matches(whole).to_pylist()


def test_a_pattern_does_not_backtrack_exponentially() -> None:
    """No exponential backtracking."""
    text = "a" * 5_000
    found = where("t LIKE $1", "%a" * 200 + "%b%")
    assert found.matches(rows(t=[text, text + "b"])).to_pylist() == [False, True]


KEYS: list[tuple[str, tuple[str, set[Any]] | None, str | None]] = [
    ("id = 5", ("id", {5}), None),
    ("5 = id", ("id", {5}), None),
    ("id IN (5, 6, NULL)", ("id", {5, 6}), None),
    ("id = ANY ('{5,6}')", ("id", {5, 6}), None),
    ("i = 5000000000", ("i", {5000000000}), None),
    ("t = 'x'", ("t", {"x"}), None),
    ("d = '1970-01-02'", ("d", {1}), None),
    ("b = true", ("b", {True}), None),
    ("id = 5 AND t LIKE 'a%'", ("id", {5}), "t LIKE 'a%'"),
    ("id = 5 AND t LIKE 'a%' AND b", ("id", {5}), "t LIKE 'a%' AND b"),
    ("id IN (5, 6) AND t = 'x'", ("t", {"x"}), "id IN (5, 6)"),
    ("id = 5 OR id = 6", ("id", {5, 6}), None),
    ("id = 5 OR id IN (6, 7)", ("id", {5, 6, 7}), None),
    ("(id = 5 AND b) OR (id = 6 AND NOT b)", ("id", {5, 6}), "(id = 5 AND b) OR (id = 6 AND NOT b)"),
    ("(id = 5 OR id = 6) AND b", ("id", {5, 6}), "b"),
    ("id = 5 AND id = 6", ("id", {5}), "id = 6"),
    ("id = 5 OR t = 'x'", None, "id = 5 OR t = 'x'"),
    ("id = 5 OR b", None, "id = 5 OR b"),
    ("NOT id = 5", None, "NOT id = 5"),
    ("id <> 5", None, "id <> 5"),
    ("id NOT IN (5, 6)", None, "id NOT IN (5, 6)"),
    ("(id = 5) IS NOT FALSE", None, "(id = 5) IS NOT FALSE"),
    ("f = 5", None, "f = 5"),
    ("id + 1 = 5", None, "id + 1 = 5"),
    ("id = i", None, "id = i"),
    ("id > 5", None, "id > 5"),
    ("5 = ANY (ia)", None, "5 = ANY (ia)"),
    ("true", None, "true"),
]


@pytest.mark.parametrize(("clause", "key", "rest"), KEYS, ids=[case[0] for case in KEYS])
def test_index_keys(clause: str, key: tuple[str, set[Any]] | None, rest: str | None) -> None:
    found = where(clause)
    assert found.index_key() == (key and (key[0], frozenset(key[1])))
    assert found.rest == (None if rest is None else where(rest))
