"""All exported metrics are documented, and those in the dashboard and the alerts occur in a scrape of a real run."""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from evertide.metrics import Metrics, watch_pipeline
from evertide.metrics.catalog import ALL, BY_NAME
from evertide.metrics.http import render_metrics
from evertide.pipeline.pipeline import Pipeline
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.settings import Settings
from evertide.shapes.service import ShapeService
from tests.metrics.kit import Samples, names_of, scrape, wait_for
from tests.server.kit import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "evertide.json"
DOCS = ROOT / "docs" / "observing.md"

NAME = re.compile(r"\b(?:evertide|process)_[a-z_]+")
LABELS = re.compile(r"\{([^{}]*)\}")
OTHER = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
FUNCTIONS = {
    *("absent", "and", "by", "changes", "delta", "histogram_quantile", "increase", "max", "min", "on", "rate", "sum"),
}
ONLY_IF_SO = {
    *("evertide_faults_total", "evertide_storage_faults_total", "evertide_problem"),  # nothing went wrong
    "evertide_source_lag_rows",  # of files that were not read yet
}

SCRIPT = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, PRIMARY KEY (id));
CREATE TABLE visits (page STRING) USING json OPTIONS (path 'in');
CREATE MATERIALIZED VIEW revenue
TBLPROPERTIES ('evertide.sinks' = 'files', 'evertide.sink.files.connector' = 'files',
    'evertide.sink.files.path' = 'out')
AS SELECT customer, sum(amount) AS amount FROM orders GROUP BY customer;
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Samples, str]:
    """A scrape of a pipeline on Spark, with a source, a sink, a checkpoint, requests and a shape; and its text."""
    base = tmp_path_factory.mktemp("observed")
    (base / "in").mkdir()
    (base / "in" / "1.json").write_text('{"page": "/"}\n')
    (base / "shop.sql").write_text(SCRIPT)
    metrics = Metrics()
    settings = Settings(poll_interval_s=0.01)
    with (
        Pipeline.open(base / "shop.sql", base / "s", spark=spark, settings=settings, observer=metrics) as p,
        ShapeService(p.collections) as shapes,
        Server() as server,
    ):
        watch_pipeline(metrics, p, shapes)
        server.start(make_app(p, shapes=shapes, metrics=metrics, observer=metrics))
        client = Client(server.host, server.port)
        client.post("/v1/tables/orders/rows", [{"id": 1, "customer": "ann", "amount": 20}])
        p.advance()
        client.get("/v1/shape?table=revenue&offset=-1")
        client.post("/v1/tables/orders/rows", [{"id": 2, "customer": "bob", "amount": 10}])
        spark.range(10).count()
        p.checkpoint()
        wait_for(lambda: p.status().flushed == p.time)
        wait_for(lambda: any(name == "evertide_replicas" for name, _ in scrape(metrics)))
        wait_for(lambda: any(name == "evertide_shape_requests_total" for name, _ in scrape(metrics)))
        found, text = scrape(metrics), render_metrics(metrics.registry)[0].decode()
        shapes.drain()
    return found, text


def test_a_real_run_exports_every_applicable_metric(run: tuple[Samples, str]) -> None:
    found = names_of(run[0])
    assert {metric.name for metric in ALL} - found <= ONLY_IF_SO
    jobs = run[0]["evertide_spark_jobs_total", frozenset()]
    assert jobs > 0
    assert run[0]["evertide_jvm_memory_bytes", frozenset({("area", "heap"), ("kind", "used")})] > 1_000_000


def test_every_metric_is_in_a_scrape_even_without_a_value(run: tuple[Samples, str]) -> None:
    declared = {family.name for family in text_string_to_metric_families(run[1])}
    assert {metric.name.removesuffix("_total") for metric in ALL} <= declared


def test_label_values_are_bounded(run: tuple[Samples, str]) -> None:
    """Label values must not grow with time: no transaction numbers, handles or paths."""
    for name, labels in run[0]:
        for label, value in labels:
            if label not in ("le", "version", "python", "spark", "code", "generation"):
                assert not re.search(rf"\d{{3,}}|{tempfile.gettempdir()}|parquet", value), (name, label, value)


def test_the_table_in_the_docs_equals_the_code() -> None:
    rows = re.findall(r"^\| `(evertide_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", DOCS.read_text("utf-8"), re.MULTILINE)
    documented = [(name, kind, labels.replace("`", ""), description) for name, kind, labels, description in rows]
    assert documented == [(one.name, one.kind, ", ".join(one.labels), one.description) for one in ALL]


def dashboard_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboard", DASHBOARD.with_name("dashboard.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_dashboard_equals_the_output_of_its_generator() -> None:
    assert DASHBOARD.read_text("utf-8") == dashboard_module().render_dashboard(), "run deploy/grafana/dashboard.py"


def queries() -> list[tuple[str, str]]:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    found = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])]
    return found + [(rule["alert"], rule["expr"]) for rule in rules()]


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"][0]["rules"]
    return found


def test_metrics_in_the_dashboard_and_the_alerts_are_exported() -> None:
    for where, query in queries():
        assert query.count("(") == query.count(")"), where
        assert query.count("{") == query.count("}"), where
        named = set(NAME.findall(query))
        assert named, where
        for name in named - OTHER:
            base = re.sub(r"_(bucket|sum|count)$", "", name) if name not in BY_NAME else name
            assert base in BY_NAME, (where, name)
            is_part = base != name
            assert is_part == (BY_NAME[base].kind == "histogram"), (where, name)


def test_labels_of_queries_are_labels_of_the_metrics() -> None:
    for where, query in queries():
        for name, chosen in re.findall(r"(evertide_[a-z_]+)\{([^{}]*)\}", query):
            base = re.sub(r"_(bucket|sum|count)$", "", name) if name not in BY_NAME else name
            asked = set(re.findall(r"(\w+)\s*[=!]~?\s*\"", chosen))
            assert asked <= {*BY_NAME[base].labels, "job", "instance"}, (where, name)
        grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")}
        known = {
            label
            for name in BY_NAME
            if name in re.sub(r"_(bucket|sum|count)\b", "", query)
            for label in BY_NAME[name].labels
        }
        assert grouped <= {*known, "le", "job", "instance"}, (where, grouped)


def test_queries_use_functions_that_prometheus_has() -> None:
    for where, query in queries():
        bare = re.sub(r"\"[^\"]*\"|\{[^{}]*\}|\[[^\]]*\]", "", query)
        words = set(re.findall(r"\b[a-z_]+\b", bare)) - set(NAME.findall(bare))
        labels = {label for metric in ALL for label in metric.labels} | {"le", "job", "instance", "e"}
        assert words <= FUNCTIONS | labels, (where, words - FUNCTIONS - labels)


def test_every_row_of_the_dashboard_exists_and_every_alert_has_a_remedy() -> None:
    titles = " ".join(title.lower() for title, _ in dashboard_module().ROWS)
    for wanted in ("overview", "latency", "lag", "state", "sources", "sinks", "shapes", "replicas", "errors"):
        assert wanted in titles
    alerts = {rule["alert"]: rule for rule in rules()}
    for wanted in ("Stalled", "SourceLag", "Stopped", "SlotLag", "NoCheckpoint", "StorageFaults"):
        assert f"Evertide{wanted}" in alerts
    documented = DOCS.read_text("utf-8")
    for name, rule in alerts.items():
        assert len(rule["annotations"]["runbook"]) > 60, name
        assert rule["labels"]["severity"] in ("warning", "critical")
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert label in {"instance", "job", *(each for one in ALL for each in one.labels)}, (name, label)
        assert f"`{name}`" in documented
