"""The transactions that the live display of `run` counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertide.cli.output.live_display import LiveDisplay
from evertide.cli.output.output import Output
from evertide.errors import TimeCompacted
from tests.cli.kit import open_small, order


def test_a_transaction_that_is_no_longer_recorded_is_not_counted(tmp_path: Path) -> None:
    """As in a replica that was paused for several checkpoints, and continues from the newest."""
    with open_small(tmp_path / "s") as p:
        for number in range(6):
            p.push("orders", [order(number)])
            p.commit()
            p.checkpoint()
        with pytest.raises(TimeCompacted):
            p._context.journal.read_outcome(1)
        watch = LiveDisplay(p, Output(is_json=True), is_quiet=True)
        watch.record(1, 0.1)
        watch.record(p.time, 0.1)
        assert [made.time for made in watch.finished] == [p.time]
