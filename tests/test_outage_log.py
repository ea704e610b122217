"""A failure that is retried is logged when it begins, when its reason changes, and when it ends."""

from __future__ import annotations

import logging

import pytest

from evertide.errors import EvertideError, Unavailable
from evertide.threads.failures import Failures
from evertide.threads.outage_log import OutageLog, OutageLogs
from tests.kit.runtime import ManualRuntime

logger = logging.getLogger("evertide.tests.outages")


def away(number: int, why: str = "no answer") -> EvertideError:
    return Unavailable(path=f"s3://shop/{number}", why=f"{why} after {number} ms")


def test_an_outage_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """Fails if every note is logged, or if the reason includes paths and numbers."""
    runtime = ManualRuntime()
    outage = OutageLog(logger, "could not write", runtime)
    outage.end()
    for number in range(20):
        outage.note(away(number))
        runtime.advance_s(1.0)
    for number in range(5):
        outage.note(away(number, "refused"))
    outage.end()
    outage.end()
    first, changed, end = caplog.messages
    assert first.startswith("could not write: ")
    assert "no answer after 0 ms" in first
    assert "refused after 0 ms" in changed
    assert end == "recovered after 20.0 s: could not write"
    outage.note(away(1))
    assert len(caplog.messages) == 4, "it begins again"


def test_outages_of_several_names_are_logged_each_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLogs(logger, ManualRuntime())
    for number in range(5):
        assert outages.note("backfill of a", away(number)) is (number == 0)
        assert outages.note("backfill of b", away(number, "refused")) is (number == 0)
    outages.end("backfill of a")
    outages.end("backfill of c")
    assert outages.note("backfill of a", away(9))
    assert [message.split(":")[0] for message in caplog.messages] == [
        "backfill of a",
        "backfill of b",
        "recovered after 0.0 s",
        "backfill of a",
    ]


def test_a_failure_of_background_work_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    runtime = ManualRuntime()
    failures = Failures(runtime, 1.0)
    for number in range(20):
        failures.add("compaction", away(number))
        runtime.advance_s(1.0)
    failures.remove("compaction")
    assert [message.split(":")[0] for message in caplog.messages] == [
        "compaction failed, will retry",
        "compaction succeeded again; it had failed for 20.0 s",
    ]
