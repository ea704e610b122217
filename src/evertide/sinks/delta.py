"""The Delta sink: a Delta table with the content of the collection, for any engine to read.

Each transaction is one Delta commit, which deletes and adds rows. The commit stores the transaction number as an
application transaction, under the sink token:

1. Before a write, the sink compares the number in the table's log, and skips a transaction that the table has (J7).
2. Of two commits with the same token on the same version, the later one fails. So an earlier process of the sink that
   resumes later changes nothing (I9).
3. The sink creates the table, with the number -1. It does not write to a table without its token.
4. Rows are identified by the key, if there is one; a key with several rows is an error. Without a key the table is a
   multiset: all copies of a removed row are deleted, and the remaining ones are added again. Deleting rows rewrites
   the files that hold them, as in every engine that writes Delta.
5. A large transaction is written batch by batch from temporary files. If it removes rows, the sink replaces the files
   that hold them (`evertide.sinks.delta_rewrite`): a merge by the Delta package holds all removed rows in memory. The
   memory needed does not depend on the transaction or the table.

Options: `path`, a directory or the URL of an object store; `option.<name>`, passed to the client of the object store.
On a local disk, written files are synced before the transaction counts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import TableNotFoundError
from pyarrow import ipc

from evertide.errors import InvalidInput, SinkFailed
from evertide.rows.changes import DIFF, consolidate_delta, expand_in_tables
from evertide.rows.utf8 import replace_invalid_utf8
from evertide.scratch import using_scratch
from evertide.secrets import Secrets
from evertide.sinks.contract import Changes, Prepared, SinkDeclaration, explain_invalid_key
from evertide.sinks.delta_files import TableFiles, make_ranges
from evertide.sinks.delta_rewrite import Rewrite

_OP = "__op"
_OP_FIELD = pa.field(_OP, pa.string(), nullable=False)
_OUT, _IN = "out", "in"
_UNUSABLE = " ,;{}()\n\t="
"""Characters that engines refuse in the columns of a Delta table."""

_SIMPLE = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.bool_(), pa.date32()),
)


class _Add(msgspec.Struct):
    path: str


class _Action(msgspec.Struct):
    add: _Add | None = None


def prepare_delta(declaration: SinkDeclaration) -> Prepared:
    secrets = Secrets(declaration.base)
    options = declaration.read_options(secrets)
    place = options.require("path", "./lake/orders")
    client = options.read_prefixed("option.")
    options.check_unknown()
    for field in declaration.schema:
        if any(each in field.name for each in _UNUSABLE):
            why = f"a Delta table cannot have a column named {field.name!r}; rename the column with AS"
            raise InvalidInput(where=options.where, why=why)
        if not _can_store(field.type):
            why = f"column {field.name!r} is {field.type}, which a Delta table cannot store; cast the column"
            raise InvalidInput(where=options.where, why=why)
    target = _DeltaTarget(declaration, place, client, secrets)
    return Prepared(target.open, target.probe)


def _can_store(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_struct(kind):
        return all(_can_store(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_timestamp(kind):
        return kind.unit == "us" and kind.tz in (None, "UTC")
    return kind in _SIMPLE or pa.types.is_decimal128(kind)


class _DeltaTarget:
    def __init__(self, declaration: SinkDeclaration, place: str, client: dict[str, str], secrets: Secrets) -> None:
        self.name = declaration.name
        self.runtime = declaration.runtime
        self.key = declaration.key
        self.schema = declaration.schema
        self.description = f"kept by Evertide: the collection {declaration.collection}"
        self.root = None if "://" in place else declaration.base / place
        self.place = place if self.root is None else str(self.root.absolute())
        self._client = client or None
        self._secrets = secrets

    def probe(self) -> None:
        with self.convert_errors():
            if self._load() is not None:
                raise self.failure("the path has a table that this sink did not create; set another path")

    def open(self, token: str) -> DeltaSink:
        with self.convert_errors():
            table = self._load()
            if table is None:
                table = self._create(token)
            elif table.transaction_version(token) is None:
                raise self.failure("the path has a table that this sink did not create; set another path")
            self._add_new_columns(table)
            return DeltaSink(self, table, token)

    def _load(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.place, storage_options=self._client)
        except TableNotFoundError:
            return None

    def _create(self, token: str) -> DeltaTable:
        if self.root is not None and not self.root.absolute().parent.is_dir():
            raise self.failure("the parent directory does not exist; create it")
        return DeltaTable.create(
            self.place,
            self.schema,
            mode="error",
            description=self.description,
            storage_options=self._client,
            commit_properties=_commit_properties(token, -1),
        )

    def _add_new_columns(self, table: DeltaTable) -> None:
        """Add new columns, which must be nullable; any other difference needs another table."""
        wanted = DeltaSchema.from_arrow(self.schema).fields
        have = table.schema().fields
        if have != wanted[: len(have)] or not all(field.nullable for field in wanted[len(have) :]):
            why = "the collection's columns no longer match the table's; give the sink another name and path"
            raise self.failure(why)
        if len(wanted) > len(have):
            table.alter.add_columns(wanted[len(have) :])

    def sync(self, paths: Iterable[str]) -> None:
        """Sync data files of a table on a local disk, and their names."""
        if self.root is not None:
            for path in paths:
                _sync_path(self.root / path)
            _sync_path(self.root)

    def failure(self, why: str) -> SinkFailed:
        return SinkFailed(sink=self.name, where=self._secrets.hide(self.place), why=self._secrets.hide(why))

    @contextmanager
    def convert_errors(self) -> Iterator[None]:
        try:
            yield
        except SinkFailed:
            raise
        except Exception as error:  # the package also raises built-in errors; all are failures of the target
            text = str(error).partition("\n   0:")[0]
            raise self.failure(f"{type(error).__name__}: {' '.join(text.split())}") from error


class DeltaSink:
    keeps_number = True

    def __init__(self, target: _DeltaTarget, table: DeltaTable, token: str) -> None:
        self.name = target.name
        self._target = target
        self._table = table
        self._token = token

    def last(self) -> int | None:
        with self._target.convert_errors():
            number = self._read_number()
            with suppress(FileNotFoundError):  # the newest version may be another writer's, whose files can be gone
                self._sync()  # an earlier process may have ended between its commit and this
        return None if number < 0 else number

    def write(self, time: int, changes: Changes) -> None:
        with self._target.convert_errors():
            self._table.update_incremental()
            if self._read_number() >= time:
                return
            properties = _commit_properties(self._token, time)
            if changes.whole is not None and not changes.is_addition:
                self._merge(changes.whole, properties)
            elif changes.is_addition:
                self._append(changes, properties)
            else:
                self._rewrite(changes, _commit_properties(self._token, time, retries=0))
            self._sync()

    def close(self) -> None:
        pass

    def _read_number(self) -> int:
        number = self._table.transaction_version(self._token)
        if number is None:
            raise self._target.failure("another table has replaced the sink's table; restore it, or set another path")
        return number

    @contextmanager
    def _spool(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatchReader]:
        """The rows for the Delta writer, which reads them batch by batch from a temporary file."""
        with ExitStack() as stack:
            with using_scratch():
                file = stack.enter_context(tempfile.TemporaryFile())
                stream = ipc.new_stream(file, self._target.schema, options=ipc.IpcWriteOptions(compression="lz4"))
            for batch in batches:
                with using_scratch():
                    stream.write_batch(batch)
            with using_scratch():
                stream.close()
                file.seek(0)
                reader = ipc.open_stream(file)
            yield reader

    def _iterate_added(
        self, changes: Changes, remove: Callable[[pa.Table], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The added rows, batch by batch. `remove` receives the removed ones."""
        for piece in changes:
            valid = self._replace_texts(piece)
            if remove is not None:
                remove(self._find_removed_rows(valid))
            for table in self._expand_added_rows(valid):
                yield from table.to_batches()

    def _replace_texts(self, piece: pa.Table) -> pa.Table:
        """The changes in valid UTF-8: the Delta writer could not read other texts again."""
        valid = replace_invalid_utf8(piece)
        if valid is piece:
            return piece
        if why := explain_invalid_key(piece, self._target.key):
            raise self._target.failure(why)
        return consolidate_delta(valid, self.name)

    def _expand_added_rows(self, piece: pa.Table) -> Iterator[pa.Table]:
        """The added rows, each as often as it occurs."""
        added = piece.filter(pc.greater(piece[DIFF], 0))
        return expand_in_tables(self._check_key(added) if self._target.key else added, self.name)

    def _find_removed_rows(self, piece: pa.Table) -> pa.Table:
        removed = piece.filter(pc.less(piece[DIFF], 0))
        return self._check_key(removed) if self._target.key else removed

    def _append(self, changes: Changes, properties: CommitProperties) -> None:
        batches = self._iterate_added(changes)
        with ExitStack() as stack:
            if changes.whole is None:
                rows = stack.enter_context(self._spool(batches))
            else:
                rows = pa.RecordBatchReader.from_batches(self._target.schema, [*batches])
            write_deltalake(self._table, rows, mode="append", commit_properties=properties)

    def _rewrite(self, changes: Changes, properties: CommitProperties) -> None:
        """One commit of a transaction that may be larger than memory, with removed rows."""
        target = self._target
        now_ms = int(target.runtime.wall_s() * 1000)
        with Rewrite(self._table, target.schema, target.key, target.failure) as rewrite:
            batches = chain(self._iterate_added(changes, rewrite.remove), rewrite.read_kept(now_ms))
            with self._spool(batches) as rows:
                rewrite.commit(rows, properties, target.sync)

    def _merge(self, changes: pa.Table, properties: CommitProperties) -> None:
        """One commit: delete the rows that match a row of `_OUT`, and insert the rows of `_IN`, which match nothing."""
        names = self._target.schema.names
        match = self._target.key or tuple(names)
        same = " AND ".join(f"(t.{_quote(column)} IS NOT DISTINCT FROM s.{_quote(column)})" for column in match)
        merge = self._table.merge(
            pa.concat_tables(self._make_merge_rows(self._replace_texts(changes))),
            f"{same} AND s.{_quote(_OP)} = '{_OUT}'",
            source_alias="s",
            target_alias="t",
            streamed_exec=False,  # without streaming, the merge skips files that have no matching row
            commit_properties=properties,
        )
        columns = {_quote(column): f"s.{_quote(column)}" for column in names}
        merge.when_matched_delete().when_not_matched_insert(columns, f"s.{_quote(_OP)} = '{_IN}'").execute()

    def _make_merge_rows(self, changes: pa.Table) -> Iterator[pa.Table]:
        """The rows to delete, and the rows to add, each with its `_OP`."""
        removed = self._find_removed_rows(changes)
        if self._target.key:
            added_rows: Iterable[pa.Table] = self._expand_added_rows(changes)
        else:
            # Delete all copies of removed rows; add the remaining copies again, with the new rows.
            added = changes.filter(pc.greater(changes[DIFF], 0))
            added_rows = expand_in_tables(pa.concat_tables([self._count_remaining(removed), added]), self.name)
        yield _with_op(removed.drop_columns([DIFF]), _OUT)
        yield from (_with_op(rows, _IN) for rows in added_rows)

    def _check_key(self, changes: pa.Table) -> pa.Table:
        key = [*self._target.key]
        once = pc.all(pc.equal(pc.abs(changes[DIFF]), 1)).as_py() is not False
        if not once or changes.group_by(key).aggregate([]).num_rows != changes.num_rows:
            why = f"the key ({', '.join(key)}) has several rows; set the option 'key' to columns that identify a row"
            raise self._target.failure(why)
        return changes

    def _count_remaining(self, removed: pa.Table) -> pa.Table:
        """The copies of removed rows that remain in the table."""
        schema = pa.schema([*removed.schema][:-1])
        ranges = make_ranges(schema, schema.names)
        for each in ranges:
            each.add(removed)
        condition = _make_filter(removed)
        rest = [removed]
        for _, stored in TableFiles(self._table, schema, ranges).read_all(schema.names):
            rows = stored if condition is None else stored.filter(condition)
            counted = rows.append_column(removed.schema.field(DIFF), pa.array(np.ones(rows.num_rows, np.int64)))
            rest.append(_intersect(consolidate_delta(counted, self.name), removed, self.name))
        left = consolidate_delta(pa.concat_tables(rest), self.name)
        lacking = pc.sum(pc.less(left[DIFF], 0)).as_py()
        if lacking:
            why = f"{lacking} rows to be removed are not in the table: another writer changed it"
            raise self._target.failure(why)
        return left

    def _sync(self) -> None:
        """Sync the data files, then the log, then the directories; the Delta writer does not."""
        root = self._target.root
        if root is None:
            return
        log = root / "_delta_log" / f"{self._table.version():020d}.json"
        actions = [msgspec.json.decode(line, type=_Action) for line in log.read_bytes().splitlines()]
        self._target.sync([action.add.path for action in actions if action.add is not None])
        _sync_path(log)
        _sync_path(log.parent)


def _commit_properties(token: str, time: int, retries: int | None = None) -> CommitProperties:
    """With no retries, the commit fails if there is another one after the version that the table object has."""
    return CommitProperties(app_transactions=[Transaction(token, time)], max_commit_retries=retries)


def _with_op(rows: pa.Table, op: str) -> pa.Table:
    return rows.append_column(_OP_FIELD, pa.repeat(pa.scalar(op), rows.num_rows))


def _make_filter(rows: pa.Table) -> pc.Expression | None:
    """A filter for rows of the table that may equal one of `rows`, by the first column that can be compared."""
    for field in rows.schema:
        if field.name != DIFF and (pa.types.is_integer(field.type) or pa.types.is_string(field.type)):
            values = rows[field.name].combine_chunks().unique()
            return pc.field(field.name).isin(values.drop_null()) | pc.field(field.name).is_null()
    return None


def _intersect(rows: pa.Table, wanted: pa.Table, where: str) -> pa.Table:
    """The rows that are also in `wanted`. Subtracting a huge count of each wanted row marks those that occur."""
    marks = np.full(wanted.num_rows, -(1 << 40), np.int64)
    against = wanted.set_column(wanted.num_columns - 1, wanted.schema.field(DIFF), pa.array(marks))
    mixed = consolidate_delta(pa.concat_tables([rows, against]), where)
    diffs = mixed[DIFF].to_numpy()
    at = np.flatnonzero((diffs < 0) & (diffs > -(1 << 40)))
    found = mixed.take(pa.array(at))
    return found.set_column(found.num_columns - 1, wanted.schema.field(DIFF), pa.array(diffs[at] + (1 << 40)))


def _quote(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
