"""Turns the options of `run`, `shapes` and `demo` for tokens, TLS and hosts into `ListenOptions`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evertide.settings import Settings

if TYPE_CHECKING:
    from evertide.server.access import ListenOptions

__all__ = ["make_listen_options"]


def make_listen_options(
    *,
    tokens: Path | None = None,
    secret: str = "",
    tls: tuple[Path | None, Path | None, Path | None] = (None, None, None),
    hosts: Sequence[str] | None = None,
    insecure: bool = False,
    settings: Settings | None = None,
) -> ListenOptions:
    """Includes the tokens of the environment. `tls` is the certificate, the key, and the authority of the clients."""
    from evertide.server.access import Access, ListenOptions, Tls  # noqa: PLC0415 - slow to import

    return ListenOptions(
        access=Access.load(tokens, os.environ, secret),
        tls=Tls.of(*tls),
        hosts=tuple(hosts or ()),
        is_insecure=insecure,
        settings=settings or Settings(),
    )
