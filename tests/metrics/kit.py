"""An observed pipeline without Spark, and scrapes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from evertide.metrics import Metrics, watch_pipeline
from evertide.metrics.http import render_metrics
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import Storage
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import SETTINGS, engine, storage

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def order(number: int, customer: str = "ann", amount: int = 10) -> dict[str, object]:
    return {"id": number, "customer": customer, "amount": amount}


@contextmanager
def observed_shop(
    store: Storage | None = None,
    made: SmallEngine | None = None,
    *,
    settings: Settings = SETTINGS,
    threads: bool = False,
    base: Path = Path(),
) -> Iterator[tuple[Pipeline, Metrics]]:
    metrics, runtime = Metrics(), SystemRuntime()
    opened = Pipeline(
        made or engine(),
        store or storage(),
        base=base,
        runtime=runtime,
        settings=settings,
        threads=threads,
        observer=metrics,
    )
    with opened as pipeline:
        watch_pipeline(metrics, pipeline)
        yield pipeline, metrics


def scrape(metrics: Metrics) -> Samples:
    """Every sample, by its name and labels, as Prometheus reads it."""
    content, kind = render_metrics(metrics.registry)
    assert kind.startswith("text/plain")
    return _samples(plain_families(content.decode()))


def scrape_open(metrics: Metrics) -> Samples:
    """The same as OpenMetrics."""
    content, kind = render_metrics(metrics.registry, "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    return _samples(open_families(content.decode()))  # type: ignore[no-untyped-call]


def _samples(families: Iterable[Metric]) -> Samples:
    found: Samples = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def names_of(samples: Samples) -> set[str]:
    """Names as in the catalog: a histogram has one name."""
    found = set()
    for name, labels in samples:
        is_bucket = any(label == "le" for label, _ in labels)
        base = name.removesuffix("_bucket") if is_bucket else name
        for end in ("_sum", "_count"):
            if base.endswith(end) and base.removesuffix(end).endswith("_seconds"):
                base = base.removesuffix(end)
        found.add(base)
    return found


def wait_for(condition: Callable[[], bool], limit_s: float = 60) -> None:
    runtime = SystemRuntime()
    end_s = runtime.monotonic_s() + limit_s
    while not condition():
        assert runtime.monotonic_s() < end_s
        runtime.sleep_s(0.05)


def value(samples: Samples, name: str, /, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]
