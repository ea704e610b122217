"""The memory, time and storage that requests cost a server are bounded, whatever they contain."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from evertide.errors import EvertideError, InvalidInput
from evertide.pgexpr import clause, expressions
from evertide.pgexpr.clause import Where, parse_where
from evertide.pgexpr.operators import patterns
from evertide.runtime import SystemRuntime
from evertide.shapes.http.exchange import Admission
from evertide.shapes.http.subset import _parse_order, _sort_indices
from evertide.shapes.log import registry
from evertide.shapes.log.follower import LimitEnforcer, enforce_limits
from evertide.shapes.log.live_shape import LiveShape
from evertide.shapes.log.registry import Shapes
from evertide.shapes.log.shape_definition import ShapeDefinition
from evertide.shapes.log.snapshot import Snapshots
from evertide.shapes.protocol.requests import Identifier, Refusal, parse_identifiers, parse_request
from tests.servers.postgres import PostgresServer
from tests.shapes.kit import OPTIONS, Follower, order, shop

N = pa.field("n", pa.decimal128(10, 2))
SCHEMA = pa.schema([("id", pa.int64()), ("t", pa.string()), ("f", pa.float64()), ("a", pa.list_(pa.int64())), N])


def where(text: str, *params: str) -> Where:
    return parse_where(text, {str(number): value for number, value in enumerate(params, 1)}, SCHEMA)


# Requests


def test_a_handle_with_thousands_of_digits_is_unknown() -> None:
    """Python refuses to parse such numbers, which must not become an error 500."""
    with shop() as s:
        s.push(rows=[order(1)])
        handle = s.get().handle
        definition, number = handle.split("-")
        for strange in (f"{definition}-{'9' * 5000}", f"{definition}-0{number}", f"{definition}-"):
            asked = s.get(offset="0_0", handle=strange)
            assert (asked.status, asked.handle) == (409, handle)
            assert s.ask("DELETE", handle=strange).status == 404
        assert s.get(offset="0_0", handle=handle).status == 200


@pytest.mark.timeout(60)
def test_long_names_take_time_in_proportion() -> None:
    """Fails, by its time limit, if names are built character by character: that takes minutes."""
    long = "a" * 4_000_000
    assert parse_identifiers(f'"{long}",b') == [Identifier(long, is_quoted=True), Identifier("b")]
    assert parse_identifiers('"a,b","c""d",e') == [Identifier("a,b", True), Identifier('c"d', True), Identifier("e")]


def test_repeated_columns_of_an_order_are_ignored() -> None:
    assert _parse_order(["id", "t"], ",".join(["id desc", "ID", '"id" asc'] * 1000)) == [("id", True, True)]
    with pytest.raises(Refusal) as refused:
        _parse_order(["id"], "x" * 100_000)
    assert len(str(refused.value.body)) < 300


def test_an_admitted_stream_is_not_refused_after_its_headers() -> None:
    """Its headers are sent by then, so a refusal would break the connection."""

    async def blocks() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    async def streamed() -> None:
        admission = Admission(replace(OPTIONS, clients_max=1), SystemRuntime())
        with admission.admit(is_new_client=False):
            got = [(block, admission.clients) async for block in admission.count_stream(blocks())]
            assert got == [(number, 2) for number in range(3)]
            with pytest.raises(Refusal), admission.admit(is_new_client=False):
                pass
        assert admission.clients == 0

    asyncio.run(streamed())


def test_an_offset_beyond_the_log_does_not_cause_repeated_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[LiveShape] = []
    real = Shapes.catch_up

    def catch_up(shapes: Shapes, shape: LiveShape) -> None:
        looks.append(shape)
        real(shapes, shape)

    with shop(options=replace(OPTIONS, long_poll_s=1.2), follow=False) as s:
        s.push(rows=[order(1)])
        handle = s.get().handle
        monkeypatch.setattr(Shapes, "catch_up", catch_up)
        answer = s.get(offset="999_0", handle=handle)
        assert (answer.status, answer.body["errors"]) == (400, {"offset": ["out of bounds for this shape"]})
        assert 2 <= len(looks) <= 6


# Where clauses


@pytest.mark.parametrize(
    ("text", "params"),
    [
        (" || ".join(["t"] * 2), ()),
        ("(" + " || ".join(["t"] * 40) + ") || (" + " || ".join(["t"] * 40) + ")", ()),
        ("t || $1", ("x" * 9000,)),
    ],
)
def test_concatenated_texts_match(text: str, params: tuple[str, ...]) -> None:
    rows = pa.table({"t": ["ab", None]}, pa.schema([("t", pa.string())]))
    made = "ab" * text.count("t") + "".join(params)
    assert where(f"{text} = '{made}'", *params).matches(rows).to_pylist() == [True, False]


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("(" + ") || (".join([" || ".join(["t"] * 40)] * 3) + ") = 'x'", ()),
        ("t || $1 = 'x'", ("x" * 10_000,)),
        ("lower(t || $1) || upper(t || $1) = 'x'", ("x" * 6000,)),
        (f"a @> ARRAY[{', '.join(['id'] * 101)}]", ()),
        ("a || $1 @> '{1}'", ("{" + ",".join(["100"] * 3000) + "}",)),
        (" * ".join(["(" + " * ".join(["n"] * 40) + ")"] * 3) + " > 1", ()),
        (" / ".join(["(" + " * ".join(["n"] * 40) + ")"] * 3) + " > 1", ()),
    ],
)
def test_a_short_clause_does_not_produce_gigabytes(text: str, params: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="a value of more than 10000 characters"):
        where(text, *params)


def test_long_texts_without_concatenation_are_accepted() -> None:
    many = "{" + ",".join(map(str, range(20_000))) + "}"
    rows = pa.table({"id": [5, -1], "t": ["x", None]}, pa.schema([("id", pa.int64()), ("t", pa.string())]))
    assert where("id = ANY ($1)", many).matches(rows).to_pylist() == [True, False]
    assert where(" + ".join(["id * 1.5"] * 40) + " > 299").matches(rows).to_pylist() == [True, False]
    assert where("coalesce(t, $1) = $1", "y" * 20_000).matches(rows).to_pylist() == [False, True]


def test_clauses_are_evaluated_in_batches_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table(
        {"id": range(10_000), "t": ["x" * (n % 7) for n in range(10_000)], "f": [0.5] * 10_000},
        pa.schema([*SCHEMA][:3]),
    )
    found = where("t || t = 'xxxx' OR id * 2 = 8 OR (f > 1) IS NULL")
    constant, whole = where("1 = 1"), found.matches(table)
    counts: list[int] = []
    real = expressions.evaluate

    def evaluate(expression: Any, rows: pa.Table) -> Any:
        counts.append(rows.num_rows)
        return real(expression, rows)

    monkeypatch.setattr(clause, "evaluate", evaluate)
    assert (found.matches(table), counts) == (whole, [10_000])
    monkeypatch.setattr(clause, "_MEMORY_BYTES", 100_000)
    counts.clear()
    assert found.matches(table) == whole
    assert sum(counts) == 10_000
    assert max(counts) < 1000
    assert constant.matches(table).true_count == 10_000


def test_only_a_few_long_patterns_are_cached() -> None:
    for number in range(20):
        text = f"{number}" + "ab" * 1000
        like = where("t LIKE $1", f"{number}%" + "a_" * 1000)
        rows = pa.table({"t": [text, text[:-1]]}, pa.schema([("t", pa.string())]))
        assert like.matches(rows).to_pylist() == [True, False]
    assert patterns._long.cache_info().currsize <= 8


def test_an_invalid_number_is_reported() -> None:
    with pytest.raises(InvalidInput, match="an exponent of at most four"):
        where("f > 1e99999")


# Caches and stored definitions


def test_parsed_requests_are_cached_up_to_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_DEFINITIONS_CHARS", 200)
    with shop(follow=False) as s:
        s.push(rows=[order(1)])
        shapes = s.service.shapes
        made: list[ShapeDefinition] = []
        for number in range(20):
            query = {"table": "orders", "offset": "-1", "where": "customer = $1", "params[1]": f"{number:020}"}
            made.append(shapes.find_definition(parse_request(query)))
            assert shapes.definition_known(parse_request(query)) is made[-1]
            assert len(shapes._definitions) <= 5
        assert len({one.id for one in made}) == 20


def test_definitions_beyond_the_limit_end_the_least_recently_used_shapes() -> None:
    with shop(options=replace(OPTIONS, definitions_bytes=50_000), follow=False) as s:
        s.push(rows=[order(1)])
        clauses = [f"customer = '{number}{'x' * 20_000}'" for number in range(4)]
        clients = [Follower(s, {"table": "orders", "where": text}).caught_up() for text in clauses]
        clients[0].step()
        enforce_limits(s.service.shapes)
        assert [client.step().status for client in clients] == [200, 409, 409, 200]


def test_a_process_that_serves_no_shapes_ends_none() -> None:
    """Such a process knows neither when shapes were used nor the limit of the processes that serve them."""
    with shop(follow=False) as s:
        s.push(rows=[order(1)])
        clients = [Follower(s, {"table": "orders", "where": f"id = {number}"}).caught_up() for number in range(3)]
        aside = Shapes(s.pipeline.collections, replace(OPTIONS, shapes_max=1, definitions_bytes=1))
        assert LimitEnforcer(aside).tick()
        assert [client.step().status for client in clients] == [200, 200, 200]


def test_an_error_while_a_snapshot_is_created_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    def failing() -> Iterator[bytes]:
        yield b"a"
        raise ZeroDivisionError("an internal error")

    snapshots = Snapshots(OPTIONS)
    with pytest.raises(EvertideError):
        snapshots.get("h", failing, 1000).has(0)
    snapshots.stop()
    assert "an internal error" in caplog.text


# Order as in PostgreSQL


def test_numbers_of_a_subset_are_ordered_as_in_postgresql(postgres_server: PostgresServer) -> None:
    values = [1.5, math.nan, None, -math.inf, 0.0, math.inf, -2.0, math.nan, None]
    content = pa.table({"id": range(len(values)), "f": pa.array(values, pa.float64())})
    with psycopg.connect(postgres_server.dsn, autocommit=True) as server:
        server.execute("CREATE TEMP TABLE numbers (id int8, f float8)")
        for number, value in enumerate(values):
            server.execute("INSERT INTO numbers VALUES (%s, %s)", (number, value))
        for how in ("", "asc", "desc", "asc nulls first", "desc nulls last", "desc nulls first"):
            text = f"f {how}, id"
            expected = [row[0] for row in server.execute(f"SELECT id FROM numbers ORDER BY {text}".encode())]
            assert _sort_indices(content, _parse_order(["id", "f"], text)).to_pylist() == expected, text
