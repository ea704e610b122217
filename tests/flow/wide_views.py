"""Compares the views of a circuit that a wide step computes with those of one that steps through each transaction.

Both get the same rows: the one by transactions, the other as parts of shards with the same changes. Then content,
digests and arrangements must be equal bit by bit, also after further transactions in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pytest

from evertide.flow import Circuit
from evertide.flow.stage import RunKind, Stage
from evertide.flow.wide import step
from evertide.flow.wide.outlets import StoredContent, Tools
from evertide.flow.wide.pieces import ShardPiece
from evertide.flow.wide.step import WideInput
from evertide.plan.catalyst.jobs import Jobs
from evertide.plan.fragment import fragment
from evertide.rows.changes import DIFF, TIME, consolidate_delta
from evertide.rows.digest import add_digests, compute_digest, to_hex
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.shard.append import store_parts
from evertide.shard.parts.part import Part, decode_part
from evertide.shard.read import TimeWindow
from evertide.shard.shard import Shard
from evertide.store.blobs.local import LocalBlob
from tests.kit.ledger import Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = Settings(inline_bytes_max=1)


@dataclass(frozen=True)
class FakeShard:
    """What a wide step reads of a shard."""

    name: str
    schema: pa.Schema


@contextmanager
def tiny_tasks(*, rows: int = 24, small: int = 0) -> Iterator[None]:
    """Let few rows need several tasks, ranges and runs, and compute on executors from `small` rows on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragment, "ROWS_SMALL_MAX", small)
        patch.setattr(step, "TASK_ROWS", rows)
        yield


class Tables:
    """The content of tables as parts, one or more for each transaction."""

    def __init__(self, schemas: Mapping[str, pa.Schema], root: Path) -> None:
        self.schemas = schemas
        self.blob = LocalBlob(root)
        self.blob.make_root()
        self._parts: dict[str, list[Part]] = {name: [] for name in schemas}
        self._time = 0

    def apply(self, transaction: Transaction) -> None:
        for name, delta in transaction.items():
            if delta.num_rows:
                self._parts[name] += store(self.blob, name, delta, self._time)
        self._time += 1

    def pieces(self, circuit: Circuit) -> dict[str, Sequence[ShardPiece]]:
        window = TimeWindow(0, self._time)
        return {
            name: [
                ShardPiece(part, self.schemas[name], *circuit.describe_table(name), window, part.key) for part in parts
            ]
            for name, parts in self._parts.items()
        }


def store(blob: LocalBlob, name: str, delta: pa.Table, time: int) -> Sequence[Part]:
    delta = consolidate_delta(delta, name)
    times = pa.array(np.full(delta.num_rows, time, np.int64))
    timed = delta.add_column(delta.num_columns - 1, pa.field(TIME, pa.int64(), nullable=False), times)
    return store_parts(
        timed,
        shard=name,
        blob=blob,
        writer="w",
        seq=time,
        attempt=f"t{name}",
        runtime=SystemRuntime(),
        settings=SETTINGS,
    )


def compute_wide(circuit: Circuit, tables: Tables) -> dict[str, pa.Table]:
    """The content of the views, whose digests are checked."""
    shards = {name: FakeShard(f"view_{name}", schema) for name, schema in circuit.views.items()}
    tools = Tools(tables.blob, SystemRuntime(), SETTINGS, "w", 900_000, 900_000)
    given = WideInput(
        Jobs(circuit.program.catalyst), tools, tables.pieces(circuit), cast("Mapping[str, Shard]", shards), 7
    )
    found = circuit.compute_wide(given)
    assert any(part.run_counts[RunKind.WIDE] for part in circuit.parts if isinstance(part, Stage))
    return {name: read_content(found.content[name], schema, tables.blob) for name, schema in circuit.views.items()}


def read_content(stored: StoredContent, schema: pa.Schema, blob: LocalBlob) -> pa.Table:
    rows = [
        decode_part(part, blob.get(part.key), schema, part.key) if part.key else _inline(part, schema)
        for part in stored.parts
    ]
    whole = pa.concat_tables(
        [
            pa.schema([*schema, pa.field(DIFF, pa.int64(), nullable=False)]).empty_table(),
            *(each.drop_columns([TIME]) for each in rows),
        ]
    )
    digest = to_hex(compute_digest(whole.drop_columns([DIFF]), whole.column(DIFF).to_numpy()))
    assert add_digests(stored.digest, to_hex(0)) == digest
    assert stored.rows == whole.num_rows
    return consolidate_delta(whole, "content")


def _inline(part: Part, schema: pa.Schema) -> pa.Table:
    return decode_part(part, part.inline, schema, "inline")


def check_wide(
    spark: SparkSession, script: str, transactions: Sequence[Transaction], then: Sequence[Transaction], root: Path
) -> Circuit:
    """Compare both circuits after `transactions`, and after each of `then`. Returns the wide one."""
    narrow, wide = Circuit(spark, script), Circuit(spark, script, blob=LocalBlob(root))
    tables = Tables(narrow.tables, root)
    contents: dict[str, list[pa.Table]] = {name: [] for name in narrow.views}
    for transaction in transactions:
        tables.apply(transaction)
        for name, delta in narrow.step(transaction).items():
            contents[name].append(delta)
    with tiny_tasks():
        found = compute_wide(wide, tables)
    for name, deltas in contents.items():
        assert_same(consolidate_delta(pa.concat_tables(deltas), name), found[name], f"view {name}")
    assert_same_state(narrow, wide)
    for number, transaction in enumerate(then):
        expected, given = narrow.step(transaction), wide.step(transaction)
        for name, delta in expected.items():
            assert_same(delta, given[name], f"view {name}, transaction {number} after the wide step")
    assert_same_state(narrow, wide)
    return wide


def assert_same_state(narrow: Circuit, wide: Circuit) -> None:
    assert narrow.arrangements.keys() == wide.arrangements.keys()
    for name, arrangement in narrow.arrangements.items():
        if name.endswith(".first"):
            continue  # after removals, top-k keeps fewer rows in reserve than from scratch
        expected, found = (consolidate_delta(each.scan(), name) for each in (arrangement, wide.arrangements[name]))
        assert_same(expected, found, f"arrangement {name}")


def assert_same(expected: pa.Table, found: pa.Table, where: str) -> None:
    both = pa.concat_tables([negate(expected), found])
    left = consolidate_delta(both, where)
    assert left.num_rows == 0, f"{where} differs: {left.slice(0, 5).to_pylist()}"


def negate(delta: pa.Table) -> pa.Table:
    diffs = pa.array(-delta.column(DIFF).to_numpy())
    return delta.set_column(delta.num_columns - 1, delta.schema.field(DIFF), diffs)
