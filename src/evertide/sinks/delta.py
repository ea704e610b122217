"""The Delta sink: a plain Delta table that holds what the collection holds, for any engine to read.

Each transaction is one Delta commit, in which rows that go are deleted and rows that come are added. The commit carries
our number as an application transaction, under the sink's token:

1. Before a write, the number in the table's log is compared: a transaction that is there is skipped (J7).
2. Two commits with the same token cannot both be based on one version: the later one fails, whoever makes it. So a
   predecessor that wakes late changes nothing (I9).
3. The table is made by us, with the number -1. One that is there without our token is not touched.

Rows are told apart by the key, if there is one; a key that does not tell them apart is an error, not a lost row.
Without a key the table is a multiset: all copies of a row of which some go are taken out, and as many as should be left
are put in. Taking rows out rewrites the files that hold them, as in every engine that writes Delta.

A large transaction is handed to the writer batch by batch. Additions need memory for some batches only. Where rows go,
the writer itself joins them with the table in memory.

Options: `path`, a directory or the URL of an object store; `option.<name>`, handed on to its client. On a local disk
what was written is synced before it counts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
from evertide.rows.changes import DIFF, expanded, net
from evertide.rows.conform import conform_table
from evertide.scratch import using_scratch
from evertide.secrets import Secrets
from evertide.sinks.contract import Changes, Prepared, SinkDeclaration

__all__ = ["DeltaSink", "prepare_delta"]

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
    place = options.required("path", "./lake/orders")
    client = options.read_prefixed("option.")
    options.check_unknown()
    for field in declaration.schema:
        if any(each in field.name for each in _UNUSABLE):
            why = f"the column {field.name!r} has a name that a Delta table cannot have: give it another by AS"
            raise InvalidInput(where=options.where, why=why)
        if not _is_known(field.type):
            why = f"the column {field.name!r} is of type {field.type}, which a Delta table cannot hold: cast it"
            raise InvalidInput(where=options.where, why=why)
    target = _Target(declaration, place, client, secrets)
    return Prepared(target.open, target.probe)


def _is_known(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_struct(kind):
        return all(_is_known(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_timestamp(kind):
        return kind.unit == "us" and kind.tz in (None, "UTC")
    return kind in _SIMPLE or pa.types.is_decimal128(kind)


class _Target:
    def __init__(self, declaration: SinkDeclaration, place: str, client: dict[str, str], secrets: Secrets) -> None:
        self.name = declaration.name
        self.key = declaration.key
        self.schema = declaration.schema
        self.description = f"kept by Evertide: the collection {declaration.collection}"
        self.root = None if "://" in place else declaration.base / place
        self.place = place if self.root is None else str(self.root.absolute())
        self._client = client or None
        self._secrets = secrets

    def probe(self) -> None:
        with self.told():
            if self.found() is not None:
                raise self.failed("there is a table already, which this sink did not make: name a place of its own")

    def open(self, token: str) -> DeltaSink:
        with self.told():
            table = self.found()
            if table is None:
                table = self._made(token)
            elif table.transaction_version(token) is None:
                raise self.failed("there is a table already, which this sink did not make: name a place of its own")
            self._fit(table)
            return DeltaSink(self, table, token)

    def found(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.place, storage_options=self._client)
        except TableNotFoundError:
            return None

    def _made(self, token: str) -> DeltaTable:
        if self.root is not None and not self.root.absolute().parent.is_dir():
            raise self.failed("the directory that it should lie in is not there")
        return DeltaTable.create(
            self.place,
            self.schema,
            mode="error",
            description=self.description,
            storage_options=self._client,
            commit_properties=_numbered(token, -1),
        )

    def _fit(self, table: DeltaTable) -> None:
        """Columns that are new are added, if they may be NULL; what else differs needs another table."""
        wanted = DeltaSchema.from_arrow(self.schema).fields
        have = table.schema().fields
        if have != wanted[: len(have)] or not all(field.nullable for field in wanted[len(have) :]):
            why = (
                "the collection's columns are no longer those of the table: give the sink another name and another path"
            )
            raise self.failed(why)
        if len(wanted) > len(have):
            table.alter.add_columns(wanted[len(have) :])

    def failed(self, why: str) -> SinkFailed:
        return SinkFailed(sink=self.name, where=self._secrets.hide(self.place), why=self._secrets.hide(why))

    @contextmanager
    def told(self) -> Iterator[None]:
        try:
            yield
        except SinkFailed:
            raise
        except Exception as error:  # the package raises plain ones, too: all say what the target did wrong
            text = str(error).partition("\n   0:")[0]
            raise self.failed(f"{type(error).__name__}: {' '.join(text.split())}") from error


class DeltaSink:
    remembers = True

    def __init__(self, target: _Target, table: DeltaTable, token: str) -> None:
        self.name = target.name
        self._target = target
        self._table = table
        self._token = token

    def last(self) -> int | None:
        with self._target.told():
            number = self._number()
        return None if number < 0 else number

    def write(self, time: int, changes: Changes) -> None:
        with self._target.told():
            self._table.update_incremental()
            if self._number() >= time:
                return
            with self._rows(changes) as rows:
                if changes.is_addition:
                    write_deltalake(self._table, rows, mode="append", commit_properties=_numbered(self._token, time))
                else:
                    self._merge(time, rows, is_large=changes.whole is None)
            self._sync()

    def close(self) -> None:
        pass

    def _number(self) -> int:
        number = self._table.transaction_version(self._token)
        if number is None:
            raise self._target.failed("the table was replaced by another one: name a place of its own")
        return number

    @contextmanager
    def _rows(self, changes: Changes) -> Iterator[pa.RecordBatchReader]:
        """What the package is given. Of a large transaction it reads batch after batch, by way of a temporary file."""
        names = [*self._target.schema]
        schema = pa.schema(names if changes.is_addition else [*names, _OP_FIELD])
        make = self._added if changes.is_addition else self._sources
        batches = (batch for piece in changes for table in make(piece) for batch in table.to_batches())
        if changes.whole is not None:
            yield pa.Table.from_batches([*batches], schema).to_reader()
            return
        with tempfile.TemporaryFile() as file:
            with using_scratch():
                with ipc.new_stream(file, schema, options=ipc.IpcWriteOptions(compression="lz4")) as stream:
                    for batch in batches:
                        stream.write_batch(batch)
                file.seek(0)
            yield ipc.open_stream(file)

    def _added(self, piece: pa.Table) -> Iterator[pa.Table]:
        """The rows that come, each as often as it does."""
        added = piece.filter(pc.greater(piece[DIFF], 0))
        return expanded(self._keyed(added) if self._target.key else added, self.name)

    def _sources(self, piece: pa.Table) -> Iterator[pa.Table]:
        """Rows to take out, and rows to put in."""
        removed = piece.filter(pc.less(piece[DIFF], 0))
        if self._target.key:
            come: Iterable[pa.Table] = self._added(piece)
            self._keyed(removed)
        else:
            # All copies of the rows that are removed go; those that remain come again, with the new ones.
            added = piece.filter(pc.greater(piece[DIFF], 0))
            come = expanded(pa.concat_tables([self._rest(removed), added]), self.name)
        yield _marked(removed.drop_columns([DIFF]), _OUT)
        yield from (_marked(rows, _IN) for rows in come)

    def _merge(self, time: int, source: pa.RecordBatchReader, *, is_large: bool) -> None:
        """One commit: what matches a row of `_OUT` goes, and rows of `_IN` come, which match nothing."""
        names = self._target.schema.names
        match = self._target.key or tuple(names)
        same = " AND ".join(f"(t.{_quoted(column)} IS NOT DISTINCT FROM s.{_quoted(column)})" for column in match)
        merge = self._table.merge(
            source if is_large else source.read_all(),
            f"{same} AND s.{_quoted(_OP)} = '{_OUT}'",
            source_alias="s",
            target_alias="t",
            streamed_exec=is_large,  # otherwise files which hold none of these rows are skipped
            commit_properties=_numbered(self._token, time),
        )
        columns = {_quoted(column): f"s.{_quoted(column)}" for column in names}
        merge.when_matched_delete().when_not_matched_insert(columns, f"s.{_quoted(_OP)} = '{_IN}'").execute()

    def _keyed(self, changes: pa.Table) -> pa.Table:
        key = [*self._target.key]
        once = pc.all(pc.equal(pc.abs(changes[DIFF]), 1)).as_py() is not False
        if not once or changes.group_by(key).aggregate([]).num_rows != changes.num_rows:
            raise self._target.failed(f"the key {key} does not tell the rows apart: name other columns, or none")
        return changes

    def _rest(self, removed: pa.Table) -> pa.Table:
        """What is left of the rows that are removed. The table must hold at least as many."""
        dataset = self._table.to_pyarrow_dataset(as_large_types=False)
        rest = [removed]
        for batch in dataset.to_batches(columns=removed.schema.names[:-1], filter=_may_be(removed)):
            rows = conform_table(pa.Table.from_batches([batch]), pa.schema([*removed.schema][:-1]))
            counted = rows.append_column(removed.schema.field(DIFF), pa.array(np.ones(rows.num_rows, np.int64)))
            rest.append(_only(net(counted, self.name), removed, self.name))
        left = net(pa.concat_tables(rest), self.name)
        lacking = pc.sum(pc.less(left[DIFF], 0)).as_py()
        if lacking:
            why = f"{lacking} rows that are to be removed are not in the table: somebody else changed it"
            raise self._target.failed(why)
        return left

    def _sync(self) -> None:
        """The package does not. Data first, then the log, then their names."""
        root = self._target.root
        if root is None:
            return
        log = root / "_delta_log" / f"{self._table.version():020d}.json"
        actions = [msgspec.json.decode(line, type=_Action) for line in log.read_bytes().splitlines()]
        files = [root / action.add.path for action in actions if action.add is not None]
        for path in (*files, log, log.parent, root):
            _synced(path)


def _numbered(token: str, time: int) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(token, time)])


def _marked(rows: pa.Table, op: str) -> pa.Table:
    return rows.append_column(_OP_FIELD, pa.repeat(pa.scalar(op), rows.num_rows))


def _may_be(rows: pa.Table) -> pc.Expression | None:
    """Which rows of the table are worth a look, by the first column that can be compared."""
    for field in rows.schema:
        if field.name != DIFF and (pa.types.is_integer(field.type) or pa.types.is_string(field.type)):
            values = rows[field.name].combine_chunks().unique()
            return pc.field(field.name).isin(values.drop_null()) | pc.field(field.name).is_null()
    return None


def _only(rows: pa.Table, wanted: pa.Table, where: str) -> pa.Table:
    """The rows that are among the wanted ones: those that do not vanish if each of the wanted is there in excess."""
    flood = np.full(wanted.num_rows, -(1 << 40), np.int64)
    against = wanted.set_column(wanted.num_columns - 1, wanted.schema.field(DIFF), pa.array(flood))
    mixed = net(pa.concat_tables([rows, against]), where)
    diffs = mixed[DIFF].to_numpy()
    at = np.flatnonzero((diffs < 0) & (diffs > -(1 << 40)))
    found = mixed.take(pa.array(at))
    return found.set_column(found.num_columns - 1, wanted.schema.field(DIFF), pa.array(diffs[at] + (1 << 40)))


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


def _synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
