"""Whether restrictions fit the collections that there are: said at the start, as the holder would see nothing."""

from __future__ import annotations

import logging

from evertide.errors import Forbidden, InvalidInput
from evertide.pipeline.names import ERRORS
from evertide.pipeline.transaction.members import Members
from evertide.server.access.access import Access

__all__ = ["tell_what_does_not_fit"]

logger = logging.getLogger(__name__)


def tell_what_does_not_fit(access: Access, members: Members) -> None:
    """A warning for each collection that is not there, and for each clause that cannot be applied."""
    known = {name.lower() for name in (*members.definition.tables, *members.definition.views, ERRORS)}
    for token in access.tokens:
        for name in sorted(token.restriction.collections or ()):
            if name not in known:
                logger.warning("token %r is restricted to %r, and there is no such collection", token.name, name)
                continue
            try:
                token.restriction.clause(name, members.collection(name).schema)
            except Forbidden as error:
                logger.warning("token %r gets nothing of %r: %s", token.name, name, error.why)
            except InvalidInput:  # it has no content as yet: whoever asks for it is told
                continue
