"""Converts the input of sources to deltas of tables.

The state is an arrangement by key for each table with a key, and one of the dead letters by table and key.
Checkpoints store these arrangements; they can be rebuilt from the shards.

1. The last change of a key in a transaction replaces the table's row of that key (U5). A delete of a missing key has
   no effect.
2. In a table without a key, an upsert adds a row. A delete removes one row that is equal in all columns, if there is
   one at that point of the input.
3. A row that does not fit becomes a dead letter, with its place and the reason. If its key is readable, the
   table's row of that key is removed, as it is outdated; the next valid change or delete of the key removes the dead
   dead_letter (U6).
4. A truncate removes all rows of the table, and the dead letters of its keys; only later input counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput
from evertide.flow.state.arrangement import Arrangement, ArrangementManifest
from evertide.flow.state.key_words import canonicalize
from evertide.journal.records import Content
from evertide.pipeline.engine import DeclaredTable, StateStore
from evertide.pipeline.names import ERRORS, encode_path_name
from evertide.pipeline.state.table_input import (
    DeadLetter,
    HashedBatch,
    TableInput,
    fill_unchanged,
    gather_input,
    write_json_texts,
)
from evertide.rows.changes import DIFF, consolidate_delta, find_negative_sums
from evertide.rows.columns import Longs, to_array
from evertide.rows.digest import compute_digest, concatenate_hashes, find_hashes, hash_rows, sum_hashes, to_hex
from evertide.sources.contract import DELETE, UPSERT, Fault, Rows
from evertide.threads.stopping import IsStopping

__all__ = [
    "ERRORS",
    "ERRORS_SCHEMA",
    "TableDeltas",
    "Tables",
    "encode_path_name",
    "log_new_dead_letters",
    "measure_content",
]

logger = logging.getLogger(__name__)

ERRORS_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("source", pa.string(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("raw", pa.string(), nullable=False),
    ]
)
_ERRORS_KEY = ("table", "key")
_DIFF_FIELD = pa.field(DIFF, pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class TableDeltas:
    tables: Mapping[str, pa.Table]
    """Only tables that change: their columns, then `__diff`; each row once."""
    errors: pa.Table
    sources: Mapping[str, Content]
    """By source, the count and digest of its rows."""


class Tables:
    """The rows of the tables by key, by which input becomes deltas."""

    def __init__(
        self,
        tables: Mapping[str, DeclaredTable],
        store: StateStore,
        saved: Mapping[str, ArrangementManifest] | None = None,
    ) -> None:
        """`saved` is the result of `save`, from a checkpoint; without it the tables are empty."""
        self._tables: dict[str, DeclaredTable] = {}
        self._store = store
        self._by_key: dict[str, Arrangement] = {}
        for table in tables.values():
            self._add(table, saved)
        self._errors = self._arrange(f"{ERRORS}.keyed", ERRORS_SCHEMA, _ERRORS_KEY, saved)

    def _arrange(
        self, name: str, schema: pa.Schema, key: tuple[str, ...], all_saved: Mapping[str, ArrangementManifest] | None
    ) -> Arrangement:
        store = self._store
        parts: dict[str, Any] = {"blob": store.blob, "cache": store.cache, "new_name": store.new_name}
        saved = None if all_saved is None else all_saved.get(name)
        if saved is None:
            return Arrangement(name, schema, key, **parts)
        return Arrangement.restore(saved, **parts)

    def add(self, table: DeclaredTable) -> None:
        """Add a table that is new, declared again, or has new columns; `apply` then receives all its rows.

        Saved state of the table is not used, as it may be older than the table's shard.
        """
        self._add(table, None)

    def _add(self, table: DeclaredTable, saved: Mapping[str, ArrangementManifest] | None) -> None:
        self._tables[table.name] = table
        if table.key:
            name = f"{encode_path_name(table.name)}.keyed{len(table.schema)}"
            self._by_key[table.name] = self._arrange(name, table.schema, table.key, saved)

    def list_arrangements(self) -> Iterator[Arrangement]:
        yield from self._by_key.values()
        yield self._errors

    def compute_deltas(self, batches: Iterable[tuple[str, Rows]], content: Callable[[str], pa.Table]) -> TableDeltas:
        """The deltas for batches with the names of their sources. `content` returns a table's rows with counts."""
        by_table: dict[str, list[tuple[str, HashedBatch]]] = {}
        totals: dict[str, tuple[int, int]] = {}
        for source, batch in batches:
            hashed = HashedBatch(batch)
            by_table.setdefault(batch.table, []).append((source, hashed))
            rows, total = totals.get(source, (0, 0))
            digest = hashed.digest + _digest_faults(batch.faults)
            totals[source] = (rows + batch.rows.num_rows + len(batch.faults), total + digest)
        deltas, errors = {}, []
        for name, table_batches in by_table.items():
            table_input = self._gather(name, table_batches)
            delta = self._compute_delta(table_input, content)
            if delta.num_rows:
                deltas[name] = delta
            errors.append(self._compute_errors_delta(table_input))
        empty = pa.schema([*ERRORS_SCHEMA, _DIFF_FIELD]).empty_table()
        contents = {source: Content(rows, to_hex(total % (1 << 128))) for source, (rows, total) in totals.items()}
        return TableDeltas(deltas, consolidate_delta(pa.concat_tables([empty, *errors]), ERRORS), contents)

    def _gather(self, name: str, batches: Sequence[tuple[str, HashedBatch]]) -> TableInput:
        table_input = gather_input(self._table(name), batches)
        return fill_unchanged(table_input, self._by_key[name].lookup) if table_input.table.key else table_input

    def has(self, name: str) -> bool:
        return name in self._tables

    def _table(self, name: str) -> DeclaredTable:
        if name not in self._tables:
            why = "bound transactions have rows of this table; open the pipeline with the script that declares it"
            raise InvalidInput(where=f"table {name!r}", why=why)
        return self._tables[name]

    def make_empty(self, name: str) -> pa.Table:
        """No rows of a table, with counts."""
        return pa.schema([*self._table(name).schema, _DIFF_FIELD]).empty_table()

    def apply(self, deltas: Mapping[str, pa.Table], errors: pa.Table | None) -> None:
        for call in self.prepare(deltas, errors):
            call()

    def prepare(self, deltas: Mapping[str, pa.Table], errors: pa.Table | None) -> list[Callable[[], None]]:
        """Do all parts of `apply` that can fail; the returned calls apply the deltas."""
        calls = [
            self._by_key[name].prepare(delta)
            for name, delta in deltas.items()
            if name in self._by_key and delta.num_rows
        ]
        if errors is not None and errors.num_rows:
            calls.append(self._errors.prepare(errors))
        return calls

    def save(self) -> dict[str, ArrangementManifest]:
        return {kept.name: kept.save() for kept in self.list_arrangements()}

    def maintain(self, is_stopping: IsStopping) -> bool:
        done = [kept.maintain(is_stopping) for kept in self.list_arrangements()]
        return any(done)

    def _compute_delta(self, table_input: TableInput, content: Callable[[str], pa.Table]) -> pa.Table:
        table = table_input.table
        if not table.key:
            return _compute_unkeyed_delta(table_input, content)
        kept = self._by_key[table.name]
        old = kept.scan() if table_input.is_truncated else kept.lookup(table_input.keys_once)
        new, new_hashes = table_input.select_upserts()
        hashes = None
        if new_hashes is not None:
            hashes = concatenate_hashes([hash_rows(old.drop_columns([DIFF])), new_hashes])
        return consolidate_delta(
            pa.concat_tables([_add_diffs(old, -_read_diffs(old)), _add_diffs(new, np.ones(new.num_rows, np.int64))]),
            table.name,
            hashes=hashes,
        )

    def _compute_errors_delta(self, table_input: TableInput) -> pa.Table:
        dead_letters = table_input.final_dead_letters
        new = _add_diffs(_make_dead_letter_rows(table_input.table, dead_letters), np.ones(len(dead_letters), np.int64))
        if not table_input.table.key or not self._errors.rows:
            return new
        if table_input.is_truncated:
            letters_before = self._errors.scan()
            is_of_table = pc.equal(letters_before.column("table"), table_input.table.name)
            old = letters_before.filter(pc.and_(is_of_table, letters_before.column("key").is_valid()))
        else:
            texts = _write_keys(table_input.keys_once)
            names = [table_input.table.name] * len(texts)
            schema = pa.schema([ERRORS_SCHEMA.field(column) for column in _ERRORS_KEY])
            old = self._errors.lookup(pa.Table.from_arrays([pa.array(names), pa.array(texts)], schema=schema))
        return pa.concat_tables([_add_diffs(old, -_read_diffs(old)), new])


def _compute_unkeyed_delta(table_input: TableInput, content: Callable[[str], pa.Table]) -> pa.Table:
    table, ops = table_input.table, table_input.ops
    rows = pa.Table.from_arrays(table_input.rows.columns, schema=table.schema)
    changes = _add_diffs(rows, np.where(ops == UPSERT, 1, -1))
    negative_sums = find_negative_sums(changes) if (ops == DELETE).any() else changes.slice(0, 0)
    delta = consolidate_delta(changes, table.name, hashes=table_input.hashes)
    if not table_input.is_truncated and negative_sums.num_rows == 0:
        return delta
    before = content(table.name)
    if table_input.is_truncated:
        gone, before = _add_diffs(before, -_read_diffs(before)), before.slice(0, 0)
        delta = pa.concat_tables([delta, gone])
    return consolidate_delta(pa.concat_tables([delta, _find_excess(negative_sums, before, table.name)]), table.name)


def _find_excess(negative_sums: pa.Table, before: pa.Table, where: str) -> pa.Table:
    """Additions that cancel the deletes of rows that do not exist."""
    left = consolidate_delta(pa.concat_tables([negative_sums, before]), where)
    below = left.filter(pc.less(left.column(DIFF), 0))
    return _add_diffs(below, -_read_diffs(below))


def _make_dead_letter_rows(table: DeclaredTable, dead_letters: Sequence[DeadLetter]) -> pa.Table:
    keys = [dead_letter.fault.key for dead_letter in dead_letters if table.key and dead_letter.fault.key is not None]
    texts = iter(_write_keys(pa.concat_tables(keys)) if keys else [])
    rows = [
        {
            "table": table.name,
            "key": next(texts) if table.key and dead_letter.fault.key is not None else None,
            "source": dead_letter.source,
            "place": dead_letter.fault.place,
            "line": dead_letter.fault.line,
            "reason": dead_letter.fault.reason,
            "raw": dead_letter.fault.raw,
        }
        for dead_letter in dead_letters
    ]
    return pa.Table.from_pylist(rows, ERRORS_SCHEMA)


def _write_keys(keys: pa.Table) -> list[str]:
    """Equal keys have equal texts, independent of other keys, so that a valid row finds the dead letters of its key."""
    columns = [canonicalize(to_array(column)) for column in keys.columns]
    return write_json_texts(pa.Table.from_arrays(columns, names=keys.schema.names))


def _digest_faults(faults: Sequence[Fault]) -> int:
    if not faults:
        return 0
    raw = pa.table({"raw": [fault.raw for fault in faults], "line": [fault.line for fault in faults]})
    return compute_digest(raw, np.ones(raw.num_rows, np.int64))


def log_new_dead_letters(found: pa.Table, recorded: pa.Table, time: int) -> None:
    """Log dead letters of a replayed transaction that fitted their tables when it was committed.

    Another version of Evertide may accept fewer values. The replay then ends with `Diverged`, which has only digests.
    """
    columns = ["source", "table", "place", "line"]
    before = {tuple(row.values()) for row in recorded.select(columns).to_pylist()}
    new = [row for row in found.to_pylist() if row[DIFF] > 0 and tuple(row[name] for name in columns) not in before]
    if new:
        logger.error(
            "replaying transaction %d: %d rows that fitted when it was committed do not fit now; the first, of table "
            "%r in %s, line %d: %s",
            time,
            len(new),
            *(new[0][name] for name in ("table", "place", "line", "reason")),
        )


def _add_diffs(rows: pa.Table, diffs: Longs) -> pa.Table:
    without_diffs = rows.drop_columns([DIFF]) if DIFF in rows.schema.names else rows
    return without_diffs.append_column(_DIFF_FIELD, pa.array(diffs))


def _read_diffs(rows: pa.Table) -> Longs:
    found: Longs = rows.column(DIFF).to_numpy()
    return found


def measure_content(delta: pa.Table) -> Content:
    hashes = find_hashes(delta) or hash_rows(delta.drop_columns([DIFF]))
    return Content(delta.num_rows, to_hex(sum_hashes(hashes, delta.column(DIFF).to_numpy())))
