"""`Traces`: an observer that exports OpenTelemetry spans. An extra: `pip install 'evertide[traces]'`.

    transaction            with its number, how it was committed, and its row counts
      read, bind, compute, commit, replay
      deliver              to a sink, while the transaction is among the last `_RECENT_MAX`
    checkpoint
    GET /v1/status         a request, under the trace that its `traceparent` header names

1. The standard OpenTelemetry environment variables configure the destination, the sampling and the service name.
   Without `--traces` nothing of OpenTelemetry is imported, and traces cost nothing.
2. A span is created when its work is done, with the times of the work: nothing waits for it. A thread of the library
   sends the spans; it drops spans that it cannot send, and logs that.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evertide.errors import InvalidInput
from evertide.extras import import_extra
from evertide.observer import (
    CheckpointEvent,
    DeliveryEvent,
    FailureEvent,
    Observer,
    RequestEvent,
    TimedPhase,
    TransactionEvent,
)
from evertide.runtime import Runtime

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

_RECENT_MAX = 1000
_NS = 1_000_000_000


class Traces(Observer):
    def __init__(self, provider: TracerProvider, runtime: Runtime) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - an extra

        self._trace = trace
        self._provider = provider
        self._tracer = provider.get_tracer("evertide")
        self._runtime = runtime
        self._recent: OrderedDict[int, Context] = OrderedDict()
        """The span contexts of the last transactions: later deliveries become their children."""

    def on_transaction(self, event: TransactionEvent) -> None:
        if not event.phases:
            return
        attributes = {
            "evertide.time": event.time,
            "evertide.how": event.how,
            "evertide.rows_in": sum(event.sources.values()),
            "evertide.rows_out": sum(written.rows for written in event.collections.values()),
        }
        self._recent[event.time] = self._record_phases(event.phases, attributes)
        while len(self._recent) > _RECENT_MAX:
            self._recent.popitem(last=False)

    def on_delivery(self, event: DeliveryEvent) -> None:
        attributes = {"evertide.time": event.time, "evertide.sink": event.sink, "evertide.rows": event.rows}
        self._record_span("deliver", event.began_s, event.took_s, attributes, self._recent.get(event.time))

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        attributes = {"evertide.time": event.time, "evertide.checkpoint": event.number, "evertide.files": event.files}
        self._record_span("checkpoint", event.began_s, event.took_s, attributes)

    def on_failure(self, event: FailureEvent) -> None:
        """Record the phases of a failed transaction, which will be retried."""
        if event.phases and event.time is not None:
            attributes = {"evertide.time": event.time, "error.type": event.error_code}
            self._record_phases(event.phases, attributes, error_code=event.error_code)

    def on_request(self, event: RequestEvent) -> None:
        attributes = {
            "http.request.method": event.method,
            "http.route": event.route,
            "http.response.status_code": event.code,
        }
        kind = self._trace.SpanKind.SERVER
        name, parent = f"{event.method} {event.route}", self._extract_parent(event.traceparent)
        self._record_span(name, event.began_s, event.took_s, attributes, parent, kind)

    def close(self) -> None:
        """Send the remaining spans, if possible."""
        self._provider.shutdown()

    def _record_phases(
        self, phases: tuple[TimedPhase, ...], attributes: Mapping[str, Any], error_code: str = ""
    ) -> Context:
        first, last = phases[0], phases[-1]
        whole_s = last.began_s + last.took_s - first.began_s
        span = self._start_span("transaction", first.began_s, attributes)
        parent = self._trace.set_span_in_context(span)
        for phase in phases:
            self._record_span(
                phase.phase, phase.began_s, phase.took_s, {"evertide.time": attributes["evertide.time"]}, parent
            )
        if error_code:
            span.set_status(self._trace.StatusCode.ERROR, error_code)
        span.end(self._to_wall_ns(first.began_s + whole_s))
        return parent

    def _record_span(  # noqa: PLR0917
        self,
        name: str,
        began_s: float,
        took_s: float,
        attributes: Mapping[str, Any],
        parent: Context | None = None,
        kind: Any = None,
    ) -> None:
        self._start_span(name, began_s, attributes, parent, kind).end(self._to_wall_ns(began_s + took_s))

    def _start_span(
        self, name: str, began_s: float, attributes: Mapping[str, Any], parent: Context | None = None, kind: Any = None
    ) -> Span:
        kind = kind or self._trace.SpanKind.INTERNAL
        return self._tracer.start_span(
            name, context=parent, kind=kind, attributes=dict(attributes), start_time=self._to_wall_ns(began_s)
        )

    def _to_wall_ns(self, at_s: float) -> int:
        """Convert a monotonic time to the wall clock."""
        return int((self._runtime.wall_s() - (self._runtime.monotonic_s() - at_s)) * _NS)

    def _extract_parent(self, traceparent: str) -> Context | None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        if not traceparent:
            return None
        return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def open_traces(runtime: Runtime, exporter: SpanExporter | None = None) -> Traces:
    """Configured by the environment; `exporter`, if given, replaces the configured one."""
    import_extra("opentelemetry.sdk", "traces", "the option --traces")
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor  # noqa: PLC0415

    defaults = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "evertide"}
    provider = TracerProvider(resource=Resource.create(defaults), shutdown_on_exit=False)
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    elif (configured := _open_exporter()) is not None:
        provider.add_span_processor(BatchSpanProcessor(configured))
    return Traces(provider, runtime)


def _open_exporter() -> SpanExporter | None:
    name = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() or "otlp"
    if name == "none":
        return None
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter  # noqa: PLC0415

        return ConsoleSpanExporter(out=sys.stderr)
    if name != "otlp":
        why = f"OTEL_TRACES_EXPORTER must be 'otlp' (over HTTP), 'console' or 'none', not {name!r}"
        raise InvalidInput(where="--traces", why=why)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    return OTLPSpanExporter()
