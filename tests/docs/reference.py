"""The generated tables of docs/errors.md and docs/sql.md: `python -m tests.docs.reference [--write]`.

Each table stands between the comments `<!-- generated: NAME -->` and `<!-- end -->`. Tests compare it with the code;
`make reference` rewrites it."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from evertide import errors
from evertide.errors import EvertideError, InvalidInput
from evertide.server.http.answers import STATUS
from tests.docs.examples import MAINTAINED, REFUSED, TABLES, Example

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from evertide.flow.explanation.explanation import Operator, ViewExplanation

DOCS = Path(__file__).parents[2] / "docs"
_SECTION = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_COSTS = {
    "none": "nothing",
    "delta": "the delta",
    "touched groups": "touched groups",
    "scan": "the other side",
    "whole input": "all rows",
}
_HARD = list(_COSTS)

CAUSES = {
    "error": "A bug in Evertide: nothing else raises it.",
    "invalid_input": "A script, an option, a row, a query or a command is wrong.",
    "not_allowed_now": "The pipeline is paused, the replica is read-only, or a transaction has ended.",
    "closed": "The pipeline was closed, by this process or because it failed.",
    "setup_incomplete": "An optional package or Java is not installed, or Spark does not start.",
    "conflict": "Another process holds the object, or has changed it at the same time.",
    "upper_mismatch": "Two processes wrote the same times of a shard; one of them was first.",
    "shard_ended": "Another process dropped the table or view, or replaced its content, while this one used it.",
    "time_compacted": "The time is older than the history kept: that of the two newest checkpoints, and of leases.",
    "fenced": "This process was silent for longer than its time to live, or an operator promoted another process.",
    "generation_moved": "A replica added, dropped or changed views at the same moment.",
    "lease_lost": "A reader was idle for longer than its lease lasts, or its process was suspended.",
    "unavailable": "The disk, the object store or the database of Meta does not answer.",
    "storage_full": "The disk or the quota is used up.",
    "storage_forbidden": "Another user owns the files, the disk is mounted read-only, or the credentials lack a right.",
    "scratch_unavailable": "The disk of temporary files (TMPDIR, or Spark's local directories) is full or broken.",
    "system_refused": "The process or the machine is out of file handles, memory or space, or a disk fails.",
    "spark_away": "Executors were lost, or have too little memory.",
    "recomputing": "A replica computes other rows than the leader, perhaps because it runs another version.",
    "query_ended": "The process was killed, the machine is out of memory, or an engine has a bug.",
    "outcome_unknown": "The connection broke after a write was sent and before its answer arrived.",
    "archive_damaged": "The file was cut off, changed, or is not from `evertide export`.",
    "source_failed": "The input of a source is wrong: a file with other columns, a password that is refused.",
    "source_away": "The server of a source is restarting, or the network is cut.",
    "source_changed": "Records expired, a file was changed or deleted, a topic or slot was created again.",
    "sink_failed": "The target of a sink refuses the write, was replaced, or holds other data than expected.",
    "diverged": "A source no longer returns what was bound, or the machine computes something else than before.",
    "view_failed": "A row makes an expression fail (a division by zero, an overflow), or many rows exceed the memory.",
    "state_diverged": "A bug in Evertide, or damaged memory or state files; the tables are not affected.",
    "state_inconsistent": "A bug in Evertide, or damaged memory.",
    "spark_ended": "The JVM was killed, perhaps for lack of memory, or the cluster ended the application.",
    "damaged": "A file was deleted, overwritten or restored from another time; or the disk is broken.",
    "blob_missing": "A file that a record names was deleted, or not copied.",
    "blob_damaged": "A file was changed, or the disk lost bytes of it.",
    "record_damaged": "`meta.db`, or a row of it, was changed or lost.",
    "checkpoint_damaged": "Files of a checkpoint are missing or changed.",
    "unexpected": "A bug in Evertide, or a machine that is out of memory.",
    "unsupported_format": "The storage was written by a newer version of Evertide.",
    "unauthorized": "The request has no token, or one that the server does not know.",
    "forbidden": "The token's role or restriction does not allow it, or a page of another site sent the request.",
    "limit_exceeded": "A query, or a transaction in several requests, needs more than the settings allow.",
}


def error_table() -> str:
    """Return the table of error codes: summary, cause, remedy, exit code of commands, HTTP status."""
    lines = ["| `error_code` | what happened | cause | what to do | exit | HTTP |", "|---|---|---|---|---|---|"]
    for kind in _kinds(EvertideError):
        code = kind.error_code
        facts = (f"`{code}`", kind.summary, CAUSES.get(code, ""), kind.remedy, str(kind.exit_code), str(_status(kind)))
        lines.append("| " + " | ".join(each.replace("|", "\\|") for each in facts) + " |")
    return "\n".join(lines) + "\n"


def _kinds(root: type[EvertideError]) -> Iterator[type[EvertideError]]:
    """Return parents first, as the tree is drawn."""
    yield root
    for below in root.__subclasses__():
        if below.__module__.startswith(errors.__name__):
            yield from _kinds(below)


def _status(kind: type[EvertideError]) -> int:
    return next(STATUS[each] for each in kind.__mro__ if each in STATUS)


def sql_table(spark: SparkSession) -> str:
    """Return examples by kind with the operator that `explain` names, then refused ones with the reason."""
    explained = _explain_examples(spark)
    blocks = []
    for title, examples in MAINTAINED.items():
        blocks += [f"### {title}\n", "| | example | how it is maintained | a change costs |", "|---|---|---|---|"]
        blocks += [_row(example, explained[example.query]) for example in examples]
        blocks.append("")
    blocks += ["### Refused\n", "| | example | why |", "|---|---|---|"]
    blocks += [f"| {example.what} | {_code(example.query)} | {_refusal(spark, example)} |" for example in REFUSED]
    return "\n".join(blocks) + "\n"


def _explain_examples(spark: SparkSession) -> dict[str, Operator]:
    """Return, by query, the operator of the expected kind; of several, the one that costs most."""
    from evertide.flow import Circuit, explain  # noqa: PLC0415 - pyspark

    examples = [example for some in MAINTAINED.values() for example in some]
    views = [f"CREATE MATERIALIZED VIEW v{number} AS {each.query};" for number, each in enumerate(examples)]
    found = explain(Circuit(spark, "\n".join([TABLES, *views])))
    return {example.query: _meant(example, view) for example, view in zip(examples, found.views, strict=True)}


def _meant(example: Example, view: ViewExplanation) -> Operator:
    found = [operator for operator in view.operators if operator.kind == example.kind]
    assert found, f"{example.query}: {[operator.kind for operator in view.operators]}"
    return max(found, key=lambda operator: _HARD.index(operator.cost))


def _row(example: Example, operator: Operator) -> str:
    return f"| {example.what} | {_code(example.query)} | {operator.how} | {_COSTS[operator.cost]} |"


def _refusal(spark: SparkSession, example: Example) -> str:
    from evertide.plan.program.program import Program  # noqa: PLC0415 - pyspark

    try:
        Program(spark, f"{TABLES} CREATE MATERIALIZED VIEW v AS {example.query};")
    except InvalidInput as error:
        return error.why.split(" SQLSTATE")[0].replace("|", "\\|")
    raise AssertionError(f"{example.query} is not refused")


def _code(query: str) -> str:
    return f"`{query}`".replace("|", "\\|")


TABLES_OF_PAGES: dict[str, tuple[str, ...]] = {"errors.md": ("errors",), "sql.md": ("sql",)}


def generate_page(page: str, tables: dict[str, Callable[[], str]]) -> str:
    """Return the page with its generated tables rewritten."""
    return _SECTION.sub(lambda found: f"{found[1]}\n{tables[found[2]]()}\n{found[4]}", page)


def write_page(name: str, tables: dict[str, Callable[[], str]]) -> bool:
    """Rewrite a page; return whether it differed."""
    path = DOCS / name
    before = path.read_text("utf-8")
    after = generate_page(before, tables)
    path.write_text(after, "utf-8")
    return before != after


def main() -> None:
    from tests.servers.spark import running_spark  # noqa: PLC0415 - pyspark

    with tempfile.TemporaryDirectory() as scratch, running_spark(Path(scratch)) as spark:
        tables: dict[str, Callable[[], str]] = {"errors": error_table, "sql": lambda: sql_table(spark)}
        for name in TABLES_OF_PAGES:
            if "--write" in sys.argv:
                print(f"docs/{name}: {'written' if write_page(name, tables) else 'as it was'}")
            else:
                print(generate_page((DOCS / name).read_text("utf-8"), tables))


if __name__ == "__main__":
    main()
