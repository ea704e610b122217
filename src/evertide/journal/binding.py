"""What may be bound after what: pure checks of a transaction's input against the record before it.

1. A source goes on exactly where it stood: `before` is the `after` of the last record. So input that was bound already,
   and is offered again, is refused, whoever offers it (J10).
2. A source that did not move gives no fragments: they could be offered again, as no position tells.
3. All sources are named, whether they moved or not. Within a generation they are the same ones (J4); a new generation
   may bring some and leave out others. One that comes anew says itself where it starts.
4. A fragment is named once.
"""

from __future__ import annotations

from collections.abc import Mapping

from evertide.errors import Conflict, InvalidInput
from evertide.journal.records import Bound, Input, Staged
from evertide.types import Generation

__all__ = ["check_inputs", "check_sources"]


def check_inputs(inputs: Mapping[str, Input], generation: Generation, last: Bound | None, path: str) -> None:
    """Raise what is wrong with binding these after `last`. `path` is the journal's, for the error."""
    _check_fragments(inputs)
    if last is None:
        return
    check_sources(inputs, generation, last)
    for source, given in inputs.items():
        stands = last.inputs.get(source)
        if stands is not None and given.before != stands.after:
            why = (
                f"after transaction {last.time} it stands at {stands.after}, "
                f"and what is offered starts at {given.before}: it was bound already, or something is missing"
            )
            raise Conflict(where=f"{path}, source {source!r}", why=why)


def check_sources(sources: Mapping[str, object], generation: Generation, last: Bound) -> None:
    """Whether these are the sources of a record, if they are of its generation."""
    if generation < last.generation:
        why = f"transaction {last.time} is of generation {last.generation} already"
        raise InvalidInput(where=f"generation {generation}", why=why)
    if generation > last.generation:
        return
    said = f"transaction {last.time} of the same generation, {generation},"
    for source in sorted(last.inputs.keys() - sources.keys()):
        why = f"{said} names it, and the pipeline lacks it: declare it again, or change the generation"
        raise InvalidInput(where=f"source {source!r}", why=why)
    for source in sorted(sources.keys() - last.inputs.keys()):
        why = f"the pipeline has it, and {said} does not name it: it needs a new generation"
        raise InvalidInput(where=f"source {source!r}", why=why)


def _check_fragments(inputs: Mapping[str, Input]) -> None:
    seen: set[str] = set()
    for source, given in inputs.items():
        if given.fragments and given.before == given.after:
            why = f"it offers {len(given.fragments)} fragments, and its position stays {given.after}"
            raise InvalidInput(where=f"source {source!r}", why=why)
        for fragment in given.fragments:
            if isinstance(fragment, Staged):
                if fragment.key in seen:
                    raise InvalidInput(where=f"source {source!r}", why=f"it offers {fragment.key} twice")
                seen.add(fragment.key)
