"""Arrangements: collections inside the engine, indexed by a key, so that a delta finds its matches.

Recent rows are in memory, others in parts on the blob (`evertide.flow.state.state_part`); both are runs of one spine
(`evertide.flow.state.spine`). A manifest names all parts; the owner stores it in its checkpoint.

A look-up takes these steps:

1. The keys become words (`evertide.flow.state.key_words`), which are searched for in every run. In parts, the index
   of those that may have a word selects the row groups to read.
2. The keys of the found rows are verified. If the word is the key (a single integer-like column), only `SHARED_WORD`
   needs that. Otherwise each found row is compared with the keys that share its word, nearly always one.
3. The diffs of equal rows are summed. A sum below 0 is damage: a delta removed a row that did not exist.

Rules for the owner:

1. `apply`, `lookup` and `scan` are for the one thread that owns the transactions; `maintain` may run beside them.
2. An arrangement does not retry. A call that failed changed nothing, and may be repeated.
3. An arrangement never deletes parts, since a manifest may name them: `released` has the keys of unused parts. Delete
   them between transactions, since a look-up that began earlier may still read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from evertide.errors import StateInconsistent, UnsupportedFormat
from evertide.flow.state.block import RowBlock, check_columns, check_key, make_block, make_table, merge_blocks
from evertide.flow.state.key_words import SHARED_WORD, canonicalize, compare_keys, hash_keys, is_exact
from evertide.flow.state.merge import merge
from evertide.flow.state.part_reader import CachedParts
from evertide.flow.state.row_groups import RowGroupCache
from evertide.flow.state.runs import DeltaRun, PartRun
from evertide.flow.state.spine import ArrangementSettings, Spine
from evertide.flow.state.state_part import FIRST_VERSION, FORMAT_VERSION, PartEntry, check_schema
from evertide.rows.changes import DIFF_FIELD
from evertide.rows.columns import Longs, sort_distinct
from evertide.store.blob import Blob
from evertide.store.paths import Name, state_part_key
from evertide.threads.stopping import IsStopping, never_stopping


class ArrangementManifest(msgspec.Struct, frozen=True):
    """A saved arrangement, with everything needed to restore it. The owner stores it in its checkpoint.

    Version 2. The entries of version 1 have the index of their part.

    It names every part with its length, checksums and range of words, per run: the words of a run's parts ascend from
    one part to the next.
    """

    name: str
    schema: bytes
    """The collection's columns, as a schema message of Arrow IPC."""
    key: tuple[str, ...]
    runs: tuple[tuple[PartEntry, ...], ...]
    version: int = FORMAT_VERSION

    def read_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    def list_entries(self) -> Iterator[PartEntry]:
        for run in self.runs:
            yield from run

    def check(self, path: str) -> None:
        """`path` is for the error message."""
        if not FIRST_VERSION <= self.version <= FORMAT_VERSION:
            raise UnsupportedFormat(path=path, found=self.version, supported=FORMAT_VERSION)


class Arrangement:
    """The rows of a collection, indexed by a key."""

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
        self._cached_parts = CachedParts(blob, cache, schema)
        settings = settings or ArrangementSettings()
        self._spine = Spine(
            schema,
            self._cached_parts,
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
    ) -> Arrangement:
        """Restore a saved arrangement, without reading its parts: each is verified when it is read."""
        manifest.check(f"manifest of arrangement {manifest.name!r}")
        schema = manifest.read_schema()
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

    def adopt(self, runs: Sequence[PartRun]) -> None:
        """Add runs whose parts executors have stored."""
        self._spine.adopt(runs)

    def _make_block(self, delta: pa.Table) -> RowBlock:
        return make_block(delta, self.schema, self.key, self._where)

    def lookup(self, keys: pa.Table) -> pa.Table:
        """The rows with these keys, with `__diff`, each distinct row once, in any order."""
        arrays = check_columns(keys, self._key_schema, f"{self._where}, keys")
        if keys.num_rows == 0:
            return make_table([], self.schema)
        if not self.key:
            return self.scan()
        runs = self._spine.runs.list_all()
        if not runs:
            return make_table([], self.schema)
        wanted = WantedKeys(self.key, arrays)
        blocks = [run.find(wanted.bounds, self._cached_parts) for run in runs]
        found = [wanted.verify(block) for block in blocks if block is not None]
        return self._check_counts([merge_blocks(found, self._where)] if found else [])

    def scan(self) -> pa.Table:
        """All rows, with `__diff`, each distinct row once, in any order."""
        return self._check_counts(list(merge(self._spine.runs.list_all(), self._cached_parts, self._where)))

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        """Merge some runs; any thread may call this. False if there is nothing to do, or `is_stopping`."""
        return self._spine.maintain(is_stopping)

    def save(self) -> ArrangementManifest:
        """Write the rows in memory as well. A delta that is applied meanwhile is included completely or not at all."""
        runs = self._spine.save()
        return ArrangementManifest(self.name, self.schema.serialize().to_pybytes(), self.key, runs)

    def _check_counts(self, blocks: Sequence[RowBlock]) -> pa.Table:
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
                raise StateInconsistent(where=self._where, why=why)
        return make_table([block for block in blocks if block.rows], self.schema)


class WantedKeys:
    """The keys of one look-up, as words to search for and as values to verify what was found."""

    def __init__(self, names: Sequence[str], arrays: Sequence[Any]) -> None:
        """The key's columns, of at least one row."""
        self._names = names
        self._arrays = arrays
        self._all_words = hash_keys(pa.Table.from_arrays(list(arrays), names=list(names)))
        self._words = sort_distinct(self._all_words)
        self.bounds = np.empty(2 * len(self._words), np.int64)
        self.bounds[::2] = self._words
        self.bounds[1::2] = self._words + 1
        self.is_exact = is_exact([array.type for array in arrays]) and self._words[-1] != SHARED_WORD
        self._sorted: tuple[list[Any], Longs, Longs] | None = None

    def verify(self, block: RowBlock) -> RowBlock:
        """The rows of a block with one of the keys; all rows have a word of the keys."""
        if self.is_exact:
            return block
        keys, starts, counts = self._sort_keys()
        found = [canonicalize(block.columns[name]) for name in self._names]
        at = np.searchsorted(self._words, block.words)
        matches = compare_keys(found, _take(keys, starts[at]))
        step = 1
        while len(rest := np.flatnonzero(~matches & (counts[at] > step))):
            matches[rest] = compare_keys(_take(found, rest), _take(keys, starts[at[rest]] + step))
            step += 1
        return block if matches.all() else block.take(np.flatnonzero(matches))

    def _sort_keys(self) -> tuple[list[Any], Longs, Longs]:
        """The keys in the order of their words, and per word their start and number."""
        if self._sorted is None:
            order = np.argsort(self._all_words, kind="stable")
            keys = _take([canonicalize(array) for array in self._arrays], order)
            words = self._all_words[order]
            if len(words) > len(self._words):
                # Remove repeated keys, so that rows are not compared with them repeatedly.
                firsts = np.searchsorted(words, words)
                kept = ~compare_keys(keys, _take(keys, firsts))
                kept[firsts] = True
                rows = np.flatnonzero(kept)
                keys, words = _take(keys, rows), words[rows]
            starts = np.searchsorted(words, self._words)
            self._sorted = keys, starts, np.diff(np.append(starts, len(words)))
        return self._sorted


def _take(arrays: Sequence[Any], rows: Longs) -> list[Any]:
    indices = pa.array(rows)
    return [array.take(indices) for array in arrays]
