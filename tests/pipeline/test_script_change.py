"""What a changed script does is described before it happens, and can be refused."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput, RecordDamaged
from evertide.pipeline.script_change import ScriptChange, read_script_change
from evertide.runtime import SystemRuntime
from evertide.shard.shard import Shards
from evertide.store.meta import Write
from evertide.store.open import Storage
from evertide.store.paths import PIPELINE
from tests.kit.small_engine import SmallEngine, SmallView
from tests.pipeline.kit import NOTES, ORDERS, SETTINGS, VIEWS, engine, open_pipeline, storage

WIDE = replace(ORDERS, schema=ORDERS.schema.append(pa.field("channel", pa.string())))
CHANGED = replace(VIEWS["revenue"], version=2)


def compare(kept: Storage, changed: SmallEngine) -> ScriptChange:
    return read_script_change(kept, changed, SystemRuntime(), SETTINGS)


def filled() -> Storage:
    kept = storage()
    with open_pipeline(kept, engine("revenue", "counts")) as p:
        p.push("orders", [{"id": number, "customer": "ann", "amount": 1} for number in range(1_234)])
        p.push("notes", [{"text": "x"}])
        p.commit()
    return kept


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        (engine("revenue", "counts"), []),
        (
            SmallEngine([ORDERS, NOTES], [CHANGED, VIEWS["counts"]]),
            ["~ view   revenue  changed: recomputed from about 1,234 rows; until then, only earlier times can be read"],
        ),
        (
            engine("counts", "share"),
            [
                "+ view   share    new: computed from about 1,234 rows",
                "- view   revenue  no longer declared: its content is deleted",
            ],
        ),
        (
            SmallEngine([ORDERS, replace(NOTES, name="remarks")], [VIEWS["revenue"]]),
            [
                "+ table  remarks  new, fed by pushes",
                "- table  notes    no longer declared: its rows stay, and return when it is declared again",
                "- view   counts   no longer declared: its content is deleted",
            ],
        ),
        (
            SmallEngine([WIDE, NOTES], []),
            [
                "~ table  orders   new columns, NULL in stored rows: channel STRING",
                "- view   revenue  no longer declared: its content is deleted",
                "- view   counts   no longer declared: its content is deleted",
            ],
        ),
        (
            SmallEngine([replace(ORDERS, connector="files"), NOTES], [VIEWS["revenue"], VIEWS["counts"]]),
            ["~ table  orders  fed by files; before, by pushes"],
        ),
        (
            SmallEngine([ORDERS, NOTES], [replace(VIEWS["revenue"], key=("customer",)), VIEWS["counts"]]),
            ["~ view   revenue  its key is now (customer); nothing is recomputed"],
        ),
    ],
    ids=["nothing", "query", "view", "table", "column", "connector", "key"],
)
def test_each_change_is_one_line(changed: SmallEngine, lines: list[str]) -> None:
    assert compare(filled(), changed).format_lines() == lines


def test_a_new_storage_adds_everything() -> None:
    found = compare(storage(), engine("revenue"))
    assert found.is_new
    assert found.format_lines() == [
        "+ table  orders   new, fed by pushes",
        "+ table  notes    new, fed by pushes",
        "+ view   revenue  new",
    ]
    assert found.find_reasons_to_ask(1) == []


def test_a_table_that_comes_back_is_described() -> None:
    kept = filled()
    open_pipeline(kept, SmallEngine([ORDERS], [VIEWS["revenue"]])).close()
    found = compare(kept, SmallEngine([ORDERS, NOTES], [VIEWS["revenue"]]))
    assert found.format_lines() == ["+ table  notes  declared again: its stored rows return"]
    assert found.find_reasons_to_ask(1) == []


def test_a_person_is_asked_about_lost_tables_and_long_recomputation_only() -> None:
    kept = filled()
    assert compare(kept, engine("counts", "share")).find_reasons_to_ask(1) == []
    gone = SmallEngine([ORDERS], [CHANGED])
    assert compare(kept, gone).find_reasons_to_ask(2_000) == ["the script no longer declares 1 table: notes"]
    assert compare(kept, gone).find_reasons_to_ask(1_233) == [
        "the script no longer declares 1 table: notes",
        "1 stored view will be recomputed from about 1,234 rows",
    ]


def test_what_opening_refuses_is_refused() -> None:
    narrow = replace(ORDERS, schema=pa.schema([*ORDERS.schema][:2]))
    with pytest.raises(InvalidInput, match="column amount BIGINT is missing"):
        compare(filled(), SmallEngine([narrow, NOTES], []))


def test_a_new_view_over_a_table_that_is_not_kept_is_refused_as_by_opening() -> None:
    passing = replace(NOTES, is_kept=False)
    kept = storage()
    with open_pipeline(kept, SmallEngine([ORDERS, passing], [])) as p:
        p.push("notes", [{"text": "x"}])
        p.commit()
    with pytest.raises(InvalidInput, match=r"earlier rows of notes cannot be read"):
        compare(kept, SmallEngine([ORDERS, passing], [VIEWS["counts"]]))
    assert compare(storage(), SmallEngine([ORDERS, passing], [VIEWS["counts"]])).is_new


def test_a_storage_without_its_definition_is_not_new() -> None:
    kept = filled()
    head = kept.meta.head(PIPELINE)
    assert head is not None
    kept.meta.commit([Write(PIPELINE, head.seqno, None)])
    with pytest.raises(RecordDamaged, match="the pipeline's definition is missing"):
        compare(kept, engine("revenue"))


def test_only_the_tables_under_computed_views_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an opening without changes does not read the record of every table."""
    kept, opened = filled(), []
    monkeypatch.setattr(Shards, "open", lambda _, name: opened.append(name))
    assert compare(kept, engine("revenue", "counts")).is_empty()
    assert opened == []


def test_a_view_over_several_tables_counts_all_of_them() -> None:
    both = SmallView("both", pa.schema([("n", pa.int64())]), ("orders", "notes"), lambda _: [])
    assert compare(filled(), SmallEngine([ORDERS, NOTES], [both])).changes[0].rows == 1_235
