"""`plan`: show what a script would change in a storage, without running it."""

from __future__ import annotations

from contextlib import ExitStack

from evertide.cli.options import Json, Master, Meta, Script, Storage
from evertide.cli.output.output import Bars, Output, report_errors
from evertide.cli.running.consent import render_change
from evertide.cli.running.spark import open_spark
from evertide.pipeline.reading.reader import StorageReader, is_there
from evertide.pipeline.script import read_script
from evertide.settings import Settings

__all__ = ["plan"]


@report_errors
def plan(*, script: Script, storage: Storage, meta: Meta = None, master: Master = None, is_json: Json = False) -> None:
    """Show what a script would change in a storage. Nothing is changed, and the pipeline can run meanwhile.

    Example: evertide plan shop.sql --storage shop.evertide
    """
    output = Output(is_json=is_json)
    text, path, _ = read_script(script)
    with ExitStack() as stack, Bars(output) as bars:
        reader = stack.enter_context(StorageReader.open(storage, meta)) if is_there(storage) else None
        with bars.show_work("Spark"):
            session = stack.enter_context(open_spark(master))
        from evertide.pipeline.script_change import describe_change, read_script_change  # noqa: PLC0415 - pyspark
        from evertide.pipeline.spark_engine import SparkEngine  # noqa: PLC0415 - pyspark

        engine = SparkEngine(session, text, path)
        if reader is None:
            change = describe_change(None, engine, lambda _: 0)
        else:
            change = read_script_change(reader.storage, engine, reader.runtime, reader.settings)
    reasons = change.find_reasons_to_ask(Settings().confirm_rows)
    if is_json:
        output.write_document({"is_new": change.is_new, "changes": change.changes, "reasons_to_ask": reasons})
    else:
        output.say(render_change(change, str(script)))
