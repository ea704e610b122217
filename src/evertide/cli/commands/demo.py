"""`demo`: runs a simulated auction house (Nexmark), and nine views of it that are always up to date.

It is an ordinary pipeline (`demo.sql` beside this file). After any exit, even kill -9, a new start continues where
the last one stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from evertide.cli import options
from evertide.cli.output.live_display import LiveDisplay
from evertide.cli.output.output import Bars, Output, report_errors
from evertide.cli.recompute import Comparison, recompute_views
from evertide.cli.running.open_pipeline import open_pipeline, stop_by_signals
from evertide.cli.running.serve import make_listen_options, open_observers, open_server, serve_pipeline
from evertide.errors import Diverged
from evertide.formats import format_bytes
from evertide.pipeline.reading.readable_rows import make_row_table
from evertide.pipeline.status.report import make_collections_table
from evertide.settings import Settings
from evertide.tables import TextTable

if TYPE_CHECKING:
    from evertide.pipeline.pipeline import Pipeline

_RATE = "rate '2000'"
_SHOWN_VIEW = "category_prices"
_COUNT_STATE_EVERY = 5


@report_errors
def demo(
    *,
    storage: Annotated[
        str,
        typer.Option(
            "--storage", metavar="DIR", help="The next start with this storage continues where this one ends."
        ),
    ] = "demo.evertide",
    transactions: Annotated[
        int | None,
        typer.Option("--transactions", metavar="N", min=1, help="End after N more transactions, and check all views."),
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", metavar="EVENTS", min=0, help="Events per second; 0 is as many as possible.")
    ] = 2000,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address of the console; port 0 is any free port.")
    ] = ":0",
    tokens: options.Tokens = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    tls_client_ca: options.TlsClientCa = None,
    allow_host: options.AllowHost = None,
    allow_origin: options.AllowOrigin = None,
    insecure: options.Insecure = False,
    master: options.Master = None,
    is_json: options.Json = False,
) -> None:
    """Run a live demo: an auction house, and nine views of it.

    The people, auctions and bids are those of the benchmark Nexmark. Open the console, whose address the command
    prints, in a browser. Ctrl-C ends the demo with a checkpoint. After any exit, even kill -9, a new start continues
    where the last one stopped. With --transactions, every view is compared at the end with its full computation by
    Spark.

    Example: evertide demo --rate 5000
    """
    output = Output(is_json=is_json)
    settings = Settings(checkpoint_interval_s=20)
    tls = (tls_cert, tls_key, tls_client_ca)
    listen_options = make_listen_options(
        tokens=tokens, tls=tls, hosts=allow_host, origins=allow_origin, insecure=insecure, settings=settings
    )
    with (
        open_server(listen, listen_options) as server,
        open_observers(storage, listens=True, traces=False) as observers,
        open_pipeline(
            read_demo_script(rate), storage, output, master=master, settings=settings, observer=observers.observer
        ) as pipeline,
    ):
        before = pipeline.time
        if is_json:
            output.write_line({"event": "opened", "time": before, "views": list(pipeline.definition.views)})
        else:
            start = f"continuing after transaction {before}" if before > 0 else "a new auction house"
            output.print_message(Text(f"{start}; storage {pipeline.storage.root}"))
        display = _DemoDisplay(pipeline, output)
        serving = serve_pipeline(server, pipeline, output, listen_options, observers, is_quiet=False)
        with stop_by_signals(pipeline, output), serving, display.draw():
            pipeline.run(transactions=transactions, on_transaction=display.record)
        if transactions is not None and display.transactions >= transactions:
            _check(pipeline, output, display)
        elif is_json:
            output.write_line({"event": "stopped", "time": pipeline.time, "transactions": display.transactions})
        else:
            output.print_message(Text(f"stopped at time {pipeline.time}; a new start continues from there"))


def read_demo_script(rate: float) -> str:
    script = files("evertide.cli.commands").joinpath("demo.sql").read_text("utf-8")
    return script.replace(_RATE, f"rate '{rate:g}'", 1)


class _DemoDisplay(LiveDisplay):
    """Also shows the state of the views, and the rows of one view."""

    is_transient = False

    def __init__(self, pipeline: Pipeline, output: Output) -> None:
        super().__init__(pipeline, output)
        self._state = ""
        self._count_state()

    def record(self, time: int, took_s: float) -> None:
        super().record(time, took_s)
        if self.transactions % _COUNT_STATE_EVERY == 0:
            self._count_state()

    def _count_state(self) -> None:
        arrangements = {each.name: each for found in self.pipeline.explain() for each in found.arrangements}.values()
        rows, size = sum(each.rows for each in arrangements), sum(each.bytes for each in arrangements)
        self._state = f"state: {len(arrangements)} arrangements, {rows:,} rows, {format_bytes(size)}"

    def panels(self) -> Iterator[Any]:
        yield from super().panels()
        yield Text(self._state, "dim")
        yield ""
        yield make_collections_table(self.status().collections).to_rich()
        yield ""
        yield make_row_table(_SHOWN_VIEW, self.pipeline.view(_SHOWN_VIEW).to_arrow().sort_by("category")).to_rich()
        yield Text("Ctrl-C ends the demo; or try kill -9, and start it again", "dim")


def _check(pipeline: Pipeline, output: Output, display: LiveDisplay) -> None:
    time = pipeline.time
    with Bars(output) as bars:
        found = []
        queries = _list_queries(pipeline)
        for one in recompute_views(pipeline, queries, time):
            found.append(one)
            bars.show("check", len(found), len(queries))
    if output.is_json:
        views = [{"view": one.view, "rows": one.rows, "is_same": one.is_same} for one in found]
        counts = {"transactions": display.transactions, "rows": display.rows}
        output.write_line({"event": "checked", "time": time, **counts, "views": views})
    else:
        _show_comparison(output, found, display)
    for one in found:
        if not one.is_same:
            surplus = f"{len(one.surplus)} too many, such as {one.surplus[:1]}"
            missing = f"{len(one.missing)} missing, such as {one.missing[:1]}"
            difference = f"other rows than Spark computes from scratch: {surplus}; {missing}"
            raise Diverged(where=f"view {one.view!r}", time=time, expected="", found=difference)


def _show_comparison(output: Output, found: list[Comparison], display: LiveDisplay) -> None:
    output.print_message(display.summary())
    rows = [
        (one.view, f"{one.rows:,}", Text("the same", "green") if one.is_same else Text("not the same", "red"))
        for one in found
    ]
    output.print_message()
    output.print_message(TextTable("Compared with Spark from scratch", ("view", "rows", "content"), rows, ("rows",)))


def _list_queries(pipeline: Pipeline) -> dict[str, str]:
    """The queries of the materialized views, by name."""
    from evertide.pipeline.spark_engine import SparkEngine  # noqa: PLC0415 - pyspark
    from evertide.plan.script.statements import ViewStatement  # noqa: PLC0415 - pyspark

    engine = pipeline.engine
    statements = engine.program.statements if isinstance(engine, SparkEngine) else []
    return {one.name: one.query for one in statements if isinstance(one, ViewStatement) and one.is_materialized}
