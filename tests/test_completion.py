"""What an editor completes, from the source alone: jedi infers types as the language servers of editors do."""

from __future__ import annotations

import sys
from pathlib import Path

import jedi
import pytest

import evertide as et

SOURCE = Path(et.__file__).parents[1]
OPENED = 'import evertide as et\n\nwith et.Pipeline.open("shop.sql", storage="s") as p:\n    '
READABLE = {"to_arrow", "to_batches", "to_pandas", "to_polars", "to_pylist", "to_spark", "show", "schema", "time"}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import evertide as et\net.", {name for name in et.__all__ if not name.startswith("_")}),
        (
            f"{OPENED}p.",
            {"push", "commit", "transaction", "view", "table", "sql", "status", "explain", "start", "close"},
        ),
        (f'{OPENED}p.view("v").', {*READABLE, "as_of", "changes", "watch"}),
        (f'{OPENED}p.view("v").as_of(3).', {*READABLE, "changes"}),
        (f'{OPENED}p.sql("SELECT 1").', READABLE),
        (f"{OPENED}p.status().", {"state", "why", "remedy", "time", "sources", "collections", "sinks", "checkpoints"}),
        (f"{OPENED}p.transaction().", {"push"}),
        ("import evertide as et\net.Settings(", {"checkpoint_interval_s=", "portion_rows_max="}),
        ('from evertide.client import Client\nClient("u").', {"rows", "subscribe", "query", "push", "status"}),
        ('from evertide.client import Client\nClient("u").query("").', {"rows", "time", "stale", "is_truncated"}),
    ],
)
def test_an_editor_completes_it(code: str, names: set[str]) -> None:
    """Fails if a call has no return type, or if type checkers do not know a name that is imported at its first use."""
    project = jedi.Project(SOURCE, sys_path=[str(SOURCE), *sys.path])
    lines = code.split("\n")
    found = {each.name for each in jedi.Script(code, project=project).complete(len(lines), len(lines[-1]))}
    assert names <= found, f"{code!r} lacks {names - found}"
