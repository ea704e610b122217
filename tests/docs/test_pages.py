"""The commands of the tutorial and the how-tos work; code on all other pages is valid; generated tables are up
to date."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import yaml

from evertide.errors import InvalidInput
from tests.docs.blocks import Block, Page, blocks_of, is_like, run_page
from tests.docs.reference import DOCS, error_table, generate_page, sql_table
from tests.servers.kafka import KafkaBroker
from tests.sources.postgres.server import running_logical

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = DOCS.parent
RUN = ("tutorial.md", *(f"howto/{path.name}" for path in sorted((DOCS / "howto").glob("*.md"))))
OTHERS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *DOCS.rglob("*.md"))
    if path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix() not in RUN
)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def processes(scratch: Path) -> dict[str, str]:
    """Return the environment of a shell that finds the command `evertide`."""
    command = scratch / "bin" / "evertide"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m evertide.cli "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"
    return {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


@pytest.mark.timeout(900)
def test_the_commands_of_the_tutorial(tmp_path: Path) -> None:
    """With separate processes, as one of them is killed."""
    swaps = {"127.0.0.1:8080": f"127.0.0.1:{free_port()}"}
    assert run_page(DOCS / "tutorial.md", Page(tmp_path, environment=processes(tmp_path), swaps=swaps)) >= 10


@pytest.mark.timeout(900)
def test_postgres_to_a_dashboard(tmp_path: Path) -> None:
    with running_logical() as server, psycopg.connect(server.dsn(), autocommit=True) as connection:
        environment = {"PGURL": server.dsn(), **processes(tmp_path)}
        swaps = {"127.0.0.1:8080": f"127.0.0.1:{free_port()}"}
        servers = {"postgres": connection.execute}
        page = Page(tmp_path, environment=environment, servers=servers, swaps=swaps)
        assert run_page(DOCS / "howto" / "postgres-to-dashboard.md", page) == 6


def test_kafka_to_delta(spark: SparkSession, tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": kafka_broker.brokers})
    admin.create_topics([NewTopic("docs-orders", 2)])["docs-orders"].result()
    swaps = {"topic 'orders'": "topic 'docs-orders'", 'produce("orders"': 'produce("docs-orders"'}
    page = Page(tmp_path, environment={"BROKERS": kafka_broker.brokers}, swaps=swaps, is_here=True)
    assert run_page(DOCS / "howto" / "kafka-to-delta.md", page) == 6


def test_a_live_app(tmp_path: Path) -> None:
    page = DOCS / "howto" / "live-app.md"
    for block in blocks_of(page):
        if block.language == "ts":
            source = (ROOT / "examples" / "live-app" / block.facts["title"]).read_text()
            assert block.text.strip() in source, f"{block.where}: the example has other code"
    swaps = {"127.0.0.1:8080": f"127.0.0.1:{free_port()}"}
    assert run_page(DOCS / "howto" / "live-app.md", Page(tmp_path, environment=processes(tmp_path), swaps=swaps)) == 4


def test_a_nightly_dbt_job(spark: SparkSession, tmp_path: Path) -> None:
    assert run_page(DOCS / "howto" / "nightly-dbt-job.md", Page(tmp_path, is_here=True)) == 3


def test_a_feature_table(spark: SparkSession, tmp_path: Path) -> None:
    assert run_page(DOCS / "howto" / "feature-table.md", Page(tmp_path, is_here=True)) == 3


def test_a_join_of_two_streams(spark: SparkSession, tmp_path: Path) -> None:
    assert run_page(DOCS / "howto" / "stream-join.md", Page(tmp_path, is_here=True)) == 2


def test_a_declarative_pipelines_project(spark: SparkSession, tmp_path: Path) -> None:
    assert run_page(DOCS / "howto" / "declarative-pipelines.md", Page(tmp_path, is_here=True)) == 2


def test_every_page_that_is_run_has_a_test() -> None:
    tests = [node for node in ast.parse(Path(__file__).read_text()).body if isinstance(node, ast.FunctionDef)]
    calls = [call for test in tests for call in ast.walk(test) if isinstance(call, ast.Call)]
    pages = [ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) == "run_page"]
    assert sorted(pages) == sorted(f"DOCS / {' / '.join(map(repr, Path(name).parts))}" for name in RUN)


@pytest.mark.parametrize("name", OTHERS)
def test_code_on_other_pages_is_valid(spark: SparkSession, name: str) -> None:
    """Python compiles, and scripts can be planned."""
    for block in blocks_of(ROOT / name):
        if "data-not-run" in block.facts:
            assert block.facts["data-not-run"], f"{block.where}: the block does not say why it is not run"
        elif block.language == "python":
            ast.parse(block.text, block.where)
        elif block.language == "sql":
            _check_sql(spark, block)
        elif block.language == "yaml":
            list(yaml.safe_load_all(block.text))


def _check_sql(spark: SparkSession, block: Block) -> None:
    """Plan a whole script; only parse one that reads tables of another block."""
    from evertide.plan.program.program import Program  # noqa: PLC0415 - pyspark
    from evertide.plan.script.statements import TableStatement, parse_script  # noqa: PLC0415 - pyspark

    try:
        statements = parse_script(spark, block.text, block.where)
        if any(isinstance(each, TableStatement) for each in statements):
            Program(spark, block.text, block.where)
    except InvalidInput as error:
        pytest.fail(f'{block.where}: {error.why}; if it is not to be run, say so: data-not-run="why"')


def test_the_table_of_errors_equals_the_code() -> None:
    page = (DOCS / "errors.md").read_text("utf-8")
    assert page == generate_page(page, {"errors": error_table}), "make reference rewrites it"


def test_the_table_of_sql_equals_explain(spark: SparkSession) -> None:
    page = (DOCS / "sql.md").read_text("utf-8")
    assert page == generate_page(page, {"sql": lambda: sql_table(spark)}), "make reference rewrites it"


def test_every_page_is_in_the_navigation() -> None:
    text = re.sub(r"!!\S+", "", (ROOT / "mkdocs.yml").read_text("utf-8"))
    named = set(re.findall(r"[\w/-]+\.md", str(yaml.safe_load(text)["nav"])))
    assert named == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_the_site_has_no_broken_link_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = [path.read_text("utf-8") for path in (*tmp_path.rglob("*.html"), *tmp_path.rglob("*.svg"))]
    fetched = re.compile(r"""<(?:script|link|img|iframe|image|use)\b[^>]*(?:src|href)=["']?https?:[^"'>]*""")
    assert not [found[0] for page in pages if (found := fetched.search(page))]
    assert not [page for page in pages if 'class="mermaid"' in page], (
        "a script from another server would draw its pictures"
    )


def test_output_is_compared_with_wildcards() -> None:
    assert is_like("a\n...b", "a\nxyz b")
    assert is_like("{...}", '{"time": 1}\n')
    assert not is_like("a\nb", "a\nc")
    assert not is_like("a...", "b")
