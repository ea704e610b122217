"""The transactions that the live display of `run` counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertide.cli.output.live_display import LiveDisplay
from evertide.cli.output.output import Output
from evertide.errors import TimeCompacted, Unavailable
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


def test_an_outage_while_rows_are_counted_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_small(tmp_path / "s") as p:
        watch = LiveDisplay(p, Output(is_json=True), is_quiet=True)

        def fail(_: int) -> None:
            raise Unavailable(path="meta.db", why="the disk does not answer")

        monkeypatch.setattr(watch._journal, "read_outcome", fail)
        watch.record(p.time, 0.1)
        assert not watch.finished
        assert "is committed, but its rows cannot be counted" in caplog.text
