"""`Consent`: asks the user before a script changes a storage in a way that may be a mistake.

1. Only two kinds of change need consent: tables that the script no longer declares, and stored views that are
   recomputed from more than `confirm_rows` rows. The command prints all changes, then asks.
2. `--yes` gives consent in advance.
3. Without a terminal, the command cannot ask. It then refuses a script that no longer declares a table, because the
   usual cause is a wrong script. It only announces a recomputation, which loses no rows: reads of a changed view are
   refused until it ends.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.text import Text

from evertide.cli.output.output import Bars, Output
from evertide.errors import NotAllowedNow
from evertide.settings import Settings

if TYPE_CHECKING:
    from evertide.pipeline.script_change import ScriptChange

_COLOURS = {"+": "green", "~": "yellow", "-": "red"}


class Consent:
    def __init__(self, output: Output, script: str, settings: Settings, bars: Bars, *, is_agreed: bool) -> None:
        self._output = output
        self._script = script
        self._settings = settings
        self._bars = bars
        self._is_agreed = is_agreed

    def check(self, change: ScriptChange) -> None:
        """Raise `NotAllowedNow` if the change needs consent and the user does not give it."""
        if change.is_new or change.is_empty():
            return
        reasons = change.find_reasons_to_ask(self._settings.confirm_rows)
        if not self._output.is_json:
            self._output.err.print(render_change(change, self._script))
        if not reasons or self._is_agreed:
            return
        if sys.stdin is not None and sys.stdin.isatty() and not self._output.is_json:
            with self._bars.suspend():
                self._output.err.print(Text(f"{'; '.join(reasons)}. Continue? [y/N] "), end="")
                if sys.stdin.readline().strip().lower() in {"y", "yes"}:
                    return
            raise NotAllowedNow(where=self._script, why="the changes were not confirmed")
        if change.list_undeclared_tables():
            why = f"{'; '.join(reasons)}; set `evertide run --yes` if this is intended, or start with the right script"
            raise NotAllowedNow(where=self._script, why=why)


def render_change(change: ScriptChange, script: str) -> Text:
    """The changes as a diff for people."""
    if change.is_empty():
        return Text(f"{script} changes nothing")
    title = f"{script} declares a new pipeline:" if change.is_new else f"{script} changes the pipeline:"
    lines = [Text(f"  {line}", _COLOURS[line[0]]) for line in change.format_lines()]
    return Text("\n").join([Text(title), *lines])
