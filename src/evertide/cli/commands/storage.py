"""`fsck`, `gc`, `export`, `import`: maintenance of a storage. None of them needs Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from evertide.checkpoint.archive import export as export_archive
from evertide.checkpoint.archive import import_archive
from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.fsck import Report, check
from evertide.checkpoint.repair import repair as repair_storage
from evertide.checkpoint.verification import Progress
from evertide.cli.options import Json, Meta, Storage
from evertide.cli.output.output import Bars, Output, error_to_dict, report_errors
from evertide.errors import Damaged, InvalidInput
from evertide.formats import format_bytes
from evertide.json_values import to_json_value
from evertide.pipeline.maintenance.sweep import sweep
from evertide.pipeline.reading.reader import StorageReader, check_is_there
from evertide.pipeline.recovery.damaged_views import PipelineCollections
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import open_for_repair
from evertide.tables import TextTable


@report_errors
def fsck(
    *,
    storage: Storage,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired; nothing is deleted.")] = False,
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """Read a whole storage and list all damage. Exits with 8 if there is any.

    A check changes nothing, and the pipeline can run meanwhile. For a repair, stop the pipeline.

    Example: evertide fsck --storage shop.evertide
    """
    output = Output(is_json=is_json)
    check_is_there(storage)
    settings, runtime = Settings(), SystemRuntime()
    opened = open_for_repair(storage, meta, runtime=runtime, settings=settings, change=repair)
    repairs: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    try:
        context = StorageContext(opened.blob, opened.meta, runtime, settings)
        declared = PipelineCollections(opened.meta, runtime, settings)
        with Bars(output) as bars:

            def show(progress: Progress) -> None:
                bars.show_bytes("verify", progress.bytes, progress.bytes_all)

            if repair:
                found = repair_storage(context, show, declared)
                repairs, moved, report = found.done, found.moved, found.report
            else:
                report = check(context, show, declared.collections())
    finally:
        opened.close()
    if is_json:
        output.write_document(
            {**to_json_value(report), "is_sound": report.is_sound, "repaired": repairs, "moved": moved}
        )
    else:
        _show(output, report, repairs, moved)
    if not report.is_sound:
        raise typer.Exit(Damaged.exit_code)


def _show(output: Output, report: Report, repairs: tuple[str, ...], moved: tuple[str, ...]) -> None:
    for sentence in repairs:
        output.print_message(Text(f"repair: {sentence}", "yellow"))
    if moved:
        output.print_message(Text(f"moved {len(moved)} files that no record names to lost+found/", "yellow"))
    if report.problems:
        rows = [(Text(one.kind, "red"), one.path, one.why, one.remedy) for one in report.problems]
        output.print_message(TextTable("", ("kind", "path", "problem", "remedy"), rows))
    if report.orphans:
        count = f"{len(report.orphans)} {'file is' if len(report.orphans) == 1 else 'files are'}"
        output.print_message(Text(f"{count} left over, which is no damage; `evertide gc` deletes such files", "dim"))
    if report.unknown_orphans:
        output.print_message(Text("files that no record names cannot be listed, because some records cannot be read"))
    seen = f"{report.shards} shards, {report.checkpoints} checkpoints, {report.transactions} transactions, "
    seen += f"{report.files} files, {format_bytes(report.bytes)}"
    problems = f"{len(report.problems)} {'problem' if len(report.problems) == 1 else 'problems'}"
    problems += " could not be repaired" if repairs else ""
    output.print_message(Text.assemble(("sound", "green") if report.is_sound else (problems, "red"), f": {seen}"))


@report_errors
def gc(*, storage: Storage, meta: Meta = None, is_json: Json = False) -> None:
    """Delete files of a stopped pipeline that are not needed.

    A running pipeline does this by itself.

    Example: evertide gc --storage shop.evertide
    """
    output = Output(is_json=is_json)
    with StorageReader.open(storage, meta) as reader, Bars(output) as bars:
        garbage = sweep(reader.storage, bars.show, runtime=reader.runtime, settings=reader.settings)
    kinds = {kind: getattr(garbage, kind) for kind in ("parts", "rollups", "state", "checkpoints", "staged")}
    if is_json:
        output.write_document(
            {"deleted": kinds, "count": garbage.count, "refused": [error_to_dict(one) for one in garbage.refused]}
        )
    else:
        for kind, keys in kinds.items():
            for key in keys:
                output.print_message(Text(f"{kind:<12} {key}", "dim"))
        output.print_message(Text(f"{garbage.count} files deleted"))
        for one in garbage.refused:
            output.err.print(Text(f"evertide: not deleted: {one}", "red"))
    if garbage.refused:
        raise typer.Exit(garbage.refused[0].exit_code)


@report_errors
def export(
    *,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", help="Number of the checkpoint; see `evertide checkpoints`.")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write.")],
    storage: Storage,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """Write a checkpoint and the files that it needs to an archive.

    The pipeline can run meanwhile.

    Example: evertide export 7 shop.tar --storage shop.evertide
    """
    output = Output(is_json=is_json)
    if file.exists() and not force:
        raise InvalidInput(where=str(file), why="the file exists; set --force to replace it")
    with StorageReader.open(storage, meta) as reader, Bars(output) as bars, bars.show_work("export"):
        entries = {entry.number: entry for entry in reader.checkpoints.entries()}
        if number not in entries:
            why = f"the checkpoint does not exist; the storage has {', '.join(map(str, sorted(entries))) or 'none'}"
            raise InvalidInput(where=f"checkpoint {number}", why=why)
        export_archive(reader.checkpoints, entries[number], file)
    size = file.stat().st_size
    time = entries[number].time
    output.report(
        {"number": number, "time": time, "file": str(file), "bytes": size},
        f"checkpoint {number} at time {time}: {file}, {format_bytes(size)}",
    )


@report_errors
def import_(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive from `evertide export`.")],
    storage: Storage,
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """Create a new storage from an archive. The place must be empty.

    Example: evertide import shop.tar --storage copy.evertide
    """
    output = Output(is_json=is_json)
    if not file.is_file():
        raise InvalidInput(where=str(file), why="the archive does not exist")
    with Bars(output) as bars, bars.show_work("import"):
        manifest = import_archive(file, storage, meta, runtime=SystemRuntime(), settings=Settings())
    output.report(
        {"number": manifest.number, "time": manifest.time, "storage": storage},
        f"{storage}: imported checkpoint {manifest.number} at time {manifest.time}",
    )
