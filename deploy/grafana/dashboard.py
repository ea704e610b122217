"""Makes `evertide.json`, the Grafana dashboard: `python deploy/grafana/dashboard.py`.

A panel is a line of the table below: its title, its unit, and the series that it shows, each with its legend. `{}` in
a query stands for the process that is chosen at the top.
"""  # noqa: INP001 - a script beside what it makes, and no package

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["ROWS", "dashboard", "render_dashboard"]

PATH = Path(__file__).with_name("evertide.json")
CHOSEN = 'job=~"$job",instance=~"$instance"'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Series = tuple[str, str]
Panel = tuple[str, str, str, list[Series]]
"""Kind, title, unit, series."""


def _rate(name: str, by: str, legend: str = "") -> Series:
    return f"sum by ({by}) (rate({name}{{}}[$__rate_interval]))", legend or f"{{{{{by}}}}}"


def _ratio(over: str, under: str, by: str) -> Series:
    above, below = _rate(over, by), _rate(under, by)
    return f"{above[0]} / {below[0]}", above[1]


def _quantiles(name: str, by: str = "") -> list[Series]:
    """The median, and what one in a hundred is above."""
    grouped, prefix = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    return [
        (
            f"histogram_quantile({quantile}, sum by ({grouped}) (rate({name}_bucket{{}}[$__rate_interval])))",
            f"{prefix}p{quantile * 100:g}",
        )
        for quantile in (0.5, 0.99)
    ]


ROWS: list[tuple[str, list[Panel]]] = [
    (
        "Overview",
        [
            ("stat", "State", "none", [("evertide_state{}", "{{instance}} {{state}}")]),
            ("stat", "Storage answers", "bool_yes_no", [("min(evertide_up{})", "up")]),
            ("stat", "Alive", "bool_yes_no", [("min(evertide_alive{})", "alive")]),
            ("stat", "Last transaction", "none", [("max(evertide_time{})", "time")]),
            ("stat", "Version", "none", [("evertide_build_info{}", "{{version}}")]),
            ("timeseries", "Rows in, per second", "short", [_rate("evertide_source_rows_total", "source")]),
            ("timeseries", "Changes, per second", "short", [_rate("evertide_changes_total", "collection")]),
            ("timeseries", "Transactions, per second", "short", [_rate("evertide_transactions_total", "how")]),
            (
                "timeseries",
                "Bound and not committed",
                "short",
                [("max(evertide_bound_time{}) - max(evertide_time{})", "transactions")],
            ),
        ],
    ),
    (
        "Latency",
        [
            ("timeseries", "A transaction", "s", _quantiles("evertide_transaction_seconds")),
            (
                "timeseries",
                "Its phases, on average",
                "s",
                [_ratio("evertide_transaction_phase_seconds_sum", "evertide_transaction_phase_seconds_count", "phase")],
            ),
            ("timeseries", "In its present phase for", "s", [("evertide_doing_seconds{}", "{{instance}} {{phase}}")]),
            (
                "timeseries",
                "Spark jobs in a transaction",
                "short",
                [_ratio("evertide_spark_jobs_total", "evertide_transactions_total", "instance")],
            ),
        ],
    ),
    (
        "Sources and lag",
        [
            ("timeseries", "Lag in time", "s", [("evertide_source_lag_seconds{}", "{{source}}")]),
            ("timeseries", "Lag in bytes", "bytes", [("evertide_source_lag_bytes{}", "{{source}}")]),
            (
                "timeseries",
                "Lag in rows and files",
                "short",
                [
                    ("evertide_source_lag_rows{}", "{{source}} rows"),
                    ("evertide_source_lag_files{}", "{{source}} files"),
                ],
            ),
            ("table", "States of sources", "none", [("evertide_source_state{}", "{{source}} {{state}}")]),
        ],
    ),
    (
        "Sinks",
        [
            ("timeseries", "Transactions behind", "short", [("evertide_sink_behind{}", "{{sink}}")]),
            ("timeseries", "Delivering one", "s", _quantiles("evertide_sink_delivery_seconds", "sink")),
            ("timeseries", "Changes delivered, per second", "short", [_rate("evertide_sink_rows_total", "sink")]),
            ("table", "States of sinks", "none", [("evertide_sink_state{}", "{{sink}} {{state}}")]),
            ("stat", "Every sink has all up to", "none", [("min(evertide_flushed_time{})", "time")]),
        ],
    ),
    (
        "State and collections",
        [
            ("timeseries", "State, rows", "short", [("evertide_arrangement_rows{}", "{{arrangement}}")]),
            ("timeseries", "State, bytes", "bytes", [("evertide_arrangement_bytes{}", "{{arrangement}}")]),
            ("timeseries", "State, parts", "short", [("evertide_arrangement_parts{}", "{{arrangement}}")]),
            ("timeseries", "Collections, changes kept", "short", [("evertide_collection_changes{}", "{{collection}}")]),
            ("timeseries", "Collections, bytes", "bytes", [("evertide_collection_bytes{}", "{{collection}}")]),
            ("timeseries", "Collections, parts", "short", [("evertide_collection_parts{}", "{{collection}}")]),
            (
                "timeseries",
                "Times that can be read",
                "short",
                [("evertide_collection_upper{} - evertide_collection_since{}", "{{collection}}")],
            ),
            ("table", "States of collections", "none", [("evertide_collection_state{}", "{{collection}} {{state}}")]),
            ("timeseries", "Bytes written, per second", "Bps", [_rate("evertide_changes_bytes_total", "collection")]),
        ],
    ),
    (
        "Checkpoints and storage",
        [
            (
                "timeseries",
                "Transactions since the last checkpoint",
                "short",
                [("max(evertide_time{}) + 1 - max(evertide_checkpoint_time{})", "transactions")],
            ),
            ("timeseries", "Making a checkpoint", "s", _quantiles("evertide_checkpoint_seconds")),
            (
                "timeseries",
                "A checkpoint's bytes",
                "bytes",
                [_ratio("evertide_checkpoint_files_bytes_total", "evertide_checkpoint_seconds_count", "instance")],
            ),
            ("stat", "Checkpoints kept", "none", [("max(evertide_checkpoints{})", "checkpoints")]),
            ("timeseries", "Storage calls", "s", _quantiles("evertide_storage_seconds", "call")),
            ("timeseries", "Storage calls, per second", "short", [_rate("evertide_storage_seconds_count", "call")]),
            ("timeseries", "Storage bytes, per second", "Bps", [_rate("evertide_storage_bytes_total", "call")]),
            (
                "timeseries",
                "Leases",
                "short",
                [("evertide_leases{}", "held"), ("evertide_leases_lost_total{}", "lost")],
            ),
        ],
    ),
    (
        "HTTP and shapes",
        [
            ("timeseries", "Requests, per second", "short", [_rate("evertide_http_requests_total", "code")]),
            ("timeseries", "Requests, time", "s", _quantiles("evertide_http_request_seconds", "route")),
            ("timeseries", "Shapes followed", "short", [("evertide_shapes{}", "{{instance}}")]),
            ("timeseries", "Clients that wait", "short", [("evertide_shape_clients{}", "{{instance}}")]),
            (
                "timeseries",
                "Requests for shapes, per second",
                "short",
                [_rate("evertide_shape_requests_total", "kind")],
            ),
            ("timeseries", "Requests for shapes, time", "s", _quantiles("evertide_shape_request_seconds", "kind")),
            (
                "timeseries",
                "Log entries, per second",
                "short",
                [_rate("evertide_shape_log_entries_total", "instance")],
            ),
            ("timeseries", "Logs in memory", "bytes", [("evertide_shape_log_bytes{}", "{{instance}}")]),
        ],
    ),
    (
        "Replicas",
        [
            ("timeseries", "Replicas", "short", [("max by (role) (evertide_replicas{})", "{{role}}")]),
            ("timeseries", "Transactions behind", "short", [("max by (host) (evertide_replica_behind{})", "{{host}}")]),
            ("timeseries", "Leads", "bool_yes_no", [("evertide_leads{}", "{{instance}}")]),
            ("timeseries", "Generation", "none", [("evertide_generation{}", "{{instance}}")]),
        ],
    ),
    (
        "Errors and the process",
        [
            ("table", "What is wrong now", "none", [("evertide_problem{}", "{{part}} {{name}} {{error_code}}")]),
            ("timeseries", "Faults, per second", "short", [_rate("evertide_faults_total", "error_code")]),
            (
                "timeseries",
                "Faults of storage, per second",
                "short",
                [_rate("evertide_storage_faults_total", "error_code")],
            ),
            ("timeseries", "Age of what comes from storage", "s", [("evertide_status_age_seconds{}", "{{instance}}")]),
            (
                "timeseries",
                "Memory",
                "bytes",
                [
                    ("process_resident_memory_bytes{}", "{{instance}} Python"),
                    ('evertide_jvm_memory_bytes{kind="used",}', "{{instance}} JVM {{area}}"),
                ],
            ),
            ("timeseries", "Processor", "short", [_rate("process_cpu_seconds_total", "instance")]),
        ],
    ),
]


def dashboard() -> dict[str, Any]:
    return {
        "title": "Evertide",
        "uid": "evertide",
        "tags": ["evertide"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [*_variables()]},
        "panels": [*_panels()],
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    for name, label, query in (
        ("job", "Job", "label_values(evertide_up, job)"),
        ("instance", "Process", 'label_values(evertide_up{job=~"$job"}, instance)'),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        }


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 1, 0
    for title, panels in ROWS:
        yield {"id": number, "type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []}
        number, y, x, height = number + 1, y + 1, 0, 0
        for panel in panels:
            width, high = (4, 4) if panel[0] == "stat" else (8, 8)
            if x + width > 24:
                x, y, height = 0, y + height, 0
            yield _panel(number, panel, {"x": x, "y": y, "w": width, "h": high})
            number, x, height = number + 1, x + width, max(height, high)
        y += height


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    kind, title, unit, series = panel
    is_instant = kind != "timeseries"
    targets = [
        {
            "refId": chr(ord("A") + at),
            "datasource": SOURCE,
            "expr": query.replace("{}", f"{{{CHOSEN}}}").replace(",}", f",{CHOSEN}}}"),
            "legendFormat": legend,
            "instant": is_instant,
            "format": "table" if kind == "table" else "time_series",
        }
        for at, (query, legend) in enumerate(series)
    ]
    options = {"textMode": "value_and_name"} if kind == "stat" else {}
    return {
        "id": number,
        "type": kind,
        "title": title,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "options": options,
    }


def render_dashboard() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(render_dashboard(), "utf-8")
