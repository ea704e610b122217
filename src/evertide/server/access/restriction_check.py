"""Log a warning at the start for each restriction that matches no collection, so that its token would see nothing."""

from __future__ import annotations

import logging

from evertide.errors import Forbidden, InvalidInput, NotAllowedNow
from evertide.pipeline.names import ERRORS
from evertide.pipeline.state.members import Members
from evertide.server.access.access import Access

__all__ = ["warn_of_unusable_restrictions"]

logger = logging.getLogger(__name__)


def warn_of_unusable_restrictions(access: Access, members: Members) -> None:
    """Warn of collections that do not exist, and of clauses that cannot be applied."""
    known = {name.lower() for name in (*members.definition.tables, *members.definition.views, ERRORS)}
    for token in access.tokens:
        for name in sorted(token.restriction.collections or ()):
            if name not in known:
                logger.warning("token %r is restricted to the collection %r, which does not exist", token.name, name)
                continue
            try:
                token.restriction.clause(name, members.open_collection(name).schema)
            except Forbidden as error:
                logger.warning("token %r cannot read the collection %r: %s", token.name, name, error.why)
            except (InvalidInput, NotAllowedNow):  # the collection has no content yet: a request for it reports that
                continue
