"""`suggest`: the known name that a misspelled one is most like, as the end of an error's text."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_SIMILARITY = 0.6
_LISTED_MAX = 10


def find_similar(name: str, known: Iterable[str]) -> str:
    """The known name that is most like `name`, without regard to case; empty if none is."""
    spelled = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), spelled, n=1, cutoff=_SIMILARITY)
    return spelled[found[0]] if found else ""


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'brokers'?`; empty if no known name is similar."""
    found = find_similar(name, known)
    return f"; did you mean {found!r}?" if found else ""


def list_names(name: str, known: Iterable[str], introduction: str) -> str:
    """The suggestion, or else the known names after `introduction`; the first ones if there are many."""
    names = list(known)
    more = ", ..." if len(names) > _LISTED_MAX else ""
    listed = f"; {introduction} {', '.join(names[:_LISTED_MAX])}{more}" if names else ""
    return suggest(name, names) or listed
