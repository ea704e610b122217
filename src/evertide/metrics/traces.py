"""`Traces`: the same that metrics count, as spans of OpenTelemetry. An extra: `pip install 'evertide[traces]'`.

    transaction            with the number, how it came about, and its rows
      read, bind, compute, commit, replay
      deliver              to a sink, as long as the transaction is one of the last
    checkpoint
    GET /v1/status         a request, under the trace that it names in `traceparent`

1. It is configured by the variables that OpenTelemetry itself defines: where spans go, how many of them, which name the
   service has. Without `--traces` nothing of it is imported, and nothing is spent on it.
2. Spans are made when the thing is over, with the times that it had: nothing waits for them. They are sent by a thread
   of the library; what cannot be sent is dropped, and said by it in the log.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evertide.errors import InvalidInput
from evertide.observer import Checkpointed, Delivered, Fault, Lap, Observer, Requested, Transacted
from evertide.runtime import Runtime

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

__all__ = ["Traces", "open_traces"]

_REMEMBERED = 1000
_NS = 1_000_000_000


class Traces(Observer):
    def __init__(self, provider: TracerProvider, runtime: Runtime) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - an extra

        self._trace = trace
        self._provider = provider
        self._tracer = provider.get_tracer("evertide")
        self._runtime = runtime
        self._lately: OrderedDict[int, Context] = OrderedDict()
        """Of the last transactions, so that what is delivered later belongs to them."""

    def transacted(self, made: Transacted) -> None:
        if not made.laps:
            return
        attributes = {
            "evertide.time": made.time,
            "evertide.how": made.how,
            "evertide.rows_in": sum(made.sources.values()),
            "evertide.rows_out": sum(written.rows for written in made.collections.values()),
        }
        self._lately[made.time] = self._with_laps(made.laps, attributes)
        while len(self._lately) > _REMEMBERED:
            self._lately.popitem(last=False)

    def delivered(self, made: Delivered) -> None:
        attributes = {"evertide.time": made.time, "evertide.sink": made.sink, "evertide.rows": made.rows}
        self._span("deliver", made.began_s, made.took_s, attributes, self._lately.get(made.time))

    def checkpointed(self, made: Checkpointed) -> None:
        attributes = {"evertide.time": made.time, "evertide.checkpoint": made.number, "evertide.files": made.files}
        self._span("checkpoint", made.began_s, made.took_s, attributes)

    def failed(self, fault: Fault) -> None:
        """Of a transaction that came to nothing, for now, the phases that it went through."""
        if fault.laps and fault.time is not None:
            attributes = {"evertide.time": fault.time, "error.type": fault.error_code}
            self._with_laps(fault.laps, attributes, error_code=fault.error_code)

    def requested(self, made: Requested) -> None:
        attributes = {
            "http.request.method": made.method,
            "http.route": made.route,
            "http.response.status_code": made.code,
        }
        kind = self._trace.SpanKind.SERVER
        name, parent = f"{made.method} {made.route}", self._parent(made.traceparent)
        self._span(name, made.began_s, made.took_s, attributes, parent, kind)

    def close(self) -> None:
        """What was not sent yet is sent, if it can be."""
        self._provider.shutdown()

    def _with_laps(self, laps: tuple[Lap, ...], attributes: Mapping[str, Any], error_code: str = "") -> Context:
        first, last = laps[0], laps[-1]
        whole_s = last.began_s + last.took_s - first.began_s
        span = self._begun("transaction", first.began_s, attributes)
        under = self._trace.set_span_in_context(span)
        for lap in laps:
            self._span(lap.phase, lap.began_s, lap.took_s, {"evertide.time": attributes["evertide.time"]}, under)
        if error_code:
            span.set_status(self._trace.StatusCode.ERROR, error_code)
        span.end(self._ns(first.began_s + whole_s))
        return under

    def _span(  # noqa: PLR0917
        self,
        name: str,
        began_s: float,
        took_s: float,
        attributes: Mapping[str, Any],
        under: Context | None = None,
        kind: Any = None,
    ) -> None:
        self._begun(name, began_s, attributes, under, kind).end(self._ns(began_s + took_s))

    def _begun(
        self, name: str, began_s: float, attributes: Mapping[str, Any], under: Context | None = None, kind: Any = None
    ) -> Span:
        kind = kind or self._trace.SpanKind.INTERNAL
        return self._tracer.start_span(
            name, context=under, kind=kind, attributes=dict(attributes), start_time=self._ns(began_s)
        )

    def _ns(self, at_s: float) -> int:
        """By the wall clock, as it is now."""
        return int((self._runtime.wall_s() - (self._runtime.monotonic_s() - at_s)) * _NS)

    def _parent(self, traceparent: str) -> Context | None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        if not traceparent:
            return None
        return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def open_traces(runtime: Runtime, exporter: SpanExporter | None = None) -> Traces:
    """As the environment says; to another exporter, if one is given."""
    try:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        why = "OpenTelemetry is not installed: pip install 'evertide[traces]', or go without traces"
        raise InvalidInput(where="--traces", why=why) from error
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "evertide"}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    elif (found := _exporter()) is not None:
        provider.add_span_processor(BatchSpanProcessor(found))
    return Traces(provider, runtime)


def _exporter() -> SpanExporter | None:
    asked = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() or "otlp"
    if asked == "none":
        return None
    if asked == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter  # noqa: PLC0415

        return ConsoleSpanExporter(out=sys.stderr)
    if asked != "otlp":
        why = f"OTEL_TRACES_EXPORTER is {asked!r}: expected 'otlp' (by HTTP), 'console' or 'none'"
        raise InvalidInput(where="--traces", why=why)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    return OTLPSpanExporter()
