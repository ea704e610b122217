"""In which of the media types a request wants its answer.

1. `?format=` counts before the header `Accept`. Without either it is JSON.
2. What is asked for and not there is 406, with what is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request

from evertide.media import FORMATS

__all__ = ["chosen"]


def chosen(request: Request, format_: str | None, known: Sequence[str]) -> str:
    """One of those known, the first of which is what is given to who asks for nothing."""
    if format_ is not None:
        found = FORMATS.get(format_, "")
        if found in known:
            return found
        raise HTTPException(406, f"{format_!r}; there are {_listed(known)}")
    accepted = request.headers.get("accept", "*/*")
    wanted = sorted(map(_weighed, accepted.split(",")), key=lambda each: -each[1])
    for media, weight in wanted:
        for one in known if weight > 0 else ():
            if media in (one, "*/*", "", f"{one.partition('/')[0]}/*"):
                return one
    raise HTTPException(406, f"{accepted!r}; there are {_listed(known)}")


def _weighed(accepted: str) -> tuple[str, float]:
    media, *facts = (each.strip().lower() for each in accepted.split(";"))
    weight = next((each.removeprefix("q=") for each in facts if each.startswith("q=")), "1")
    try:
        return media, float(weight)
    except ValueError:
        return media, 1.0


def _listed(known: Sequence[str]) -> str:
    names = {media: name for name, media in FORMATS.items()}
    return ", ".join(f"{names[media]} ({media})" for media in known)
