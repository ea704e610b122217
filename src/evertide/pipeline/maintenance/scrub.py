"""`Scrub`: reads the state parts in use, little by little, and compares them with their checksums.

A restore reads no state part, and a part that no look-up needs would stay unread. So damage is found while an intact
copy of the rows exists: in the tables, or in an older checkpoint. Parts of other writers are read first, those of this
process after `scrub_interval_s`, and each again after this time.
"""

from __future__ import annotations

from evertide.checkpoint.records import StateFile
from evertide.checkpoint.verification import read_file
from evertide.errors import Damaged
from evertide.flow.state.state_part import PartEntry
from evertide.pipeline.transaction.runner import Runner
from evertide.store.paths import Name
from evertide.threads.stopping import IsStopping

_IDLE_S = 1.0


class Scrub:
    """One thread may use it, beside the transactions."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._verified_s: dict[str, float] = {}
        """By the key of a part, when it was read or, by this process, written."""
        self._next_s = 0.0

    def run(self, is_stopping: IsStopping) -> None:
        """Read what `scrub_bytes_per_s` allows now. Damage is raised, and the machine discards the state."""
        runtime, rate = self._runner.runtime, self._runner.settings.scrub_bytes_per_s
        now_s = runtime.monotonic_s()
        if now_s < self._next_s:
            return
        for part in self._list_due(now_s):
            self._verify(part)
            self._verified_s[part.key] = now_s
            self._next_s = max(self._next_s, now_s) + part.bytes / rate
            if is_stopping() or self._next_s > runtime.monotonic_s():
                return
        self._next_s = now_s + _IDLE_S

    def _list_due(self, now_s: float) -> list[PartEntry]:
        runner, interval_s = self._runner, self._runner.settings.scrub_interval_s
        used = {part.key: part for one in runner.machine.arrangements() for part in one.parts()}
        before = self._verified_s
        self._verified_s = {key: before[key] for key in used if key in before}
        for key in used.keys() - before.keys():
            name = Name.parse(key)
            if name is not None and name.writer == runner.writer.id:
                self._verified_s[key] = now_s
        return [
            part
            for key, part in used.items()
            if key not in self._verified_s or now_s - self._verified_s[key] >= interval_s
        ]

    def _verify(self, part: PartEntry) -> None:
        runner = self._runner
        try:
            read_file(runner.checkpoints.place, StateFile(part.key, part.bytes, part.checksum))
        except Damaged as error:
            if runner.machine.has_part(error):  # else it was merged and deleted
                runner.machine.damage.append(error)
                raise
