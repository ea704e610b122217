"""Counters match the work done, and a scrape always parses, whatever the storage does."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evertide.errors import SourceAway, Unavailable
from evertide.metrics import Metrics, watch_pipeline
from evertide.metrics.catalog import ALL, BY_NAME
from evertide.metrics.gauges import SampleCache
from evertide.metrics.http import render_metrics
from evertide.metrics.samples import Sample, TakeSample
from evertide.observer import TimedPhase, TransactionEvent, TransactionOrigin, WrittenSize
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.records.replica_record import ReplicaReporter
from evertide.problem import ComponentState, Problem
from evertide.runtime import SystemRuntime
from evertide.sources.contract import Lag
from evertide.store.memory import MemoryBlob, MemoryMeta
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.metrics.kit import names_of, observed_shop, order, scrape, scrape_open, value, wait_for
from tests.pipeline.kit import NOTES, ORDERS, CandidSource, batch, engine, open_pipeline, storage, with_sources


def test_a_known_run_is_counted_row_by_row() -> None:
    """Fails if a phase, a source or a collection is missing or reported twice."""
    with observed_shop() as (p, metrics):
        for number in (1, 2, 3):
            p.push("orders", [order(number), order(number + 10)])
            p.commit()
        p.push("orders", deletes=[{"id": 1}])
        p.commit()
        p.checkpoint()
        found = scrape(metrics)
        assert value(found, "evertide_transactions_total", how="committed") == 5, (
            "including the first transaction, which is empty"
        )
        assert value(found, "evertide_source_rows_total", source="push") == 7
        assert value(found, "evertide_changes_total", collection="orders") == 7
        stored = {one.name: one for one in p.status().collections}
        for name in ("orders", "revenue", "counts"):
            assert value(found, "evertide_changes_total", collection=name) == stored[name].rows
            assert value(found, "evertide_changes_bytes_total", collection=name) == stored[name].bytes
            kind = stored[name].kind
            assert value(found, "evertide_collection_changes", collection=name, kind=kind) == stored[name].rows
            assert value(found, "evertide_collection_parts", collection=name, kind=kind) == stored[name].parts > 0
            assert value(found, "evertide_collection_upper", collection=name, kind=kind) == 5
        assert value(found, "evertide_transaction_seconds_count") == 5
        for phase in ("read", "bind", "compute", "commit"):
            assert value(found, "evertide_transaction_phase_seconds_count", phase=phase) == 5, phase
        assert value(found, "evertide_checkpoint_seconds_count") == 2
        assert value(found, "evertide_checkpoint_time") == 5
        assert (value(found, "evertide_time"), value(found, "evertide_bound_time")) == (4, 4)
        assert value(found, "evertide_state", state="running") == 1
        assert (value(found, "evertide_up"), value(found, "evertide_alive"), value(found, "evertide_leads")) == (
            1,
            1,
            1,
        )
        assert sum(found[key] for key in found if key[0] == "evertide_arrangement_rows") > 0


def test_counters_only_grow_and_both_formats_agree() -> None:
    with observed_shop() as (p, metrics):
        p.push("orders", [order(1)])
        p.commit()
        before = scrape(metrics)
        p.push("orders", [order(2)])
        p.commit()
        after = scrape(metrics)
        counters = {metric.name for metric in ALL if metric.kind == "counter"}
        assert {name for name, _ in before} & counters
        for key, was in before.items():
            if key[0] in counters or key[0].endswith(("_bucket", "_count", "_sum")):
                assert after[key] >= was, key
        opened = {key[0] for key in scrape_open(metrics)}
        assert opened == {key[0] for key in after}


def test_every_metric_is_in_the_catalog_with_its_labels() -> None:
    with observed_shop() as (p, metrics):
        p.push("orders", [order(1)])
        p.commit()
        for name, labels in scrape(metrics):
            if not name.startswith("evertide_"):
                assert name.startswith(("process_", "python_gc_")), name
                continue
            [base] = names_of({(name, labels): 0.0})
            assert {label for label, _ in labels} - {"le"} == set(BY_NAME[base].labels), name


def test_errors_are_counted_by_part_and_error_code() -> None:
    faults = Faults.scripted(reads=[Fault.DONE] * 400)
    runtime = SystemRuntime()
    store = storage(FaultyBlob(MemoryBlob(), faults), FaultyMeta(MemoryMeta(runtime), faults))
    source = CandidSource("shop", ("notes",))
    with with_sources(source), observed_shop(store, engine("share", "counts")) as (p, metrics):
        source.error = SourceAway(source="shop", where="there", why="connection refused")
        source.problems = (
            Problem(ComponentState.RECONNECTING, "source_away", "connection refused", "wait", 5.0, 0.25),
        )
        p.push("orders", [order(1, amount=0)])  # the view divides by it
        p.commit()
        calls = iter([Fault.REFUSED])
        faults._choose = lambda _operation, _key: next(calls, Fault.DONE)
        p.push("orders", [order(2)])
        p.commit()
        found = scrape(metrics)
        assert value(found, "evertide_faults_total", part="source", name="shop", error_code="source_away") == 2
        assert value(found, "evertide_faults_total", part="view", name="share", error_code="view_failed") >= 1
        failed = {key: count for key, count in found.items() if key[0] == "evertide_storage_faults_total"}
        assert sum(failed.values()) == 1
        assert all(("error_code", "unavailable") in labels for _, labels in failed)
        assert value(found, "evertide_collection_state", collection="share", state="failed") == 1
        assert value(found, "evertide_source_state", source="shop", state="reconnecting") == 1
        assert value(found, "evertide_problem", part="source", name="shop", error_code="source_away") == 1
        told = render_metrics(metrics.registry)[0].decode()
        assert "refused" not in told, "no message, and so no secret, is in a metric"


def test_lag_and_replicas_are_exported_as_far_as_known() -> None:
    source = CandidSource("shop", ("notes",), [batch(NOTES, [{"text": "a"}])])
    source.lag = Lag(bytes=1234, seconds=2.5)
    store = storage()
    with (
        with_sources(source),
        observed_shop(store) as (p, metrics),
        open_pipeline(store, role=ProcessRole.READ_ONLY) as other,
    ):
        p.advance()
        found = scrape(metrics)
        assert value(found, "evertide_source_lag_bytes", source="shop") == 1234
        assert value(found, "evertide_source_lag_seconds", source="shop") == 2.5
        assert ("evertide_source_lag_rows", frozenset({("source", "shop")})) not in found
        for one in (p, other):
            for thread in one._threads:
                if isinstance(thread, ReplicaReporter):
                    thread.tick()
        status = p.status()
        assert [one.behind for one in status.replicas if one.role == "read-only"] == [1]
        Metrics()  # a second registry is no problem: nothing is global
        fresh = Metrics()
        watch_pipeline(fresh, p)
        found = scrape(fresh)
        assert {(value(found, "evertide_replicas", role=role)) for role in ("leads", "read-only")} == {1}
        host = status.replicas[0].host
        assert value(found, "evertide_replica_behind", host=host, role="read-only") == 1


def test_transactions_of_a_peer_are_not_counted_as_our_own() -> None:
    """Otherwise the sum over replicas would be a multiple of the input."""
    store = storage()
    metrics = Metrics()
    with open_pipeline(store, role=ProcessRole.REPLICA) as leader:
        follower = Pipeline(
            engine(),
            store,
            base=Path(),
            runtime=SystemRuntime(),
            settings=leader.settings,
            threads=False,
            role=ProcessRole.REPLICA,
            observer=metrics,
        )
        with follower:
            leader.push("orders", [order(1)])
            leader.commit()
            follower.advance()
            found = scrape(metrics)
            assert value(found, "evertide_transactions_total", how="peer") >= 1
            assert not [key for key in found if key[0] in ("evertide_source_rows_total", "evertide_changes_total")]
            assert value(found, "evertide_transaction_phase_seconds_count", phase="replay") >= 1


def test_a_restart_counts_replayed_transactions() -> None:
    store = storage()
    with open_pipeline(store) as p:
        p.push("orders", [order(1)])
        p.commit()
        p.push("orders", [order(2)])
        p.commit()
        p.close(checkpoint=False)
    with observed_shop(replace(store)) as (_, metrics):
        assert value(scrape(metrics), "evertide_transactions_total", how="replayed") == 2


def test_a_scrape_during_an_outage_of_storage_has_the_age_of_its_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails without the sampling thread: the scrape would wait as long as the storage is retried."""
    with observed_shop() as (p, metrics):
        p.push("orders", [order(1)])
        p.commit()
        assert value(scrape(metrics), "evertide_up") == 1
        away = threading.Event()
        waited_out: list[bool] = []

        def hang(_: Any) -> None:
            waited_out.append(not away.wait(40))
            raise Unavailable(path="memory", why="it is away")

        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "status", hang)
            wait_for(lambda: value(scrape(metrics), "evertide_up") == 0)
            found = scrape(metrics)
            assert value(found, "evertide_up") == 0, "while a call still waits for storage"
            assert value(found, "evertide_time") == 1, "as last seen"
            age_s = value(found, "evertide_status_age_seconds")
            assert age_s > 0
            assert value(found, "evertide_alive") == 1, "a process that waits for storage is alive"
            assert value(found, "evertide_transactions_total", how="committed") == 2
            assert waited_out == [], "the scrape was answered while a call waits for storage"
            away.set()
            wait_for(lambda: value(scrape(metrics), "evertide_status_age_seconds") > age_s)
            assert value(scrape(metrics), "evertide_up") == 0, "storage answered, with an error"
        wait_for(lambda: value(scrape(metrics), "evertide_up") == 1)


def test_many_scrapes_sample_the_storage_once_a_second() -> None:
    samples: list[int] = []

    class Clock(SystemRuntime):
        now_s = 100.0

        def monotonic_s(self) -> float:
            return self.now_s

    def take() -> Sample:
        samples.append(1)
        return Sample(None, 0, 0)  # type: ignore[arg-type]

    clock, sampler = Clock(), take
    cache = SampleCache(sampler, clock)
    for _ in range(20):
        assert cache.latest()[2]
    assert len(samples) == 1
    clock.now_s += 1.0
    cache.latest()
    assert len(samples) == 2


def test_a_bug_in_sampling_is_logged_and_does_not_end_metrics(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Sample:
        raise ZeroDivisionError

    take: TakeSample = broken
    cache = SampleCache(take, SystemRuntime())
    sample, _, is_up = cache.latest()
    assert (sample, is_up) == (None, False)
    assert cache._thread is not None
    cache._thread.join()
    assert "the thread evertide-metrics died" in caplog.text
    assert [one.error_code for one in cache.list_thread_problems()] == ["unexpected"]


def test_observing_a_transaction_costs_little() -> None:
    """Measured as CPU time, as the machine may be loaded, with a wide margin."""
    metrics = Metrics()
    phases = tuple(TimedPhase(phase, 1.0, 0.01) for phase in ("read", "bind", "read", "compute", "commit"))
    event = TransactionEvent(
        7,
        TransactionOrigin.COMMITTED,
        phases,
        {"push": 3, "kafka": 9},
        {f"view{n}": WrittenSize(3, 100) for n in range(8)},
    )
    metrics.on_transaction(event)
    began_s = time.process_time()
    for _ in range(2000):
        metrics.on_transaction(event)
        for _ in range(20):
            metrics.on_storage_call("meta.commit", 0.001, 100, "")
    assert (time.process_time() - began_s) / 2000 < 500e-6


def test_the_size_of_state_is_exported_for_tables_and_views() -> None:
    with observed_shop() as (p, metrics):
        p.push("orders", [order(number) for number in range(50)])
        p.commit()
        found = scrape(metrics)
        names = {dict(labels)["arrangement"] for name, labels in found if name == "evertide_arrangement_rows"}
        assert names == {one.name for one in p.arrangements()}
        assert any(name.startswith(ORDERS.name) for name in names)
        assert all(value(found, "evertide_arrangement_bytes", arrangement=name) >= 0 for name in names)
