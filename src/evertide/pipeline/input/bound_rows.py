"""Reads the rows of a bound transaction: staged fragments from the journal, the others from their sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from evertide.errors import SourceChanged
from evertide.journal.journal import Journal
from evertide.journal.records import Bound, Staged
from evertide.sources.contract import Rows, Source
from evertide.sources.staged import unpack_rows
from evertide.threads.steps import note_each_step


def read_input(
    bound: Bound,
    journal: Journal,
    sources: Mapping[str, Source],
    is_wanted: Callable[[str], bool] = lambda _: True,
    read: Mapping[str, Sequence[Rows]] | None = None,
) -> Iterator[tuple[str, Rows]]:
    """The rows of the wanted tables with the names of their sources, in order.

    `read` has, by source, rows that are already in memory.
    """
    for name, given in bound.inputs.items():
        if read is not None and name in read:
            yield from ((name, rows) for rows in read[name])
            continue
        for fragment in given.fragments:
            if isinstance(fragment, Staged):
                if is_wanted(fragment.table):
                    yield name, unpack_rows(fragment.table, journal.load(fragment, time=bound.time))
            else:
                for rows in note_each_step(_find_source(sources, name, bound).read(fragment)):
                    if is_wanted(rows.table):
                        yield name, rows


def _find_source(sources: Mapping[str, Source], name: str, bound: Bound) -> Source:
    source = sources.get(name)
    if source is None:
        why = f"transaction {bound.time} has input of this source, and the script has only {', '.join(sorted(sources))}"
        raise SourceChanged(source=name, where="the script", why=why)
    return source


def collect_xids(bound: Bound, *, has_upstream: bool) -> tuple[int, ...] | msgspec.UnsetType:
    """The xids of a transaction; without any, an empty tuple if a source has xids (`has_upstream`), else UNSET."""
    known = [one.xids for one in bound.inputs.values() if not isinstance(one.xids, msgspec.UnsetType)]
    if not known and not has_upstream:
        return msgspec.UNSET
    return tuple(xid for several in known for xid in several)
