"""Check that input may be bound after the last record of the journal: pure functions.

1. A source continues exactly where the last record left it: `before` equals the last `after`. So input that is already
   bound is refused if the source offers it again (J10).
2. A source whose position does not change gives no fragments: no position could tell whether they are bound.
3. A record names all sources of its generation, whether their positions change or not. Within a generation the sources
   stay the same (J4); a new generation may add and remove some. A new source chooses its first position.
4. A record names each fragment once.
"""

from __future__ import annotations

from collections.abc import Mapping

from evertide.errors import Conflict, GenerationMoved, Unexpected
from evertide.journal.records import Bound, Input, Staged
from evertide.types import Generation

__all__ = ["check_inputs"]


def check_inputs(
    inputs: Mapping[str, Input], generation: Generation, last: Bound | None, *, path: str, writer: str
) -> None:
    """Raise an error if `inputs` cannot be bound after `last`. `path` and `writer` are for the error."""
    _check_fragments(inputs)
    if last is None:
        return
    if generation < last.generation:
        why = f"transaction {last.time} has generation {last.generation}; this writer knows only {generation}"
        raise GenerationMoved(writer=writer, why=why)
    if generation == last.generation and inputs.keys() != last.inputs.keys():
        why = f"the input has the sources {sorted(inputs)}, but generation {generation} has {sorted(last.inputs)}"
        raise Unexpected(where="Journal.bind", why=why)
    for source, given in inputs.items():
        known = last.inputs.get(source)
        if known is not None and given.before != known.after:
            why = f"transaction {last.time} ends at {known.after}, but the input starts at {given.before}"
            raise Conflict(where=f"{path}, source {source!r}", why=why)


def _check_fragments(inputs: Mapping[str, Input]) -> None:
    seen: set[str] = set()
    for source, given in inputs.items():
        if given.fragments and given.before == given.after:
            why = f"source {source!r} offers {len(given.fragments)} fragments, but its position stays {given.after}"
            raise Unexpected(where="Journal.bind", why=why)
        for fragment in given.fragments:
            if isinstance(fragment, Staged):
                if fragment.key in seen:
                    raise Unexpected(where="Journal.bind", why=f"source {source!r} offers {fragment.key} twice")
                seen.add(fragment.key)
