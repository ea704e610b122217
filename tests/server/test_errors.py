"""S3: every class of error reaches the log, the status, HTTP and the exit code; and unexpected errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
import typer

from evertide import errors
from evertide.cli.output.output import report_errors
from evertide.errors import EvertideError, GenerationMoved, OutcomeUnknown, Unavailable
from evertide.journal.journal import Journal
from evertide.json_values import join_lines
from evertide.pipeline.pipeline import Pipeline
from evertide.server.http.answers import STATUS, choose_status
from tests.server.kit import Client, order, shop

ROWS = "/v1/tables/orders/rows"

EXPECTED = {
    "error": 500,
    "invalid_input": 400,
    "not_allowed_now": 409,
    "closed": 503,
    "conflict": 409,
    "upper_mismatch": 409,
    "time_compacted": 410,
    "fenced": 500,
    "generation_moved": 500,
    "lease_lost": 503,
    "limit_exceeded": 422,
    "unavailable": 503,
    "storage_full": 507,
    "storage_forbidden": 503,
    "scratch_unavailable": 503,
    "system_refused": 503,
    "spark_away": 503,
    "query_ended": 503,
    "recomputing": 503,
    "outcome_unknown": 504,
    "source_failed": 502,
    "source_away": 502,
    "source_changed": 502,
    "sink_failed": 502,
    "diverged": 500,
    "view_failed": 500,
    "state_diverged": 500,
    "spark_ended": 500,
    "damaged": 500,
    "blob_missing": 500,
    "blob_damaged": 500,
    "record_damaged": 500,
    "checkpoint_damaged": 500,
    "archive_damaged": 500,
    "unexpected": 500,
    "unsupported_format": 500,
    "setup_incomplete": 500,
    "shard_ended": 409,
    "state_inconsistent": 500,
    "unauthorized": 401,
    "forbidden": 403,
}


def tree(kind: type[EvertideError] = EvertideError) -> Iterator[type[EvertideError]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__.startswith("evertide.errors"):
            yield from tree(below)


def example(kind: type[EvertideError]) -> EvertideError:
    hints = get_type_hints(kind)
    made: dict[Any, Any] = {str: "some\nthing", int: 7, tuple[str, ...]: ("a", "b")}
    return kind(**{field.name: made[hints[field.name]] for field in fields(kind)})


def test_every_class_of_error_has_its_code() -> None:
    """The codes are part of the API: clients act on them."""
    assert {kind.error_code: choose_status(example(kind)) for kind in tree()} == EXPECTED
    assert {kind.__name__ for kind in tree()} == set(errors.__all__)
    assert all(kind in set(tree()) for kind in STATUS)


@pytest.mark.parametrize(
    "kind", [kind for kind in tree() if kind is not GenerationMoved], ids=lambda kind: str(kind.error_code)
)
def test_s3_an_error_reaches_log_status_http_and_exit_code(
    kind: type[EvertideError], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error fails a transaction. (A changed generation is followed, and not reported.) Each of these fails when it
    is removed: the log in `refused`, the code in `STATUS`, the error that `advance` keeps for the status, the exit
    code in `report_errors`."""
    error = example(kind)
    caplog.set_level(logging.INFO, "evertide")
    with shop() as (p, client):
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "bind", raising(error))
            answer = client.post(ROWS, [order(1)])
        check_answer(answer.status, answer.body, error)
        logged = [record for record in caplog.records if record.name == "evertide.server.http.answers"]
        assert [error.error_code in record.getMessage() for record in logged] == [True]
        assert logged[0].levelno == (logging.ERROR if answer.status >= 500 else logging.INFO)
        check_status(p, client, error)
    assert exit_code(error) == error.exit_code != 0


def check_answer(status: int, body: dict[str, Any], error: EvertideError) -> None:
    assert (status, body["error_code"]) == (EXPECTED[error.error_code], error.error_code)
    assert body["remedy"] == error.remedy
    assert body["message"] == join_lines(error.message)
    assert "\n" not in body["message"]
    assert body.keys() >= set(error.facts)
    assert "exit_code" not in body
    assert "Traceback" not in str(body)


def check_status(p: Pipeline, client: Client, error: EvertideError) -> None:
    """Check that a temporary storage error ends nothing, and that the status keeps all other errors."""
    status, health = client.get("/v1/status").body, client.get("/v1/health")
    if isinstance(error, Unavailable | OutcomeUnknown):
        assert (status["state"], health.status) == ("running", 200)
        assert client.post(ROWS, [order(1)]).status == 200
        return
    assert status["state"] == p.status().state != "running"
    assert (status["problems"][0]["error_code"], status["remedy"]) == (error.error_code, error.remedy)
    assert health.status == 503
    assert (health.body["status"], health.body["error_code"]) == (status["state"], error.error_code)
    again = client.post(ROWS, [order(1)])
    assert (again.status, again.body["error_code"]) == (EXPECTED[error.error_code], error.error_code)


def exit_code(error: EvertideError) -> int:
    with pytest.raises(typer.Exit) as ended:
        report_errors(raising(error))()
    return ended.value.exit_code


def test_an_unexpected_error_is_answered_with_an_id_of_the_log_and_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails without `ErrorGuard`: starlette answers in plain text."""
    with shop() as (_, client):
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "status", raising(ZeroDivisionError("the inner life")))
            answer = client.get("/v1/status")
        assert (answer.status, answer.body["error_code"]) == (500, "error")
        assert "inner life" not in str(answer.body)
        [logged] = caplog.records
        assert answer.body["id"] in logged.getMessage()
        assert logged.exc_info is not None
        assert client.get("/v1/status").status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/tables/a/b/rows", 404, "not_found"),
        ("DELETE", ROWS, 405, "method_not_allowed"),
        ("DELETE", "/v1/checkpoints", 405, "method_not_allowed"),
    ],
)
def test_unknown_addresses_and_methods_are_404_and_405(method: str, path: str, status: int, code: str) -> None:
    with shop() as (_, client):
        answer = client.ask(method, path)
        assert (answer.status, answer.body["error_code"]) == (status, code)
        assert answer.body.keys() == {"error_code", "message", "remedy"}
        assert f"{method} {path}" in answer.body["message"]
        assert ("allow" in answer.headers) == (status == 405)


def raising(error: Exception) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def test_an_error_that_a_client_repeats_is_logged_as_an_error_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if every answer is logged as an error, or if the next outage is not."""
    caplog.set_level(logging.INFO, "evertide")
    with shop() as (_, client):
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(Journal, "bind", raising(example(Unavailable)))
                assert {client.post(ROWS, [order(1)]).status for _ in range(5)} == {503}
            assert client.post(ROWS, [order(1)]).status == 200
    logged = [record.levelno for record in caplog.records if record.name == "evertide.server.http.answers"]
    assert logged == [logging.ERROR, *[logging.INFO] * 4] * 2
