"""Log records: pipeline, transaction and error code, and never a secret."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evertide.cli.output.logs import LogFormat, LogLevel, LogOptions, configure_logging
from evertide.cli.output.output import Output
from evertide.errors import SourceFailed, Unavailable
from evertide.logs import TRANSACTION, JsonFormatter, Ring, make_line
from evertide.secrets import Secrets, hide
from tests.metrics.kit import order
from tests.pipeline.kit import (
    SETTINGS,
    ScriptedSource,
    engine,
    open_pipeline,
    storage,
    with_sources,
)

logger = logging.getLogger("evertide.tests.logs")


def record(message: str, *args: object, level: int = logging.WARNING, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("evertide.here", level, __file__, 1, message, args, exc_info)


def test_a_record_has_its_pipeline_transaction_and_error_code() -> None:
    error = Unavailable(path="/disk", why="away")
    token = TRANSACTION.set(12)
    try:
        line = json.loads(JsonFormatter("shop").format(record("it %s:\n%s", "waits", error)))
    finally:
        TRANSACTION.reset(token)
    assert line["time"].endswith("Z")
    assert (line["level"], line["logger"], line["pipeline"], line["transaction"]) == (
        "warning",
        "evertide.here",
        "shop",
        12,
    )
    assert line["error_code"] == "unavailable"
    assert line["message"].startswith("it waits: storage at")
    least = {"time", "level", "logger", "message"}
    assert msgspec.to_builtins(make_line(record("nothing of it"))).keys() == least
    assert json.loads(JsonFormatter().format(record(""))).keys() == least, "a line without text has them as well"


def test_only_unexpected_errors_are_logged_with_a_trace() -> None:
    for error, is_told in ((ZeroDivisionError("x"), True), (Unavailable(path="p", why="w"), False)):
        line = make_line(record("failed", exc_info=(type(error), error, None)))
        assert bool(line.trace) is is_told
        assert line.error_code == ("" if is_told else "unavailable")


def test_no_secret_is_in_a_line_nor_in_its_trace(tmp_path: Path) -> None:
    """Fails if the log does not pass through `hide`: connectors hide their own secrets, libraries do not."""
    Secrets(tmp_path, {"PASSWORD": "s3cret/of ours"}).reveal("x ${ENV:PASSWORD}", "here")
    error = ValueError("connecting with s3cret/of ours")
    line = make_line(record("at postgres://u:hunter2@host/db: s3cret/of ours", exc_info=(ValueError, error, None)))
    told = json.dumps(msgspec.to_builtins(line))
    assert "s3cret" not in told
    assert "hunter2" not in told
    assert "postgres://u:***@host/db" in line.message
    assert hide("s3cret%2Fof%20ours") == "***"


def test_the_ring_is_bounded_and_restores_the_logger() -> None:
    before = logging.getLogger("evertide").level
    with Ring("shop", lines_max=3) as ring:
        for number in range(5):
            logger.info("line %d", number)
        logger.error("the last")
        assert [line.message for line in ring.lines()] == ["the last", "line 4", "line 3"]
        assert [line.message for line in ring.lines(limit=1)] == ["the last"]
        assert [line.message for line in ring.lines(level="error")] == ["the last"]
    assert logging.getLogger("evertide").level == before
    assert ring not in logging.getLogger("evertide").handlers


def test_the_log_has_the_history_of_a_pipeline() -> None:
    """Opening, leadership, replay, checkpoints, a source that stalls and recovers, a view that fails."""
    store, source = storage(), ScriptedSource("files", ("notes",))
    with Ring("shop") as ring, with_sources(source):
        with open_pipeline(store, engine("share", "counts")) as p:
            p.push("orders", [order(1)])
            p.commit()
            source.error = SourceFailed(source="files", where="/in", why="no such directory")
            p.advance()
            source.error = None
            p.advance()
            p.push("orders", [order(2, amount=0)])
            p.commit()
            p.close(checkpoint=False)
        with open_pipeline(store, engine("share", "counts")) as p:
            p.checkpoint()
        told = [line.message for line in reversed(ring.lines(1000))]
        lines = {line.message: line for line in ring.lines(1000)}
    for beginning in (
        "this process leads",
        "the pipeline is open at time 0",
        "source 'files' is stalled",
        "source 'files' is running again",
        "view share: transaction 2 fails",
        "replaying from time 1: 2 transactions committed, 0 bound but not committed",
        "replayed the transactions from 1 to 2",
        "made checkpoint ",
    ):
        assert any(message.startswith(beginning) for message in told), (beginning, told)
    failed = next(line for message, line in lines.items() if message.startswith("view share: transaction 2 fails"))
    assert (failed.transaction, failed.error_code) == (2, "view_failed")
    stalled = next(line for message, line in lines.items() if "is stalled" in message)
    assert stalled.error_code == "source_failed"
    assert "Correct the cause" in stalled.message, "the remedy"


def test_a_slow_transaction_is_logged_with_the_time_of_its_phases() -> None:
    slow = replace(SETTINGS, slow_transaction_s=1e-9)
    with Ring() as ring, open_pipeline(storage(), settings=slow) as p:
        for number in (1, 2):
            p.push("orders", [order(number)])
            p.commit()
        [line] = [line for line in ring.lines() if line.level == "warning"]
        assert line.message.startswith("transaction 2 took"), "the first one is not reported as slow"
    assert all(phase in line.message for phase in ("read", "bind", "compute", "commit"))


def test_logs_go_to_standard_error_in_the_chosen_format(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(is_json=True, logs=LogOptions(LogFormat.JSON, LogLevel.INFO, "shop"))
    loggers = (logging.getLogger(), logging.getLogger("evertide"))
    try:
        logger.info("a checkpoint")
        logging.getLogger("a.library").warning("something")
        output.write_line({"event": "opened"})
        out, err = capsys.readouterr()
        assert [json.loads(line) for line in out.splitlines()] == [{"event": "opened"}]
        told = [json.loads(line) for line in err.splitlines()]
        assert [(line["logger"], line["message"]) for line in told] == [
            ("evertide.tests.logs", "a checkpoint"),
            ("a.library", "something"),
        ]
        assert {line["pipeline"] for line in told} == {"shop"}
        configure_logging(output.err, LogOptions())
        logger.info("below the level")
        logger.warning("logged once")
        out, err = capsys.readouterr()
        assert (out, err) == ("", "evertide: warning: logged once\n")
    finally:
        for each in loggers:
            each.handlers = [handler for handler in each.handlers if "evertide.cli" not in type(handler).__module__]
