"""Opens a pipeline on a storage: restore, replay, evolve, complete.

1. *Restore* the newest intact checkpoint. Its cohorts are used for unchanged views; other views are computed from the
   tables. Without an intact checkpoint all views are; the log has an error if the checkpoints are damaged.
2. *Replay* the transactions that are committed but not in the state, with the table deltas of the shards, and compare
   the results with the records (I8).
3. *Evolve* the storage to what the script declares, by one change of generation. New views become members later:
   a backfill computes them while the pipeline runs (`evertide.pipeline.backfill.backfill`).
4. *Complete* the transactions that are bound but not committed, as in a running pipeline.
5. A new pipeline gets an empty transaction, so that its views can be read.

Whether a view is new depends on the definition alone, never on missing state (C5).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import msgspec
import pyarrow as pa

from evertide.checkpoint.publication import RestoredCheckpoint
from evertide.errors import CheckpointDamaged, Conflict, ViewFailed
from evertide.errors.running_errors import name_views
from evertide.journal.records import Input
from evertide.journal.replay import check_replay, check_times
from evertide.observer import TransactionOrigin
from evertide.pipeline.backfill.backfill import HOLD_PREFIX, Backfill, name_backfill_hold
from evertide.pipeline.definition import (
    AwayReason,
    Definition,
    Evolution,
    TableRecord,
    ViewRecord,
    compare_definition,
    is_same_query,
    make_missing_error,
    make_shard_name,
    read_definition,
    to_stored_key,
    to_stored_names,
)
from evertide.pipeline.engine import Cohort, DeclaredTable, Engine
from evertide.pipeline.input.source_positions import assign_sources, is_fed_as_recorded, map_tables_to_sources
from evertide.pipeline.process_context import OnProgress, ProcessContext
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.recovery.damaged_views import mark_unreadable_views_hydrating
from evertide.pipeline.replicas.leadership import Leadership
from evertide.pipeline.replicas.peer_follower import PeerFollower
from evertide.pipeline.sinks.sink_record import find_shards_of_sinks
from evertide.pipeline.state.hydration import (
    ContentDigests,
    check_computable,
    find_differing_views,
    hydrate_cohort,
    hydrate_tables,
    make_view_record,
)
from evertide.pipeline.state.machine import Machine, MachineState
from evertide.pipeline.state.members import Members
from evertide.pipeline.state.table_deltas import ERRORS_SCHEMA, Tables
from evertide.pipeline.state.table_input import align_columns
from evertide.pipeline.transaction.damaged_state import discard_damaged_state
from evertide.pipeline.transaction.portions import PendingChanges
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import ComponentState
from evertide.rows.changes import DIFF
from evertide.store.meta import unseal
from evertide.store.paths import PIPELINE
from evertide.store.retry import retry_read
from evertide.types import Generation, Time

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0


def open_in_role(
    context: ProcessContext, leadership: Leadership, stopping: threading.Event, role: ProcessRole
) -> Runner:
    """Open as the leader if there is none, else as a follower once the leader has committed. Can be retried."""
    context.writer.adopt_generation()
    while not leadership.try_acquire():
        leader, is_read_only = leadership.read_registration(), role is ProcessRole.READ_ONLY
        if context.journal.committed_upper and (leader is not None or is_read_only):
            name = f"process {leader.pid} on {leader.host}" if leader is not None else "no process"
            logger.info("%s leads; this process follows", name)
            return open_follower(context, name, is_read_only=is_read_only)
        stopping.wait(context.settings.poll_interval_s)
    logger.info("this process leads")
    return open_runner(context)


def open_runner(context: ProcessContext) -> Runner:
    _, known = retry_read(lambda: read_definition(context.meta), context.runtime, context.settings)
    evolution = compare_definition(known, context.engine)  # refuses before anything is changed
    if known is not None and mark_unreadable_views_hydrating(
        context.shards, known, context.writer, context.runtime, context.settings
    ):
        _, known = retry_read(lambda: read_definition(context.meta), context.runtime, context.settings)
        evolution = compare_definition(known, context.engine)
    runner = _create(context) if known is None else _restore(context, known, evolution, leads=True)
    take_lead(runner, context.progress)
    return runner


def open_follower(context: ProcessContext, leader: str, *, is_read_only: bool) -> Runner:
    """Open the pipeline as a follower; the storage is not changed.

    Only a read-only follower may have a different script. It maintains the views that both scripts have, and evolves
    the storage when it takes the lead.
    """
    _, known = retry_read(lambda: read_definition(context.meta), context.runtime, context.settings)
    if known is None:
        raise Conflict(
            where=context.meta.path(PIPELINE),
            why=f"{leader} has just started and has not declared its tables yet; retry",
        )
    evolution = compare_definition(known, context.engine)
    if not is_read_only and not (evolution.is_empty() and known.sources == tuple(context.sources)):
        why = f"{leader} runs another version of the script; stop it, or start this process as read-only and promote it"
        raise Conflict(where=context.meta.path(PIPELINE), why=why)
    return _restore(context, known, evolution, leads=False)


def take_lead(runner: Runner, progress: OnProgress) -> None:
    """Evolve the storage to the script, and complete bound transactions."""
    discard_damaged_state(runner)
    runner.remove_lost_views()
    _evolve(
        runner, compare_definition(runner.definition if runner.definition.generation else None, runner.machine.engine)
    )
    if runner.time == 0:
        Backfill(runner, runner.definition.list_away(ComponentState.HYDRATING), nullcontext()).run()
    _complete(runner, progress)
    _finalize_stray_shards(runner)
    if runner.time == 0:
        runner.complete(
            runner.bind({name: Input(source.start, source.start) for name, source in runner.sources.items()})
        )


def _create(context: ProcessContext) -> Runner:
    if context.journal.upper or context.checkpoints.entries():
        raise make_missing_error(context.meta)
    definition = Definition(
        Generation(0), {}, {}, tuple(context.sources), context.engine.fingerprint, context.runtime.new_id()
    )
    context.shards.create(definition.errors, ERRORS_SCHEMA, context.writer)
    return Runner(context, definition, Machine(context.engine, context.store, Tables({}, context.store), [], Time(0)))


def _restore(context: ProcessContext, known: Definition, evolution: Evolution, *, leads: bool) -> Runner:
    for name, table in context.engine.tables.items():
        if table.refused_key:
            logger.warning("table %r keeps its primary key, which no new table may have: %s", name, table.refused_key)
    members = Members(context.shards, known)
    committed, bound = context.journal.committed_upper, context.journal.upper
    changed = {*evolution.tables_new, *evolution.tables_widened, *evolution.tables_redeclared}
    tables = {name: table for name, table in context.engine.tables.items() if name not in changed}
    stable = {name: view for name, view in known.live_views().items() if name not in evolution.views_removed}
    state = _restore_state(context, known, tables, committed)
    late = set() if state is None else {name for name in tables if known.tables[name].shard} - state.shards.keys()
    """Tables that were declared after the checkpoint: their shards have no earlier times."""
    if state is None:
        machine = _rebuild_machine(context, members, tables, stable, Time(committed))
    else:
        before = {name: table for name, table in tables.items() if name not in late}
        machine = _build_machine(context, before, stable, state)
    runner = Runner(context, known, machine)
    check_times(machine.time, committed, bound, context.journal.path)
    began_s = logged_s = context.runtime.monotonic_s()
    first = machine.time
    logger.info(
        "replaying from time %d: %d transactions committed, %d bound but not committed",
        first,
        committed - first,
        bound - committed,
    )
    while machine.time < committed:
        stretch = runner.read_stretch(committed)
        check_replay(runner.discard_diverged(runner.replay(stretch), stretch.recorded), stretch.recorded)
        runner.finish_replay(stretch, TransactionOrigin.REPLAYED)
        context.progress("replay", stretch.upper - first, committed - first)
        if (now_s := context.runtime.monotonic_s()) - logged_s >= _LOG_EVERY_S:
            logged_s = now_s
            logger.info("replayed %d of %d transactions", machine.time - first, committed - first)
    if machine.time > first:
        took_s = context.runtime.monotonic_s() - began_s
        logger.info("replayed the transactions from %d to %d in %.1f s", first, machine.time - 1, took_s)
    for name in sorted(late):
        machine.tables.add(tables[name])
        for portion in members.read_table_portions(name, machine.time) if tables[name].key else ():
            machine.tables.apply({name: portion}, None)
    if not leads:
        runner.set_lost(())  # a follower computes them in place
    _hydrate_missing(runner, stable, context.progress)
    return runner


def _restore_state(
    context: ProcessContext, known: Definition, tables: Mapping[str, DeclaredTable], committed: int
) -> MachineState | None:
    """The state of the newest intact checkpoint; None if all state must be recomputed.

    State with a damaged part is computed again when the part is read. If a table is not kept, only the state of an
    older checkpoint helps, so the parts are read now, while there is one.
    """
    try:
        restored = context.checkpoints.restore(
            context.writer,
            lambda verified: context.progress("restore", verified.bytes, verified.bytes_all),
            reads_parts=not all(table.is_kept for table in context.engine.tables.values()),
        )
    except CheckpointDamaged:
        logger.exception("no checkpoint is intact; computing all state from the tables")
        return None
    if restored is None:
        if committed:
            logger.warning("the storage has no checkpoint; computing all state from the tables")
        return None
    return _select_state(restored, known, tables)


def _select_state(
    restored: RestoredCheckpoint, known: Definition, tables: Mapping[str, DeclaredTable]
) -> MachineState | None:
    for skipped in restored.skipped:
        logger.error("checkpoint %d is damaged and was not used: %s", skipped.entry.number, skipped.error)
    state = unseal(restored.state, MachineState, f"state of checkpoint {restored.entry.number}")
    moved = [name for name in tables if name in state.shards and known.tables[name].shard != state.shards[name]]
    if moved:
        logger.warning(
            "the checkpoint refers to earlier shards of the tables %s; computing all state from the tables",
            ", ".join(moved),
        )
        return None
    return state


def _build_machine(
    context: ProcessContext, tables: Mapping[str, DeclaredTable], stable: Mapping[str, ViewRecord], state: MachineState
) -> Machine:
    cohorts: list[Cohort] = []
    for saved in state.cohorts:
        views = [name for name, shard in saved.views.items() if name in stable and stable[name].shard == shard]
        if views:
            cohorts.append(context.engine.cohort(views, context.store, saved.state))
    return Machine(context.engine, context.store, Tables(tables, context.store, state.tables), cohorts, state.time)


def _rebuild_machine(
    context: ProcessContext,
    members: Members,
    tables: Mapping[str, DeclaredTable],
    stable: Mapping[str, ViewRecord],
    time: Time,
) -> Machine:
    """A machine from the tables' shards; if a table is not kept, an empty one, to replay from transaction 0 on."""
    engine, store = context.engine, context.store
    if all(table.is_kept for table in tables.values()):
        return Machine(engine, store, hydrate_tables(tables, store, members, time), [], time)
    cohorts = [engine.cohort([*stable], store, None)] if stable else []
    return Machine(engine, store, Tables(tables, store), cohorts, Time(0))


def _hydrate_missing(runner: Runner, stable: Mapping[str, ViewRecord], progress: OnProgress) -> None:
    """Hydrate the member views without state, and compare them with their shards.

    If a view fails or differs, a leader continues without it and backfills it into a new shard. A follower retries, and
    waits meanwhile (`PeerFollower`).
    """
    machine = runner.machine
    here = machine.views() | runner.lost_views
    missing = [name for name in stable if name not in here]
    if not missing:
        return
    logger.warning("computing the state of %s from the tables", name_views(missing))
    progress("rebuild", 0, len(missing))
    digests, left, cohort = ContentDigests(), missing, None
    while left and cohort is None:
        try:
            cohort = hydrate_cohort(machine, runner.members, left, machine.time, digests)
        except ViewFailed as error:
            runner.note_not_hydrated(error)
            left = [name for name in left if name not in error.views]
    if cohort is not None:
        runner.add_cohort(cohort)
    wrong = find_differing_views(runner.members, digests.all, left, machine.time) if machine.time else {}
    for name, diverged in wrong.items():
        runner.discard_view(name, diverged)
    progress("rebuild", len(missing), len(missing))


def _evolve(runner: Runner, evolution: Evolution) -> None:
    definition, engine = runner.definition, runner.machine.engine
    is_same = definition.sources == tuple(runner.sources) and is_fed_as_recorded(
        definition, engine.tables, runner.sources
    )
    plain_views = to_stored_names(engine.plain_views)
    if evolution.is_empty() and is_same and definition.plain_views == plain_views:
        return
    tables = assign_sources(definition, engine.tables, runner.sources, runner.journal.positions())
    if runner.time:
        check_computable(engine, evolution.views_new)
    for name in (*evolution.tables_new, *evolution.tables_widened, *evolution.tables_redeclared):
        tables[name] = _create_table(runner, engine.tables[name], tables.get(name))
    known = definition.views
    away = AwayReason(
        ComponentState.HYDRATING, runner.time - 1, "the view is computed from its tables", runner.runtime.wall_s()
    )
    views = {name: known[name] for name in known if name not in evolution.views_removed}
    for name in evolution.views_keyed:
        views[name] = msgspec.structs.replace(views[name], key=to_stored_key(engine.views[name]))
    for name in evolution.views_new:
        views[name] = _make_hydrating_record(engine, name, known.get(name), away)
    runner.change(
        tables=tables,
        sources=tuple(runner.sources),
        views={name: views[name] for name in engine.views},
        fingerprint=engine.fingerprint,
        plain_views=plain_views,
    )
    for name in evolution.views_removed:
        if name not in evolution.views_new and known[name].shard:
            runner.members.shard(known[name].shard).finalize(runner.writer)


def _make_hydrating_record(engine: Engine, name: str, known: ViewRecord | None, away: AwayReason) -> ViewRecord:
    record = make_view_record(engine, name, known.shard if known is not None else "", away)
    if known is None or is_same_query(known, engine.views[name]):
        return record
    return msgspec.structs.replace(record, away=msgspec.structs.replace(away, is_redefined=True))


def _finalize_stray_shards(runner: Runner) -> None:
    """Finalize the shards and release the holds that an interrupted backfill left.

    Only the leader makes backfills, and earlier leaders are fenced.
    """
    definition = runner.definition
    named = {*definition.list_members(), *(table.shard for table in definition.tables.values())}
    named |= {view.shard for view in definition.views.values()}
    named |= find_shards_of_sinks(runner.meta, runner.runtime, runner.settings)
    for name in runner.members.shards.names():
        if name not in named and not runner.members.shard(name).log.read().state.finalized:
            logger.warning("finalizing shard %s, which an interrupted backfill left behind", name)
            runner.members.shard(name).finalize(runner.writer)
    for shard in runner.members.open_all().values():
        for hold in shard.holds:
            if hold.startswith(HOLD_PREFIX) and hold != name_backfill_hold(runner.writer):
                logger.warning("releasing hold %s on shard %s, left by an interrupted backfill", hold, shard.name)
                shard.release(hold)


def _create_table(runner: Runner, table: DeclaredTable, known: TableRecord | None) -> TableRecord:
    """Create the table's shard with its content, and add the table to the machine."""
    runner.machine.tables.add(table)
    shard = ""
    if table.is_kept:
        shard = make_shard_name(table.name, runner.runtime.new_id())
        new_shard = runner.members.create(shard, table.schema, runner.writer)
        if runner.time:
            pending = PendingChanges(runner.time - 1, runner.writer)
            for portion in _read_known_content(runner, table, known):
                pending.store(runner.members)  # the previous portion
                pending.put({shard: portion})
                runner.machine.tables.apply({table.name: portion}, None)
            pending.fill([new_shard], runner.members)
    schema, source = table.schema.serialize().to_pybytes(), map_tables_to_sources(runner.sources)[table.name]
    if known is not None:
        return msgspec.structs.replace(known, schema=schema, shard=shard)
    return TableRecord(schema, table.key, table.connector, shard, source=source)


def _read_known_content(runner: Runner, table: DeclaredTable, known: TableRecord | None) -> Iterator[pa.Table]:
    """The content of the table, with NULL in new columns."""
    if known is not None and known.shard:
        before = runner.members.shard(known.shard)
        for portion in runner.members.read_portions(before, before.upper):
            yield align_columns(portion, pa.schema([*table.schema, portion.schema.field(DIFF)]))


def _complete(runner: Runner, progress: OnProgress) -> None:
    following = PeerFollower(runner)
    first = runner.time
    while runner.time < (bound := runner.journal.upper):
        if not following.keep_up():
            following.race(lambda: runner.complete(runner.journal.read(runner.time)))
        progress("complete", runner.time - first, bound - first)
