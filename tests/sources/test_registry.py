"""Which sources the tables of a script get."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.sources.contract import TableDeclaration
from evertide.sources.generated.nexmark_events import SCHEMAS
from evertide.sources.registry import CONNECTORS, open_sources
from tests.kit.runtime import ManualRuntime
from tests.sources.kit import LIMIT, ids, open_source, put, require_offer, table


def names(*declarations: TableDeclaration) -> list[tuple[str, tuple[str, ...]]]:
    sources = open_sources(declarations, runtime=ManualRuntime(), base=Path())
    return [(source.name, source.tables) for source in sources]


def stream(name: str, **options: str) -> TableDeclaration:
    return table(name, "nexmark", SCHEMAS[name], (), **options)


def test_the_name_of_a_source_does_not_depend_on_other_declarations() -> None:
    files, made = table("f", "FILES", path="in", format="csv"), table("m", "datagen")
    assert names(table("a"), table("b", "push")) == []
    assert names(files, stream("bid"), made, stream("person")) == [
        ("f", ("f",)),
        ("nexmark", ("bid", "person")),
        ("m", ("m",)),
    ]
    assert names(stream("person", seed="5"), stream("bid")) == [("nexmark-5", ("person",)), ("nexmark", ("bid",))]


@pytest.mark.parametrize(
    ("declaration", "why"),
    [
        (
            table("t", "kafak"),
            "there is no connector 'kafak' for a table; did you mean 'kafka'?",
        ),
        (
            table("t", "push", path="x"),
            "the option 'path' is not allowed: a table whose rows are pushed has no options",
        ),
        (table("t", "files", path="x"), "the option 'format' is '': expected one of 'csv', 'json', 'parquet'"),
        (table("t", schema=pa.schema([("__op", pa.int8())]), key=()), "a column cannot be named '__op'"),
    ],
)
def test_an_unknown_connector_or_option_is_refused_with_its_place(declaration: TableDeclaration, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        names(declaration)
    assert refused.value.where == "shop.sql, line 7, table 't'"
    assert why in refused.value.why


def test_a_table_named_as_a_shared_source_is_refused() -> None:
    with pytest.raises(InvalidInput, match="another source is already named 'nexmark'"):
        names(stream("bid"), table("nexmark", "datagen"))


def test_paths_are_relative_to_the_script(tmp_path: Path) -> None:
    put(tmp_path / "scripts/in/x.csv", "id\n5\n")
    for path in ("in", str(tmp_path / "scripts/in")):
        source = open_source(tmp_path / "scripts", table(connector="csv", path=path, settle_ms="0"))
        assert ids(source, require_offer(source)) == [5]


@pytest.mark.parametrize("connector", sorted(set(CONNECTORS) - {"kafka", "postgres"}))  # these need servers
def test_every_connector_keeps_the_contract(tmp_path: Path, connector: str) -> None:
    """Without new input there is no offer; a position may be acknowledged twice, or not at all; `start` is the same for
    all.
    """
    (tmp_path / "in").mkdir()
    options = {
        "datagen": {"rows": "0"},
        "nexmark": {"events": "0"},
        "files": {"path": "in", "format": "csv"},
    }.get(connector, {"path": "in"})
    schema, key = (SCHEMAS["bid"], ()) if connector == "nexmark" else (pa.schema([("id", pa.int64())]), ("id",))
    declared = TableDeclaration("bid", schema, key, connector, options, "x.sql, line 1")
    source = open_source(tmp_path, declared)
    assert source.tables == ("bid",)
    assert source.offer(source.start, LIMIT) is None
    assert source.start == open_source(tmp_path, declared).start
    for _ in range(2):
        source.acknowledge(source.start)
        source.close()
