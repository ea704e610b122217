"""Arrangements: collections inside the engine, indexed by a key, so that a delta finds its matches.

Recent rows are in memory, others in parts on the blob (`evertide.flow.state.state_part`); both are runs of one spine
(`evertide.flow.state.spine`). A manifest names all parts; the owner stores it in its checkpoint.

A look-up takes these steps:

1. The keys become words (`evertide.flow.state.keys`), which are searched for in every run. In parts, the index selects
   the row groups to read, and only the needed columns are decoded.
2. The keys of the found rows are verified.
3. Diffs are summed over the requested columns. A sum below 0 is damage: a delta removed a row that did not exist.

Rules for the owner:

1. `apply`, `lookup` and `scan` are for the one thread that owns the transactions; `maintain` may run beside them.
2. An arrangement does not retry. A call that failed changed nothing, and may be repeated.
3. An arrangement never deletes parts, since a manifest may name them: `released` has the keys of unused parts. Delete
   them between transactions, since a look-up that began earlier may still read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from evertide.errors import Damaged, Unexpected
from evertide.flow.state.block import RowBlock, merge_blocks, sum_diffs
from evertide.flow.state.lookup import WantedKeys
from evertide.flow.state.manifest import ArrangementManifest
from evertide.flow.state.merge import merge
from evertide.flow.state.part_reader import PartShelf
from evertide.flow.state.row_groups import RowGroupCache
from evertide.flow.state.runs import DeltaRun, PartRun
from evertide.flow.state.spine import ArrangementSettings, Spine
from evertide.flow.state.state_part import PartEntry, check_schema, verify_part
from evertide.flow.state.table_blocks import check_columns, check_key, make_block, make_table
from evertide.rows.changes import DIFF_FIELD
from evertide.rows.columns import to_array
from evertide.store.blob import Blob
from evertide.store.paths import Name, state_part_key
from evertide.threads.stopping import IsStopping, never_stopping

__all__ = ["Arrangement"]


class Arrangement:
    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        key: tuple[str, ...],
        *,
        blob: Blob,
        cache: RowGroupCache,
        new_name: Callable[[], Name],
        settings: ArrangementSettings | None = None,
        parts: Sequence[PartRun] = (),
    ) -> None:
        """`new_name` returns unique names of parts. `parts` is for `restore`."""
        self.name = name
        self.schema = schema
        self.key = tuple(key)
        self._where = f"arrangement {name!r}"
        check_schema(schema, self._where)
        check_key(schema, self.key, self._where)
        self._key_schema = pa.schema([schema.field(column) for column in self.key])
        self._changes = pa.schema([*schema, DIFF_FIELD])
        self._by = frozenset(self.key or schema.names)
        self._shelf = PartShelf(blob, cache, schema)
        settings = settings or ArrangementSettings()
        self._spine = Spine(
            schema,
            self._shelf,
            lambda: state_part_key(name, new_name()),
            settings=settings,
            where=self._where,
            parts=parts,
        )

    @classmethod
    def restore(
        cls,
        manifest: ArrangementManifest,
        *,
        blob: Blob,
        cache: RowGroupCache,
        new_name: Callable[[], Name],
        settings: ArrangementSettings | None = None,
        verify: bool = True,
    ) -> Arrangement:
        """Restore a saved arrangement. `verify` reads all parts completely; otherwise only lengths and footers are
        checked. Each row group is verified whenever it is read."""
        manifest.check(f"manifest of arrangement {manifest.name!r}")
        schema = manifest.read_schema()
        shelf = PartShelf(blob, cache, schema)
        for entry in manifest.list_entries():
            if verify:
                verify_part(blob, entry)
            shelf.open(entry)
        runs = [PartRun(entries) for entries in manifest.runs]
        return cls(
            manifest.name,
            schema,
            manifest.key,
            blob=blob,
            cache=cache,
            new_name=new_name,
            settings=settings,
            parts=runs,
        )

    @property
    def rows(self) -> int:
        """The number of stored changes, some of which may cancel out."""
        return sum(run.rows for run in self._spine.runs.list_all())

    @property
    def bytes(self) -> int:
        """Bytes of the runs in memory and of all parts."""
        return sum(run.bytes for run in self._spine.runs.list_all())

    @property
    def released(self) -> list[str]:
        """Keys of unused parts, which the owner removes from the list. Other threads may append to it."""
        return self._spine.released

    def parts(self) -> tuple[PartEntry, ...]:
        return tuple(entry for run in self._spine.runs.list_all() for entry in run.entries)

    def apply(self, delta: pa.Table) -> None:
        """Add a delta, consolidated or not. A large one is checked now, and sorted at its first read."""
        self.prepare(delta)()

    def prepare(self, delta: pa.Table) -> Callable[[], None]:
        """Do all work of `apply` that can fail; the returned call adds the delta.

        So several arrangements apply a transaction together: all are prepared before the first one changes.
        """
        spine = self._spine
        if spine.is_large(delta.num_rows):
            columns = check_columns(delta, self._changes, self._where)
            run = DeltaRun(pa.Table.from_arrays(columns, schema=self._changes), self._make_block)
            spine.bound_memory()
            return partial(spine.defer, run)
        block = self._make_block(delta)
        spine.bound_memory()
        return partial(spine.push, block)

    def _make_block(self, delta: pa.Table) -> RowBlock:
        return make_block(delta, self.schema, self.key, self._where)

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows with these keys: the requested columns and `__diff`, each distinct row once, in any order."""
        schema = self._select_schema(columns)
        arrays = check_columns(keys, self._key_schema, f"{self._where}, keys")
        if keys.num_rows == 0:
            return make_table([], schema)
        if not self.key:
            return self.scan(columns)
        names = schema.names
        wanted = WantedKeys(self.key, arrays)
        needed = names if wanted.is_exact else [*names, *sorted(self._by.difference(names))]
        found = []
        for run in self._spine.runs.list_all():
            block = run.find(wanted.bounds, needed, self._shelf)
            if block is not None:
                found.append(wanted.verify(block).select(names))
        if not found:
            return make_table([], schema)
        block = merge_blocks(
            found, has_key=self._has_key(names), is_consolidated=self._is_whole(names), where=self._where
        )
        return self._check_counts([block], schema)

    def scan(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows: the requested columns and `__diff`, each distinct row once, in any order."""
        schema = self._select_schema(columns)
        names, runs = schema.names, self._spine.runs.list_all()
        if self._has_key(names):
            whole = self._is_whole(names)
            blocks = merge(runs, names, self._shelf, has_key=True, is_consolidated=whole, where=self._where)
            return self._check_counts(list(blocks), schema)
        table = make_table([block for run in runs for block in run.read(names, self._shelf)], schema)
        *arrays, diffs = table.columns
        rows, totals = sum_diffs(arrays, np.asarray(to_array(diffs)), self._where)
        taken = {name: to_array(array.take(pa.array(rows))) for name, array in zip(names, arrays, strict=True)}
        return self._check_counts([RowBlock(totals, totals, taken)], schema)

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        """Merge some runs; any thread may call this. False if there is nothing to do, or `is_stopping`."""
        return self._spine.maintain(is_stopping)

    def compact(self) -> None:
        """Merge all runs into one."""
        self._spine.compact()

    def save(self) -> ArrangementManifest:
        """Write the rows in memory as well. A delta that is applied meanwhile is included completely or not at all."""
        runs = self._spine.save()
        return ArrangementManifest(self.name, self.schema.serialize().to_pybytes(), self.key, runs)

    def _select_schema(self, columns: Sequence[str] | None) -> pa.Schema:
        if columns is None:
            return self.schema
        unknown = [name for name in columns if name not in self.schema.names]
        if unknown or len(set(columns)) != len(columns):
            why = f"the requested columns are {list(columns)}, but must be distinct columns out of {self.schema.names}"
            raise Unexpected(where=self._where, why=why)
        return pa.schema([self.schema.field(name) for name in columns])

    def _has_key(self, names: Sequence[str]) -> bool:
        """Whether rows with equal values in these columns have equal words."""
        return self._by.issubset(names)

    def _is_whole(self, names: Sequence[str]) -> bool:
        """Whether these are all columns, so that a run has each row of them once."""
        return len(names) == len(self.schema.names)

    def _check_counts(self, blocks: Sequence[RowBlock], schema: pa.Schema) -> pa.Table:
        for block in blocks:
            if block.rows and block.diffs.min() < 0:
                at = int(np.argmin(block.diffs))
                row = ", ".join(
                    f"{name}: {array.slice(at, 1).to_string(skip_new_lines=True)}"
                    for name, array in block.columns.items()
                )
                why = (
                    f"the row with {row} has the count {int(block.diffs[at])}: a delta removed a row that did not exist"
                )
                raise Damaged(path=self._where, why=why)
        return make_table([block for block in blocks if block.rows], schema)
