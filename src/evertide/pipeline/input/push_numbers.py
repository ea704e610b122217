"""The number (`txid`) that the answer to a push has: clients of shapes wait for it until they have the rows.

1. A number is returned only if shapes send it: a client that waits for any other number would wait until its time
   limit. A push that changed none of its tables therefore has none. The record of its transaction in the journal shows
   that: the digests of the tables' changes are zero.
2. A repeated push has the number of the transaction that applied it. It has none if the journal no longer has the
   record of that transaction or, with an upstream database, if so many transactions followed that a new snapshot does
   not list it: all clients that follow the table had these rows long ago.
3. A push whose transaction is bound and not committed yet has its number, even if it turns out to change nothing.
"""

from __future__ import annotations

from evertide.errors import EvertideError, TimeCompacted
from evertide.journal.journal import Journal
from evertide.journal.xids import LISTED_PUSHES_MAX, make_own_number
from evertide.pipeline.definition import Definition
from evertide.pipeline.input.pushes import PushTransaction
from evertide.rows.digest import ZERO


def find_push_number(
    pushed: PushTransaction, definition: Definition, journal: Journal, last: int, *, has_upstream: bool
) -> int | None:
    """`last` is the last committed transaction."""
    if pushed.time is None:
        return None
    number = make_own_number(pushed.time, has_upstream=has_upstream)
    if pushed.time > last:
        return number  # without a look at the storage, which may be the reason
    try:
        outcome = journal.read_outcome(pushed.time)
    except TimeCompacted:
        return None
    except EvertideError:
        return number  # unknown: the rows are committed, so the answer must not be an error
    if pushed.is_repeated and has_upstream and pushed.time <= last - LISTED_PUSHES_MAX:
        return None
    shards = [definition.tables[table].shard for table in {fragment.table for fragment in pushed.fragments}]
    written = {} if outcome is None else outcome.shards
    changes = [written.get(shard) for shard in shards if shard]
    is_changed = len(changes) < len(shards) or any(one is not None and one.digest != ZERO for one in changes)
    return number if is_changed else None
