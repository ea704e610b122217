"""Computes views from their tables by a wide step (`evertide.flow.wide`), if executors can be used.

1. Executors need the package, in this version, and the storage of blobs, which a probe checks before the first step.
   Without them everything is computed in the driver, and the log and `WideSteps.problem` say why.
2. If the step fails, the views are computed in the driver instead: that finds the row that makes a view fail, or the
   reason why Spark or the storage do. So the step itself blames no view. If the cause may be an executor, Python or the
   storage, the step is first tried once more, with new leases and after another probe.
3. Blobs that the result does not have are deleted: those for exchanges at the end of the step, those of failed attempts
   of tasks by garbage collection.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from evertide.errors import EvertideError
from evertide.errors.running_errors import name_views
from evertide.flow.wide.outlets import EXCHANGE, StoredContent, Tools
from evertide.flow.wide.pieces import ShardPiece
from evertide.flow.wide.step import WideInput
from evertide.pipeline.engine import StateStore, WideCohort
from evertide.pipeline.state.members import Members, open_snapshot
from evertide.plan.catalyst.failure import describe_error, may_succeed_again
from evertide.plan.catalyst.jobs import Jobs
from evertide.shard.read import TimeWindow
from evertide.shard.shard import Shard
from evertide.store.blob import Blob, list_keys
from evertide.store.paths import Name, state_part_key, state_prefix
from evertide.threads.stopping import IsStopping, Stopped, never_stopping
from evertide.version import __version__

logger = logging.getLogger(__name__)

_PROBE = "wide.probe"
_TRIES = 2
_INLINE_BYTES_MAX = 4096
"""One commit has the parts of all tasks, so only very small ones are inside of it."""

OnOperator: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class WideTarget:
    """Where executors store the content of views."""

    shards: Mapping[str, Shard]
    """By view; without a shard only digests are computed."""
    seq: int
    """The writer's claim, for the names of parts."""
    is_stopping: IsStopping = never_stopping
    progress: OnOperator = lambda *_: None
    """Called with the number of operators that are computed, and of all."""


def compute_wide(  # noqa: PLR0917
    cohort: WideCohort, store: StateStore, members: Members, tables: Sequence[str], time: int, target: WideTarget
) -> Mapping[str, StoredContent] | None:
    """The content of the views of a cohort, which then has its state; None if executors cannot compute it."""
    for _ in range(_TRIES):
        if not _can_use_executors(cohort.jobs, store):
            return None
        try:
            with cohort.jobs.cancelling(target.is_stopping):
                return _compute_once(cohort, store, members, tables, time, target)
        except Stopped:
            raise
        except Exception as error:  # of any class, PySpark or py4j: the driver finds the cause
            if target.is_stopping():
                raise Stopped from error
            store.wide_steps.set_problem(None)
            views, why = name_views(cohort.views), describe_error(error)
            logger.warning("executors could not compute %s: %s", views, why)
            if not may_succeed_again(error):
                return None
    return None


def _compute_once(  # noqa: PLR0917
    cohort: WideCohort, store: StateStore, members: Members, tables: Sequence[str], time: int, target: WideTarget
) -> Mapping[str, StoredContent]:
    tools = _make_tools(store, members, target)
    used: frozenset[str] = frozenset()
    try:
        with ExitStack() as leases:
            content = {name: _list_pieces(name, members, time, leases, cohort) for name in tables}
            given = WideInput(cohort.jobs, tools, content, target.shards, time - 1, target.is_stopping, target.progress)
            found = cohort.compute_wide(given)
            used = found.list_keys()
            return found.content
    finally:
        store.wide_steps.end(tools.seq, used)
        _delete_exchanged(tools)


def _make_tools(store: StateStore, members: Members, target: WideTarget) -> Tools:
    name, shards = store.new_name(), members.shards
    settings = replace(shards.settings, inline_bytes_max=min(_INLINE_BYTES_MAX, shards.settings.inline_bytes_max))
    return Tools(store.blob, shards.runtime, settings, name.writer, name.seq, target.seq)


def _list_pieces(name: str, members: Members, time: int, leases: ExitStack, cohort: WideCohort) -> list[ShardPiece]:
    """The parts of a table, under a lease until `leases` ends."""
    shard = members.open_collection(name)
    snapshot = leases.enter_context(open_snapshot(shard, time - 1))
    blob, declared, schema = shard.log.blob, *cohort.describe_table(name)
    window = TimeWindow(0, time)
    return [
        ShardPiece(part, shard.schema, declared, schema, window, blob.path(part.key) if part.key else shard.log.path)
        for part in snapshot.parts
        if part.rows
    ]


def _delete_exchanged(tools: Tools) -> None:
    """Delete the rows that jobs of the step exchanged. What a late attempt still writes, garbage collection deletes."""
    try:
        for key in list_keys(tools.blob, f"{state_prefix()}{EXCHANGE}/"):
            name = Name.parse(key)
            if name is not None and (name.writer, name.seq) == (tools.writer, tools.seq):
                tools.blob.delete(key)
    except EvertideError as error:
        logger.warning("could not delete exchanged rows, garbage collection will: %s", error)


def _can_use_executors(jobs: Jobs, store: StateStore) -> bool:
    """Executors that passed the probe are probed again only after a failure. Some may have joined since: what they
    wrote is checked before it is used."""
    steps = store.wide_steps
    if steps.problem != "":
        steps.set_problem(_probe(jobs, store))
        if steps.problem:
            logger.warning("views are computed in the driver, without executors: %s", steps.problem)
    return not steps.problem


def _probe(jobs: Jobs, store: StateStore) -> str:
    """Why executors cannot be used; empty if they can."""
    try:
        pickle.dumps(store.blob)
    except (TypeError, pickle.PicklingError):
        return "only this process can use the storage"
    name = store.new_name()
    key = state_part_key(_PROBE, Name(name.writer, name.seq, name.suffix, "probe"))
    store.wide_steps.end(name.seq)
    store.blob.put(key, __version__.encode())
    try:
        found = jobs.map(partial(_check_executor, store.blob, key), range(jobs.parallelism))
    except Exception as error:  # noqa: BLE001 - of any class: PySpark's and py4j's
        return f"they do not have this package, or cannot use the storage: {describe_error(error)}"
    finally:
        store.blob.delete(key)
    return next((why for why in found if why), "")


def _check_executor(blob: Blob, key: str, _: int, attempt: str) -> str:
    """Why this executor cannot be used: it must read and write the storage, with the same version of the package."""
    expected = f"version {blob.get(key).decode()} of this package"
    if (own := f"version {__version__} of this package") != expected:
        return f"they have {own}, and the driver has {expected}"
    written = key.replace("probe.", f"probe{attempt}.")
    blob.put(written, b"written by an executor")
    blob.delete(written)
    return ""
