"""`import_extra`: import a module whose packages a user installs with `pip install 'evertide[EXTRA]'`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from evertide.errors import SetupIncomplete


def import_extra(module: str, extra: str, where: str) -> Any:
    """Return the module. `where` names what needs it, for the error if a package is missing or cannot be loaded."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        why = f"the package {error.name!r} is missing: pip install 'evertide[{extra}]'"
        raise SetupIncomplete(where=where, why=why) from error
    except ImportError as error:  # such as psycopg without libpq
        reason = " ".join(str(error).split())
        why = f"the package cannot be loaded ({reason}): pip install 'evertide[{extra}]'"
        raise SetupIncomplete(where=where, why=why) from error
