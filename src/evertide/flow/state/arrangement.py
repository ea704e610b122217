"""Arrangements: a collection inside the engine, indexed by a key, so that a delta finds its matches.

Where it lies: recent rows in memory, the rest as parts on the blob (`evertide.flow.state.state_part`); both are runs of
one spine (`evertide.flow.state.spine`). A manifest names all parts, and belongs into the owner's checkpoint.

A lookup takes these steps:

1. The keys become words (`evertide.flow.state.keys`), which are searched for in every run: in memory at once, in parts
   through the index, so that only row groups that may hold one are fetched, and only the columns needed decoded.
2. The keys of what was found are verified.
3. The rows are summed over the columns wanted. A sum below 0 is damage: somebody took back what was never there.

What the owner has to know:

1. `apply`, `lookup` and `scan` are for the one thread that owns the transactions; `maintain` may run beside them.
2. Nothing is retried in here: a call that failed changed nothing, and may be made again.
3. Parts are never deleted here, since a manifest may name them: `released` collects the keys of those no longer used. A
   lookup that began before may still read them, so delete between transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa

from evertide.errors import Damaged, InvalidInput
from evertide.flow.state.block import Block, merge_blocks, sum_diffs
from evertide.flow.state.lookup import WantedKeys
from evertide.flow.state.manifest import Manifest
from evertide.flow.state.merge import merge
from evertide.flow.state.part_reader import PartShelf
from evertide.flow.state.row_groups import RowGroupCache
from evertide.flow.state.runs import DeltaRun, PartRun
from evertide.flow.state.spine import ArrangementSettings, Spine
from evertide.flow.state.state_part import PartEntry, check_schema, verify_part
from evertide.flow.state.table_blocks import DIFF_FIELD, check_columns, check_key, make_block, make_table
from evertide.rows.columns import one_chunk
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
        """`new_name` names a new part as nobody did, with the writer's id and a count. `parts` is for `restore`."""
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
        manifest: Manifest,
        *,
        blob: Blob,
        cache: RowGroupCache,
        new_name: Callable[[], Name],
        settings: ArrangementSettings | None = None,
        verify: bool = True,
    ) -> Arrangement:
        """What was saved. `verify` reads every part whole. Without it, now only that all parts are there, with their
        length and a footer that is right; each row group is verified when it is fetched in any case."""
        manifest.check(f"manifest of arrangement {manifest.name!r}")
        schema = manifest.arrow_schema()
        shelf = PartShelf(blob, cache, schema)
        for entry in manifest.entries():
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
        """Stored changes, of which some may take back others."""
        return sum(run.rows for run in self._spine.runs.all())

    @property
    def bytes(self) -> int:
        """Of the runs in memory and of the parts of all others."""
        return sum(run.bytes for run in self._spine.runs.all())

    @property
    def released(self) -> list[str]:
        """Keys of parts that are no longer used, to be taken out by the owner. Grows beside other threads."""
        return self._spine.released

    def parts(self) -> tuple[PartEntry, ...]:
        return tuple(entry for run in self._spine.runs.all() for entry in run.entries)

    def apply(self, delta: pa.Table) -> None:
        """Add a delta, consolidated or not. A large one is checked now, and put in order when it is needed."""
        self.prepare(delta)()

    def prepare(self, delta: pa.Table) -> Callable[[], None]:
        """Do all of `apply` that storage, the system or the delta can make fail; the call that is returned adds it.

        So several arrangements take a transaction in together: all are prepared before the first one changes.
        """
        spine = self._spine
        if spine.is_large(delta.num_rows):
            columns = check_columns(delta, self._changes, self._where)
            run = DeltaRun(pa.Table.from_arrays(columns, schema=self._changes), self._block_of)
            spine.bound_memory()
            return partial(spine.defer, run)
        block = self._block_of(delta)
        spine.bound_memory()
        return partial(spine.push, block)

    def _block_of(self, delta: pa.Table) -> Block:
        return make_block(delta, self.schema, self.key, self._where)

    def adopt(self, parts: Sequence[PartEntry]) -> None:
        """Add parts written elsewhere, each sorted and consolidated (`write_part`). Equal rows in several add up."""
        entries = sorted((entry for entry in parts if entry.rows), key=lambda entry: entry.word_min)
        if all(one.word_max < other.word_min for one, other in pairwise(entries)):
            self._spine.adopt([PartRun(tuple(entries))] if entries else [])
        else:
            self._spine.adopt([PartRun((entry,)) for entry in entries])

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows under these keys: the columns wanted and `__diff`, each distinct row of them once, in any order."""
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
        for run in self._spine.runs.all():
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
        """The whole content: the columns wanted and `__diff`, each distinct row of them once, in any order."""
        schema = self._select_schema(columns)
        names, runs = schema.names, self._spine.runs.all()
        if self._has_key(names):
            whole = self._is_whole(names)
            blocks = merge(runs, names, self._shelf, has_key=True, is_consolidated=whole, where=self._where)
            return self._check_counts(list(blocks), schema)
        table = make_table([block for run in runs for block in run.read(names, self._shelf)], schema)
        *arrays, diffs = table.columns
        rows, totals = sum_diffs(arrays, np.asarray(one_chunk(diffs)), self._where)
        taken = {name: one_chunk(array.take(pa.array(rows))) for name, array in zip(names, arrays, strict=True)}
        return self._check_counts([Block(totals, totals, taken)], schema)

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        """One step towards few runs, for any thread; False if there is nothing to do, or who asked for it stops."""
        return self._spine.maintain(is_stopping)

    def compact(self) -> None:
        """Merge everything into one run now."""
        self._spine.compact()

    def save(self) -> Manifest:
        """Write what is in memory too. Deltas applied meanwhile may be in it or not, each as a whole."""
        runs = self._spine.save()
        return Manifest(self.name, self.schema.serialize().to_pybytes(), self.key, runs)

    def _select_schema(self, columns: Sequence[str] | None) -> pa.Schema:
        if columns is None:
            return self.schema
        unknown = [name for name in columns if name not in self.schema.names]
        if unknown or len(set(columns)) != len(columns):
            why = f"{list(columns)} must name each column once, out of {self.schema.names}"
            raise InvalidInput(where=f"{self._where}, columns wanted", why=why)
        return pa.schema([self.schema.field(name) for name in columns])

    def _has_key(self, names: Sequence[str]) -> bool:
        """Whether rows that are equal in these columns have equal words."""
        return self._by.issubset(names)

    def _is_whole(self, names: Sequence[str]) -> bool:
        """Whether a run, which holds each row once, does so for these columns too."""
        return len(names) == len(self.schema.names)

    def _check_counts(self, blocks: Sequence[Block], schema: pa.Schema) -> pa.Table:
        for block in blocks:
            if block.rows and block.diffs.min() < 0:
                at = int(np.argmin(block.diffs))
                row = ", ".join(
                    f"{name}: {array.slice(at, 1).to_string(skip_new_lines=True)}"
                    for name, array in block.columns.items()
                )
                why = (
                    f"the row with {row} is there {int(block.diffs[at])} times: a delta took back what was never there"
                )
                raise Damaged(path=self._where, why=why)
        return make_table([block for block in blocks if block.rows], schema)
