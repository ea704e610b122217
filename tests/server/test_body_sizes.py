"""Bodies that are small when they arrive, and large once they are decoded, are refused before they are decoded."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evertide.errors import InvalidInput
from evertide.media import ARROW, CSV, JSON, LINES, PARQUET
from evertide.pipeline.engine import DeclaredTable
from evertide.server.bodies.arrow_size import count_plain_bytes
from evertide.server.bodies.bodies import count_decoded_bytes, decode_body
from evertide.server.bodies.parquet_size import count_parquet_bytes
from evertide.settings import Settings
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import open_pipeline, rows_of, storage
from tests.server.kit import Client, served

LIMIT = 2 * 1024 * 1024
ROWS = 400_000
LARGE = "x" * 100_000
DICTIONARY: Any = pa.dictionary(pa.int32(), pa.string())

TABLES = (
    DeclaredTable("texts", pa.schema([("t", pa.string())])),
    DeclaredTable("numbers", pa.schema([("n", pa.int64())])),
    DeclaredTable("lists", pa.schema([("l", pa.list_(pa.string()))])),
    DeclaredTable("wide", pa.schema([("n", pa.int64()), *((f"c{at}", pa.int64()) for at in range(199))])),
)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    settings = Settings(request_decoded_bytes_max=LIMIT)
    with open_pipeline(storage(), SmallEngine(TABLES, []), settings=settings) as p, served(p) as found:
        yield found


def stream(column: Any, name: str = "t", compression: str = "zstd") -> bytes:
    table = pa.table({name: column})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def parquet(column: Any, name: str = "t", **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({name: column}), sink, **{"compression": "zstd", "store_schema": False, **options})
    return sink.getvalue()


def repeated(value: str, times: int, index: Any = pa.int8()) -> Any:  # noqa: B008 - a type is a value
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int8)).cast(index), [value])


def views(value: str, times: int) -> Any:
    """Return views that all refer to the same bytes."""
    one = pa.array([value], pa.string_view())
    _, view, *data = one.buffers()
    return pa.Array.from_buffers(pa.string_view(), times, [None, pa.py_buffer(view.to_pybytes() * times), *data])


ARROW_BOMBS: dict[str, Callable[[], tuple[str, bytes]]] = {
    "zeros": lambda: ("numbers", stream(np.zeros(ROWS, np.int64), "n")),
    "zeros, lz4": lambda: ("numbers", stream(np.zeros(ROWS, np.int64), "n", "lz4")),
    "one text": lambda: ("texts", stream(pa.array([LARGE * 40]))),
    "a dictionary": lambda: ("texts", stream(repeated(LARGE, 1000))),
    "a dictionary in a list": lambda: ("lists", stream(pa.array([[LARGE] * 1000], pa.list_(DICTIONARY)), "l")),
    "views": lambda: ("texts", stream(views(LARGE, 1000))),
    "views of lists": lambda: ("lists", stream(overlapping(1000), "l")),
    "nothing at all": lambda: ("texts", stream(pa.nulls(ROWS))),
    "of a type of its own": lambda: (
        "texts",
        stream(pa.ExtensionArray.from_storage(pa.opaque(DICTIONARY, "x", "y"), repeated(LARGE, 1000, pa.int32()))),
    ),
}


def overlapping(times: int) -> Any:
    """Return lists that all refer to the same values."""
    zeros, ones = pa.array([0] * times, pa.int32()), pa.array([1] * times, pa.int32())
    return pa.ListViewArray.from_arrays(zeros, ones, pa.array([LARGE]))


PARQUET_BOMBS: dict[str, Callable[[], tuple[str, bytes]]] = {
    "zeros": lambda: ("numbers", parquet(np.zeros(ROWS, np.int64), "n", use_dictionary=False)),
    "zeros by a dictionary": lambda: ("numbers", parquet(np.zeros(ROWS, np.int64), "n")),
    "zeros by their differences": lambda: (
        "numbers",
        parquet(np.zeros(ROWS, np.int64), "n", use_dictionary=False, column_encoding="DELTA_BINARY_PACKED"),
    ),
    "one text": lambda: ("texts", parquet(pa.array([LARGE * 40]))),
    "a dictionary": lambda: ("texts", parquet(repeated(LARGE, 1000, pa.int32()))),
    "a dictionary, second version": lambda: (
        "texts",
        parquet(repeated(LARGE, 1000, pa.int32()), data_page_version="2.0"),
    ),
    "a dictionary in a list": lambda: ("lists", parquet(pa.array([[LARGE] * 1000]), "l")),
    "many rows of an empty list": lambda: ("lists", parquet(pa.array([[]] * ROWS, pa.list_(pa.string())), "l")),
    "texts that begin alike": lambda: (
        "texts",
        parquet(pa.array([LARGE] * 1000), use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"),
    ),
    "nothing at all": lambda: ("texts", parquet(pa.nulls(ROWS, pa.string()))),
    "many small groups": lambda: ("texts", parquet(repeated(LARGE, 100, pa.int32()), row_group_size=2)),
}


@pytest.mark.parametrize("bomb", ARROW_BOMBS)
def test_an_arrow_stream_that_decodes_to_more_than_the_limit_is_413(client: Client, bomb: str) -> None:
    """Fails if only the received bytes are counted."""
    check_refused(client, ARROW, *ARROW_BOMBS[bomb]())


@pytest.mark.parametrize("bomb", PARQUET_BOMBS)
def test_a_parquet_file_that_decodes_to_more_than_the_limit_is_413(client: Client, bomb: str) -> None:
    check_refused(client, PARQUET, *PARQUET_BOMBS[bomb]())


def repeat(unit: bytes, before: bytes = b"[", after: bytes = b"]") -> bytes:
    """Return a list of this value, as large as the test allows."""
    return before + b",".join([unit] * (LIMIT // 5 // (len(unit) + 1))) + after


TEXT_BOMBS: dict[str, tuple[str, str, bytes]] = {
    "empty objects": ("numbers", JSON, repeat(b"{}")),
    "small objects": ("numbers", JSON, repeat(b'{"n":1}')),
    "empty lists": ("numbers", JSON, repeat(b"[]")),
    "a list of numbers": ("lists", JSON, repeat(b"0", b'[{"l":[', b"]}]")),
    "empty lines": ("numbers", LINES, b"{}\n" * (LIMIT // 15)),
    "small records": ("numbers", CSV, b"n\n" + b"1\n" * (LIMIT // 10)),
}


@pytest.mark.parametrize("bomb", TEXT_BOMBS)
def test_a_text_of_many_tiny_values_is_413(client: Client, bomb: str) -> None:
    """Fails if a text counts as a multiple of its size: as values, these take up to sixty times of it."""
    table, media, content = TEXT_BOMBS[bomb]
    check_refused(client, media, table, content)


@pytest.mark.parametrize("media", [ARROW, PARQUET, CSV, JSON, LINES])
@pytest.mark.parametrize("is_open", [True, False])
def test_columns_that_a_body_does_not_have_count(client: Client, media: str, is_open: bool) -> None:
    """5,000 rows with 199 columns of NULL. Fails if only the size of the body's own columns is limited."""
    numbers = np.zeros(5000, np.int64)
    content = {
        ARROW: lambda: stream(numbers, "n"),
        PARQUET: lambda: parquet(numbers, "n"),
        CSV: lambda: b"n\n" + b"0\n" * len(numbers),
        JSON: lambda: b"[" + b",".join([b'{"n":0}'] * len(numbers)) + b"]",
        LINES: lambda: b'{"n":0}\n' * len(numbers),
    }[media]()
    path = "/v1/tables/wide/rows"
    if is_open:
        begun = client.post("/v1/transactions/begin").body["id"]
        path = f"/v1/transactions/{begun}/tables/wide/rows"
    answer = client.post(path, content, {"Content-Type": media})
    assert (answer.status, answer.body["error_code"]) == (413, "body_too_large"), answer.body
    assert "200 columns of table 'wide'" in answer.body["message"]


def test_a_text_of_ordinary_rows_may_be_as_large_as_a_body() -> None:
    row = b'{"id": 1234567, "customer": "ann", "amount": 10}'
    for media, content in (
        (JSON, repeat(row)),
        (LINES, row + b"\n"),
        (CSV, b"1234567,ann of the green gables,10.25\n"),
    ):
        times = Settings().request_decoded_bytes_max / Settings().request_bytes_max
        assert count_decoded_bytes(content, media, LIMIT) <= times * len(content)


def test_the_estimated_size_of_tiny_rows_is_not_below_their_actual_size() -> None:
    """Fails if an object counts 128 bytes: one with a name takes 200."""
    for unit in (b"{}", b'{"n":1}', b'{"n":1,"m":2}'):
        for media, content in ((JSON, repeat(unit)), (LINES, (unit + b"\n") * 20_000)):
            assert peak_of(content, media) <= count_decoded_bytes(content, media, LIMIT), (unit, media)


def test_blank_lines_take_no_memory() -> None:
    """Fails if the body is split into all of its lines."""
    content = b"\n" * (1 << 20) + b'{"n": 1}\n' + b" \r\n" * (1 << 18)
    assert peak_of(content, LINES) < 1 << 20
    assert decode_body(content, LINES, {}, "numbers", LIMIT).rows == [{"n": 1}]


def peak_of(content: bytes, media: str) -> int:
    """The most memory that decoding takes."""
    tracemalloc.start()
    try:
        decoded = decode_body(content, media, {}, "numbers", LIMIT)
        assert decoded.rows
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("query", ["", "?deletes=true"])
def test_a_csv_header_of_very_many_columns_is_refused(client: Client, query: str) -> None:
    """Deletes ignore columns that the table does not have. Fails if only the size of the body is limited."""
    answer = client.post(f"/v1/tables/numbers/rows{query}", b"n" + b"," * 100_000, {"Content-Type": CSV})
    assert (answer.status, answer.body["why"]) == (400, "line 1 has 100001 columns; a file has at most 100000")


def test_a_csv_header_of_many_columns_takes_little_memory() -> None:
    """Fails if Arrow reads the header."""
    names = ["n", *(f"c{at}" for at in range(20_000))]
    content = "\n".join((",".join(names), ",".join("1" * len(names)))).encode()
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(InvalidInput, match="the table has no column 'c0'"):
            decode_body(content, CSV, {"numbers": TABLES[1]}, "numbers", LIMIT)
        assert pool.max_memory() < 1 << 20
    finally:
        pa.set_memory_pool(before)
    found = decode_body(content, CSV, {"numbers": TABLES[1]}, "numbers", LIMIT, is_delete=True)
    assert found.deletes.to_pylist() == [{"n": 1}]
    found = decode_body(b"c0,c1\n1,2\n", CSV, {"numbers": TABLES[1]}, "numbers", LIMIT, is_delete=True)
    assert found.deletes.to_pylist() == [{"n": None}]


def test_an_error_of_a_csv_header_does_not_repeat_a_long_name(client: Client) -> None:
    for content in (b"x" * 100_000, b"%b,%b" % (b"x" * 100_000, b"X" * 100_000), b"x" * 200_000):
        answer = client.post("/v1/tables/numbers/rows", content + b"\n1\n", {"Content-Type": CSV})
        assert (answer.status, answer.body["error_code"]) == (400, "invalid_input"), answer
        assert len(answer.body["message"]) < 500


def check_refused(client: Client, media: str, table: str, content: bytes) -> None:
    assert len(content) < LIMIT / 4
    answer = client.post(f"/v1/tables/{table}/rows", content, {"Content-Type": media})
    assert (answer.status, answer.body["error_code"]) == (413, "body_too_large"), answer
    assert f"decode to more than {LIMIT} bytes" in answer.body["message"]


@pytest.mark.parametrize("media", [ARROW, PARQUET])
def test_bodies_within_the_limit_are_accepted(media: str) -> None:
    """Repeated texts, too. Fails if each value of a dictionary counts as the whole dictionary."""
    texts = [f"customer {number % 500}" * 5 for number in range(10_000)]
    lists = [["a", None, "b" * (number % 9)] for number in range(500)]
    settings = Settings(request_decoded_bytes_max=LIMIT)
    with open_pipeline(storage(), SmallEngine(TABLES, []), settings=settings) as p, served(p) as client:
        for table, name, column in [("texts", "t", pa.array(texts)), ("lists", "l", pa.array(lists))]:
            encoded = column.dictionary_encode() if name == "t" else column
            content = stream(encoded, name) if media == ARROW else parquet(column, name)
            answer = client.post(f"/v1/tables/{table}/rows", content, {"Content-Type": media})
            assert (answer.status, answer.body["rows"]) == (200, len(column)), answer
            assert rows_of(p, table) == sorted([(value,) for value in column.to_pylist()], key=repr)


def test_the_counted_size_is_never_below_the_actual_size() -> None:
    """For random columns in every encoding, a limit just below the actual size is always exceeded."""
    rng = np.random.default_rng(8)
    for _ in range(12):
        count = int(rng.integers(1, 3000))
        texts = [
            ("y" * int(rng.integers(0, 200)))[: int(rng.integers(0, 200))] for _ in range(int(rng.integers(1, 50)))
        ]
        some = pa.array([texts[int(at)] for at in rng.integers(0, len(texts), count)])
        options: dict[str, Any] = {"row_group_size": int(rng.integers(1, 1000))}
        options |= {"data_page_size": int(rng.integers(100, 10_000)), "write_batch_size": 100}
        options |= {"dictionary_pagesize_limit": int(rng.integers(100, 5000))}  # beyond it, values are not encoded
        for column in (some, pa.array(rng.integers(0, 9, count)), pa.array([[text] * 3 for text in some.to_pylist()])):
            plain = column.nbytes
            for version in ("1.0", "2.0"):
                content = parquet(column, data_page_version=version, **options)
                assert count_parquet_bytes(content, plain - 1) >= plain
            assert count_decoded_bytes(stream(column), ARROW, plain - 1) >= plain
        assert count_plain_bytes(some.dictionary_encode()) >= sum(len(text) for text in some.to_pylist())


def test_a_false_footer_does_not_change_the_counted_size() -> None:
    """The footer's count of values is too low; the page still has them all. Fails if the footer is trusted."""
    values = 3_000_000
    content = parquet(pa.array([np.zeros(values, np.int32)]))
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert content[footer:].count(varint(2 * values)) >= 1
    lying = content[:footer] + content[footer:].replace(varint(2 * values), varint(2 * (values // 2)))
    told = pq.ParquetFile(io.BytesIO(lying)).metadata.row_group(0).column(0)
    assert told.num_values == values // 2
    assert count_parquet_bytes(lying, 1 << 40) == count_parquet_bytes(content, 1 << 40) > values * 4


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


@pytest.mark.parametrize("media", [ARROW, PARQUET])
def test_a_body_with_any_damaged_byte_is_400(client: Client, media: str) -> None:
    """Never 500: a head, a footer or a length that makes no sense."""
    rng = np.random.default_rng(9)
    column = pa.array(["a", "b", None, "a"] * 20)
    whole = stream(column) if media == ARROW else parquet(column)
    seen = set()
    for _ in range(150):
        broken = bytearray(whole[: int(rng.integers(1, len(whole)))] if rng.random() < 0.2 else whole)
        broken[int(rng.integers(len(broken)))] ^= 1 << int(rng.integers(8))
        answer = client.post("/v1/tables/texts/rows", bytes(broken), {"Content-Type": media})
        seen.add(answer.status)
        assert answer.status in (200, 400, 413), answer
    assert 400 in seen


def test_a_content_encoding_is_refused(client: Client) -> None:
    """Fails if the encoding is ignored: the client would get an error about invalid JSON."""
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = client.post("/v1/tables/texts/rows", b"\x1f\x8b", headers)
    assert (answer.status, answer.body["error_code"]) == (415, "unsupported_media_type")
    assert "gzip" in answer.body["message"]


def test_types_that_no_table_has_are_refused(client: Client) -> None:
    """Such types would repeat values as well. Fails with an unexpected error if they are not checked."""
    runs = pa.RunEndEncodedArray.from_arrays([1000], pa.array(["x"]))
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array(["x"])])
    for column in (runs, union, pa.StructArray.from_arrays([union], ["u"])):
        answer = client.post("/v1/tables/texts/rows", stream(column), {"Content-Type": ARROW})
        assert (answer.status, answer.body["where"]) == (400, "body, column 't'"), answer
