"""X11: tables with connectors that leave the script and are declared again continue where they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.pipeline.definition import read_definition
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.replicas.leader_tasks import LeaderTasks
from evertide.pipeline.replicas.leadership import promote
from evertide.runtime import SystemRuntime
from evertide.store.open import Storage
from tests.kit.small_engine import SmallEngine, SmallView
from tests.pipeline.kit import (
    NOTES,
    ORDERS,
    SETTINGS,
    ScriptedSource,
    batch,
    crash,
    open_pipeline,
    rows_of,
    storage,
    with_sources,
)

QUICK = replace(SETTINGS, lead_interval_s=1e-6)
VALUES = pa.schema([("k", pa.int64())])


def declare_table(path: Path, **facts: object) -> DeclaredTable:
    options = {"path": str(path), "settle_ms": "0"}
    return replace(DeclaredTable("m", VALUES, connector="csv", options=options), **facts)  # type: ignore[arg-type]


def read_all(p: Pipeline) -> None:
    for _ in range(4):  # files are read at the second poll
        p.advance()


def run(kept: Storage, *tables: DeclaredTable, text: str = "") -> list[tuple[object, ...]]:
    """Read all input, push a row, and return the content of the table 'm'."""
    counted = SmallView("n", pa.schema([("n", pa.int64())]), ("notes",), lambda rows: [{"n": len(rows["notes"])}])
    with open_pipeline(kept, SmallEngine((*tables, NOTES), [counted])) as p:
        read_all(p)
        if text:
            p.push("notes", [{"text": text}])
            p.commit()
        return rows_of(p, "m") if tables else []


@pytest.mark.parametrize("between", ["nothing", "push", "checkpoints", "crash", "twice"])
def test_x11_a_table_that_comes_back_reads_no_file_again(tmp_path: Path, between: str) -> None:
    """Also after other transactions: the journal's newest record no longer names its source."""
    kept = storage()
    (tmp_path / "a.csv").write_text("k\n1\n2\n")
    assert run(kept, declare_table(tmp_path)) == [(1,), (2,)]
    p = open_pipeline(kept, SmallEngine((NOTES,), []))
    for text in {"nothing": "", "push": "x", "checkpoints": "xyz", "crash": "x", "twice": "x"}[between]:
        p.push("notes", [{"text": text}])
        p.commit()
        if between == "checkpoints":
            p.checkpoint()
    crash(p)
    if between == "twice":
        open_pipeline(kept, SmallEngine((declare_table(tmp_path), NOTES), [])).close(checkpoint=False)
        run(kept, text="y")
    (tmp_path / "b.csv").write_text("k\n3\n")
    assert run(kept, declare_table(tmp_path), text="z") == [(1,), (2,), (3,)]
    assert run(kept, declare_table(tmp_path)) == [(1,), (2,), (3,)]


def test_x11_a_table_may_come_back_with_new_columns_or_options_or_without_a_connector(tmp_path: Path) -> None:
    kept = storage()
    (tmp_path / "a.csv").write_text("k\n1\n")
    run(kept, declare_table(tmp_path))
    run(kept, text="x")
    (tmp_path / "b.csv").write_text("k,v\n2,5\n")
    wide = declare_table(tmp_path, schema=pa.schema([*VALUES, ("v", pa.int64())]))
    assert run(kept, wide) == [(1, None), (2, 5)]
    pushed = replace(wide, connector="", options={})
    with open_pipeline(kept, SmallEngine((pushed, NOTES), [])) as p:
        p.push("m", [{"k": 3, "v": 6}])
        p.commit()
    (tmp_path / "c.csv").write_text("k,v\n4,7\n")
    options = {**wide.options, "format": "csv", "pattern": "*.csv"}
    assert run(kept, replace(wide, connector="files", options=options)) == [(1, None), (2, 5), (3, 6), (4, 7)]


def test_x11_another_kind_of_connector_cannot_continue_from_a_position(tmp_path: Path) -> None:
    kept = storage()
    (tmp_path / "a.csv").write_text("k\n1\n")
    run(kept, declare_table(tmp_path))
    other = DeclaredTable("m", VALUES, connector="datagen", options={"rows": "2"})
    with pytest.raises(InvalidInput, match="the connector was 'files' and is now 'datagen'"):
        run(kept, other)
    run(kept)
    with pytest.raises(InvalidInput, match="until a transaction is committed"):
        run(kept, other)
    run(kept, text="x")
    assert len(run(kept, other)) == 3


def test_x11_a_keyed_table_that_comes_back_after_a_crash_has_its_rows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint from before the table left has its rows by key, too: they must not be there twice."""
    kept = storage()
    table = replace(ORDERS, connector="csv", options={"path": str(tmp_path), "settle_ms": "0"}, name="m")
    (tmp_path / "a.csv").write_text("id,customer,amount\n1,ann,1\n2,bob,2\n")
    run(kept, table)
    with monkeypatch.context() as patch:
        patch.setattr(LeaderTasks, "try_checkpoint", lambda *_: None)  # the process ends before it makes one
        crash(open_pipeline(kept, SmallEngine((NOTES,), [])))
    (tmp_path / "b.csv").write_text("id,customer,amount\n1,ann,10\n")
    assert run(kept, table) == [(1, "ann", 10), (2, "bob", 2)]


def test_x11_a_replica_that_takes_over_with_the_table_continues(tmp_path: Path) -> None:
    kept = storage()
    (tmp_path / "a.csv").write_text("k\n1\n")
    run(kept, declare_table(tmp_path))
    leader = open_pipeline(kept, SmallEngine((NOTES,), []), role=ProcessRole.REPLICA, settings=QUICK)
    follower = open_pipeline(
        kept, SmallEngine((declare_table(tmp_path), NOTES), []), role=ProcessRole.READ_ONLY, settings=QUICK
    )
    leader.push("notes", [{"text": "x"}])
    leader.commit()
    follower.advance()
    promote(kept.meta, "", runtime=SystemRuntime(), settings=QUICK)
    (tmp_path / "b.csv").write_text("k\n2\n")
    read_all(follower)
    assert rows_of(follower, "m") == [(1,), (2,)]
    crash(leader)
    follower.close()


def shared(*tables: str) -> tuple[ScriptedSource, SmallEngine]:
    """Return a source of several tables, as a replication slot is; each batch has a row of each."""
    source = ScriptedSource("slot", tables)
    source.batches = [batch(DeclaredTable(tables[0], VALUES), [{"k": at}]) for at in range(3)]
    return source, SmallEngine([*(DeclaredTable(name, VALUES, connector="postgres") for name in tables), NOTES], [])


def test_x11_a_table_that_its_source_left_behind_is_refused() -> None:
    """Its source advanced for another table: changes of the meantime would be missing silently."""
    kept = storage()
    for tables, count in ((("m", "n"), 1), (("n",), 2)):
        source, engine = shared(*tables)
        source.batches = source.batches[:count]
        with with_sources(source), open_pipeline(kept, engine) as p:
            read_all(p)
    source, engine = shared("m", "n")
    before = read_definition(kept.meta)
    with with_sources(source), pytest.raises(InvalidInput, match="was fed until 1, the source is at 2 now"):
        open_pipeline(kept, engine)
    assert read_definition(kept.meta) == before
    with with_sources(shared("n")[0]), open_pipeline(kept, shared("n")[1]) as p:
        read_all(p)
        assert rows_of(p, "n") == [(1,), (2,)]
    run(kept, text="x")
    with (
        with_sources(source),
        pytest.raises(InvalidInput, match="was fed until 1, the source fed the table 'n' until 3"),
    ):
        open_pipeline(kept, engine)


def test_x11_a_table_comes_back_to_a_source_that_did_not_advance() -> None:
    kept = storage()
    for tables in (("m", "n"), ("n",), ("m", "n")):
        source, engine = shared(*tables)
        source.batches = source.batches[:1]
        with with_sources(source), open_pipeline(kept, engine) as p:
            read_all(p)
            found = rows_of(p, tables[0])
    assert found == [(0,)]
