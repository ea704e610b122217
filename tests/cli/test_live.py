"""What `run` tells of the transactions that were made."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertide.cli.output.live import Watch
from evertide.cli.output.output import Output
from evertide.errors import TimeCompacted
from tests.cli.kit import open_small, order


def test_a_transaction_that_is_no_longer_recorded_is_not_told_of(tmp_path: Path) -> None:
    """As by a replica that was paused for several checkpoints, and goes on from the newest."""
    with open_small(tmp_path / "s") as p:
        for number in range(6):
            p.push("orders", [order(number)])
            p.commit()
            p.checkpoint()
        with pytest.raises(TimeCompacted):
            p._context.journal.committed(1)
        watch = Watch(p, Output(is_json=True), is_quiet=True)
        watch.told(1, 0.1)
        watch.told(p.time, 0.1)
        assert [made.time for made in watch.made] == [p.time]
