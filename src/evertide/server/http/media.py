"""Choose the media type of an answer.

1. `?format=` takes precedence over the `Accept` header. Without both, the answer is JSON.
2. A format that is not available is refused with 406 and the list of those that are.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request

from evertide.media import FORMATS

__all__ = ["choose_media"]


def choose_media(request: Request, format_: str | None, available: Sequence[str]) -> str:
    """One of `available`; the first is the default."""
    if format_ is not None:
        named = FORMATS.get(format_, "")
        if named in available:
            return named
        raise HTTPException(406, f"{format_!r}; available are {_list_formats(available)}")
    accepted = request.headers.get("accept", "*/*")
    wanted = sorted(map(_parse_weight, accepted.split(",")), key=lambda each: -each[1])
    for media, weight in wanted:
        for one in available if weight > 0 else ():
            if media in (one, "*/*", "", f"{one.partition('/')[0]}/*"):
                return one
    raise HTTPException(406, f"{accepted!r}; available are {_list_formats(available)}")


def _parse_weight(accepted: str) -> tuple[str, float]:
    media, *parameters = (each.strip().lower() for each in accepted.split(";"))
    weight = next((each.removeprefix("q=") for each in parameters if each.startswith("q=")), "1")
    try:
        return media, float(weight)
    except ValueError:
        return media, 1.0


def _list_formats(available: Sequence[str]) -> str:
    names = {media: name for name, media in FORMATS.items()}
    return ", ".join(f"{names[media]} ({media})" for media in available)
