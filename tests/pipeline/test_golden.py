"""Every later version reads what a pipeline stored; `EVERTIDE_GOLDEN=write` rewrites the golden files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evertide.flow.state.arrangement import ArrangementManifest
from evertide.flow.state.state_part import PartEntry
from evertide.pipeline.definition import AwayReason, Definition, LastPosition, TableRecord, ViewRecord
from evertide.pipeline.records.ownership import Leader, ReplicaRole
from evertide.pipeline.records.replica_record import LongWork, ReplicaRecord
from evertide.pipeline.records.source_record import SinkStateRecord, SourceRecord, SourceRecords
from evertide.pipeline.records.state_record import PipelineStateRecord
from evertide.pipeline.state.machine import CohortState, MachineState
from evertide.problem import ComponentState, Problem
from evertide.sources.contract import Lag
from evertide.store.meta import seal, unseal
from evertide.types import Generation, Time

GOLDEN = Path(__file__).parents[1] / "golden"
PART = PartEntry(
    key="state/orders.keyed3/0123456789abcdef-00000001.parquet",
    rows=3,
    bytes=4321,
    checksum="00112233445566778899aabbccddeeff",
    footer_bytes=99,
    footer_checksum="0011223344556677",
    row_groups=2,
    least=-5,
    greatest=2**40,
)
RECORDS: dict[str, msgspec.Struct] = {
    "definition": Definition(
        generation=Generation(3),
        tables={
            "orders": TableRecord(b"schema", ("id",), "csv", "orders.01234567"),
            "zß€": TableRecord(b"schema", (), "", "", is_declared=False),
        },
        views={
            "revenue": ViewRecord(b"schema", "f" * 32, ("orders",), "revenue.89abcdef"),
            "share": ViewRecord(
                b"s", "0" * 32, ("orders",), "", AwayReason(ComponentState.FAILED, 2**40, "division by zero", 1.5)
            ),
        },
        sources=("push", "orders"),
        fingerprint="e" * 32,
        change="0123456789abcdef",
    ),
    "definition-plain-views": Definition(
        generation=Generation(3),
        tables={},
        views={},
        sources=("push",),
        fingerprint="e" * 32,
        change="0123456789abcdef",
        plain_views=("big", "zß€"),
    ),
    "definition-left": Definition(
        generation=Generation(4),
        tables={
            "clicks": TableRecord(
                b"s",
                (),
                "kafka",
                "c.01234567",
                is_declared=False,
                source="clicks",
                left=LastPosition("clicks", "kafka", '{"0":17}'),
            ),
            "orders": TableRecord(b"schema", ("id",), "csv", "orders.01234567", source="orders"),
        },
        views={},
        sources=("push", "orders"),
        fingerprint="e" * 32,
        change="0123456789abcdef",
    ),
    "definition-diverged": Definition(
        generation=Generation(3),
        tables={},
        views={
            "revenue": ViewRecord(
                b"schema",
                "f" * 32,
                ("orders",),
                "revenue.89abcdef",
                AwayReason(ComponentState.HYDRATING, 2**40, "it came to something else", 1.5, "state_diverged"),
            ),
        },
        sources=(),
        fingerprint="e" * 32,
        change="0123456789abcdef",
    ),
    "health": PipelineStateRecord(
        "0123456789abcdef", ComponentState.FROZEN, 1.5, "fedcba9876543210", "blob_missing", "why", "what to do"
    ),
    "leader": Leader("0123456789abcdef", 1.5, "fedcba9876543210"),
    "replica": ReplicaRecord(
        "0123456789abcdef", ReplicaRole.READ_ONLY, ComponentState.RUNNING, 2**40, 1.5, "fedcba9876543210"
    ),
    "replica-at-work": ReplicaRecord(
        "0123456789abcdef",
        ReplicaRole.LEADS,
        ComponentState.HYDRATING,
        -1,
        1.5,
        "fedcba9876543210",
        LongWork("backfill", 1, 2**40),
    ),
    "sources": SourceRecords(
        writer="0123456789abcdef",
        told_at_s=1.5,
        change="fedcba9876543210",
        sources={
            "push": SourceRecord(("notes", "zß€"), ComponentState.RUNNING),
            "shop": SourceRecord(
                ("orders", "lines"),
                ComponentState.RECONNECTING,
                Lag(bytes=2**40, rows=None, files=None, seconds=0.25),
                (
                    Problem(ComponentState.RECONNECTING, "source_away", "why", "what to do", 1.25),
                    Problem(ComponentState.WARNING, "slot_at_risk", "why", "what to do", 1.0),
                ),
            ),
        },
    ),
    "sources-sinks": SourceRecords(
        writer="0123456789abcdef",
        told_at_s=1.5,
        change="fedcba9876543210",
        sources={},
        sinks={
            "lake": SinkStateRecord(
                ComponentState.LAGGING, Problem(ComponentState.LAGGING, "", "why", "what to do", 1.25)
            ),
            "zß€": SinkStateRecord(ComponentState.RUNNING),
        },
    ),
    "sources-feeds": SourceRecords(
        writer="0123456789abcdef",
        told_at_s=1.5,
        change="fedcba9876543210",
        sources={},
        feeds=(Problem(ComponentState.FROZEN, "blob_missing", "why", "what to do", 1.25),),
    ),
    "sources-warnings": SourceRecords(
        writer="0123456789abcdef",
        told_at_s=1.5,
        change="fedcba9876543210",
        sources={},
        warnings=(Problem(ComponentState.WARNING, "record_damaged", "why", "what to do", 1.25),),
    ),
    "machine-state": MachineState(
        time=Time(2**40),
        cohorts=(CohortState({"revenue": "revenue.89abcdef"}, b"state"),),
        tables={"orders.keyed3": ArrangementManifest("orders.keyed3", b"schema", ("id",), ((PART,), ()))},
        shards={"orders": "orders.01234567", "zß€": ""},
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_equal_the_golden_files(name: str) -> None:
    value = RECORDS[name]
    path = GOLDEN / f"record-{name}-v{2 if name == 'machine-state' else 1}.bin"
    if os.environ.get("EVERTIDE_GOLDEN") == "write":
        path.write_bytes(seal(value))
    stored = path.read_bytes()
    assert unseal(stored, type(value), "there") == value
    assert seal(value) == stored


def test_state_whose_manifests_have_the_indexes_of_parts_is_read() -> None:
    """Version 1 of arrangement manifests."""
    state = unseal((GOLDEN / "record-machine-state-v1.bin").read_bytes(), MachineState, "there")
    manifest = state.tables["orders.keyed3"]
    manifest.check("there")
    [entry] = manifest.list_entries()
    assert (manifest.version, entry.key, entry.rows, entry.index) == (1, PART.key, PART.rows, b"\x01\x02")


def test_states_and_roles_of_a_later_version_are_read_and_written_as_they_are() -> None:
    """Fails if a replica cannot read the records of a newer one during an upgrade, or changes what they say."""
    away = {"state": "resting", "time": 1, "why": "why", "since_s": 1.5}
    problem = {"state": "curious", "error_code": "", "why": "", "remedy": "", "since_s": 1.5}
    replica = {"writer": "w", "role": "advises", "state": "resting", "time": 1, "told_at_s": 1.5, "change": "c"}
    for kind, content in ((AwayReason, away), (Problem, problem), (ReplicaRecord, replica)):
        record: Any = msgspec.msgpack.decode(msgspec.msgpack.encode(content), type=kind)
        assert record.state == content["state"]
        assert record.state not in [*ComponentState]
        assert msgspec.to_builtins(record).items() >= content.items()
