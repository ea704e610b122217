"""Spans, with OpenTelemetry's in-memory exporter; and no import of OpenTelemetry without `--traces`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from evertide.errors import InvalidInput, SetupIncomplete, Unavailable
from evertide.metrics.traces import Traces, open_traces
from evertide.observer import DeliveryEvent, RequestEvent
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from tests.metrics.kit import order
from tests.pipeline.kit import SETTINGS, engine, storage


def spans(exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def open_traced(observer: Traces) -> Pipeline:
    return Pipeline(
        engine(),
        storage(),
        base=Path(),
        runtime=SystemRuntime(),
        settings=SETTINGS,
        threads=False,
        observer=observer,
    )


def test_a_transaction_is_a_span_with_its_phases_below_it() -> None:
    exporter = InMemorySpanExporter()
    traces = open_traces(SystemRuntime(), exporter)
    with open_traced(traces) as p:
        exporter.clear()
        p.push("orders", [order(1), order(2)])
        p.commit()
        p.checkpoint()
        found = spans(exporter)
    [whole] = found["transaction"]
    assert whole.attributes is not None
    assert whole.attributes["evertide.time"] == 1
    assert (whole.attributes["evertide.rows_in"], whole.attributes["evertide.how"]) == (2, "committed")
    for phase in ("read", "bind", "compute", "commit"):
        for span in found[phase]:
            assert span.parent is not None
            assert span.parent.span_id == whole.context.span_id
            assert whole.start_time is not None
            assert span.start_time is not None
            assert span.end_time is not None
            assert whole.end_time is not None
            assert whole.start_time - 1_000_000 <= span.start_time <= span.end_time <= whole.end_time + 1_000_000
    assert found["checkpoint"][0].attributes
    assert whole.resource.attributes["service.name"] == "evertide"


def test_a_later_delivery_belongs_to_its_transaction_and_a_request_to_its_trace() -> None:
    exporter = InMemorySpanExporter()
    traces = open_traces(SystemRuntime(), exporter)
    with open_traced(traces) as p:
        p.push("orders", [order(1)])
        t = p.commit()
        traces.on_delivery(DeliveryEvent("lake", t, 1, 1.0, 0.1))
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        traces.on_request(RequestEvent("GET", "/v1/status", 200, 1.0, 0.1, "", parent))
        found = spans(exporter)
    whole = found["transaction"][-1]
    [delivered] = found["deliver"]
    assert delivered.parent is not None
    assert delivered.parent.span_id == whole.context.span_id
    [asked] = found["GET /v1/status"]
    assert f"{asked.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"


def test_a_transaction_that_fails_is_a_span_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    traces = open_traces(SystemRuntime(), exporter)

    def away(*_: Any, **__: Any) -> None:
        raise Unavailable(path="disk", why="away")

    with open_traced(traces) as p:
        exporter.clear()
        p.push("orders", [order(1)])
        with monkeypatch.context() as patch:
            patch.setattr("evertide.pipeline.transaction.runner.append_together", away)
            with pytest.raises(Unavailable):
                p.commit()
        found = spans(exporter)
        [failed] = found["transaction"]
        assert failed.status.status_code is StatusCode.ERROR
        assert failed.attributes is not None
        assert failed.attributes["error.type"] == "unavailable"
        p.advance()
        assert p.time == 1, "the transaction waited, and is committed"
        assert spans(exporter)["transaction"][-1].status.status_code is not StatusCode.ERROR


def test_traces_without_opentelemetry_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(SetupIncomplete, match=r"evertide\[traces\]"):
        open_traces(SystemRuntime())


def test_an_unknown_exporter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(InvalidInput, match="zipkin"):
        open_traces(SystemRuntime())
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    open_traces(SystemRuntime()).close()


def test_opentelemetry_is_imported_only_for_traces() -> None:
    modules = "evertide.cli.main, evertide.metrics, evertide.server.app"
    program = f"import sys, {modules}; print('opentelemetry' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert told.stdout.strip() == "False"
