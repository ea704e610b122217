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
from evertide.checkpoint.repair import repair as repaired
from evertide.checkpoint.verification import Progress
from evertide.cli.options import Json, Meta, Storage
from evertide.cli.output.output import Bars, Output, bytes_text, error_plain, guarded, table_of, to_json_value
from evertide.errors import Damaged, InvalidInput
from evertide.pipeline.maintenance.sweep import sweep
from evertide.pipeline.reading.reader import Reader, check_is_there
from evertide.pipeline.recovery.damaged_views import DeclaredCollections
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import open_for_repair

__all__ = ["export", "fsck", "gc", "import_"]


@guarded
def fsck(
    *,
    storage: Storage,
    repair: Annotated[bool, typer.Option("--repair", help="Bring back what can be; nothing is deleted.")] = False,
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """Read a whole storage, and say everything that is wrong with it. Ends with 8 if anything is.

    Looking changes nothing, and a pipeline may run meanwhile; a repair wants to be alone.

    Example: evertide fsck --storage shop.evertide
    """
    output = Output(is_json=is_json)
    check_is_there(storage)
    settings, runtime = Settings(), SystemRuntime()
    opened = open_for_repair(storage, meta, runtime=runtime, settings=settings, change=repair)
    done: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    try:
        place = StorageContext(opened.blob, opened.meta, runtime, settings)
        declared = DeclaredCollections(opened.meta, runtime, settings)
        with Bars(output) as bars:

            def told(progress: Progress) -> None:
                bars.told_bytes("verify", progress.bytes, progress.bytes_all)

            if repair:
                found = repaired(place, told, declared)
                done, moved, report = found.done, found.moved, found.report
            else:
                report = check(place, told, declared.collections())
    finally:
        opened.close()
    if is_json:
        output.document({**to_json_value(report), "is_sound": report.is_sound, "repaired": done, "moved": moved})
    else:
        _show(output, report, done, moved)
    if not report.is_sound:
        raise typer.Exit(Damaged.exit_code)


def _show(output: Output, report: Report, done: tuple[str, ...], moved: tuple[str, ...]) -> None:
    for sentence in done:
        output.say(Text(f"repair: {sentence}", "yellow"))
    if moved:
        output.say(Text(f"moved {len(moved)} files that nobody names below lost+found/", "yellow"))
    if report.problems:
        rows = [(Text(one.kind, "red"), one.path, one.why, one.remedy) for one in report.problems]
        output.say(table_of("", ("kind", "path", "what is wrong", "what to do"), rows))
    if report.orphans:
        output.say(Text(f"{len(report.orphans)} files that nobody names: `evertide gc` deletes them"))
    if report.unknown_orphans:
        output.say(Text("files that nobody names cannot be told, as not all of what names files can be read"))
    seen = f"{report.shards} shards, {report.checkpoints} checkpoints, {report.transactions} transactions, "
    seen += f"{report.files} files, {bytes_text(report.bytes)}"
    word = Text("sound", "green") if report.is_sound else Text(_count(report, is_repaired=bool(done)), "red")
    output.say(Text.assemble(word, f": {seen}"))


def _count(report: Report, *, is_repaired: bool) -> str:
    count = len(report.problems)
    word = "problem" if count == 1 else "problems"
    return f"{count} {word} left, which could not be repaired" if is_repaired else f"{count} {word}"


@guarded
def gc(*, storage: Storage, meta: Meta = None, is_json: Json = False) -> None:
    """Delete what provably nobody needs, while nobody runs the pipeline. A running one does this by itself.

    Example: evertide gc --storage shop.evertide
    """
    output = Output(is_json=is_json)
    with Reader.open(storage, meta) as reader, Bars(output) as bars:
        swept = sweep(reader.storage, bars.told, runtime=reader.runtime, settings=reader.settings)
    kinds = {
        "parts": swept.parts,
        "rollups": swept.rollups,
        "state": swept.state,
        "checkpoints": swept.checkpoints,
        "staged": swept.staged,
    }
    if is_json:
        output.document(
            {"deleted": kinds, "count": swept.count, "refused": [error_plain(one) for one in swept.refused]}
        )
    else:
        for kind, keys in kinds.items():
            for key in keys:
                output.say(Text(f"{kind:<12} {key}", "dim"))
        output.say(Text(f"{swept.count} files deleted"))
        for one in swept.refused:
            output.err.print(Text(f"evertide: not collected: {one}", "red"))
    if swept.refused:
        raise typer.Exit(swept.refused[0].exit_code)


@guarded
def export(
    *,
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="Of the checkpoint; see `evertide checkpoints`.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write.")],
    storage: Storage,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """Write a checkpoint, and everything that it names, into one file. A pipeline may run meanwhile.

    Example: evertide export 7 shop.tar --storage shop.evertide
    """
    output = Output(is_json=is_json)
    if file.exists() and not force:
        raise InvalidInput(where=str(file), why="it is there already: --force replaces it")
    with Reader.open(storage, meta) as reader, Bars(output) as bars, bars.working("export"):
        entries = {entry.number: entry for entry in reader.checkpoints.entries()}
        if number not in entries:
            raise InvalidInput(where=f"checkpoint {number}", why=f"there is none; there are {sorted(entries)}")
        export_archive(reader.checkpoints, entries[number], file)
    size = file.stat().st_size
    if is_json:
        output.document({"number": number, "time": entries[number].time, "file": str(file), "bytes": size})
    else:
        output.say(Text(f"checkpoint {number} at time {entries[number].time}: {file}, {bytes_text(size)}"))


@guarded
def import_(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `evertide export` wrote.")],
    storage: Storage,
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """Make a new storage, at a place that is empty, from an archive.

    Example: evertide import shop.tar --storage copy.evertide
    """
    output = Output(is_json=is_json)
    if not file.is_file():
        raise InvalidInput(where=str(file), why="there is no such archive")
    with Bars(output) as bars, bars.working("import"):
        manifest = import_archive(file, storage, meta, runtime=SystemRuntime(), settings=Settings())
    if is_json:
        output.document({"number": manifest.number, "time": manifest.time, "storage": storage})
    else:
        output.say(Text(f"{storage}: as of checkpoint {manifest.number}, at time {manifest.time}"))
