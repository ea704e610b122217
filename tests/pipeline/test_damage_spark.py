"""Cases of the damage matrix on Spark and on a disk: state of joins, sums and top-k, and real files."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import evertide as et
from evertide.errors import BlobDamaged, BlobMissing, Damaged
from evertide.settings import Settings
from evertide.store.paths import JOURNAL, PIPELINE, shard_key, state_prefix
from tests.cli.kit import evertide
from tests.pipeline.kit import crash
from tests.pipeline.test_damage import WAYS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = """
CREATE TABLE customers (name STRING NOT NULL, city STRING, PRIMARY KEY (name));
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW revenue AS SELECT c.city, sum(o.amount) AS total, max(o.amount) AS top, count(*) AS n
FROM orders o LEFT JOIN customers c ON o.customer = c.name GROUP BY c.city;
CREATE MATERIALIZED VIEW largest AS SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 2;
"""
SETTINGS = replace(Settings(), inline_bytes_max=1, checkpoint_interval_s=3600.0)
Rows = list[tuple[Any, ...]]


def open_shop(spark: SparkSession, root: Path) -> et.Pipeline:
    return et.Pipeline.open(SHOP, root, spark=spark, settings=SETTINGS)


def push(p: et.Pipeline, number: int) -> None:
    p.push("customers", [{"name": f"c{number % 2}", "city": "Oslo" if number % 2 else "Rome"}])
    p.push("orders", [{"id": number, "customer": f"c{number % 3}", "amount": number * 10}])
    p.commit()


def expected(numbers: range) -> dict[str, Rows]:
    """Return the content of the views after the orders with these numbers."""
    cities = {0: "Rome", 1: "Oslo"}
    by_city: dict[str | None, list[int]] = {}
    for number in numbers:
        by_city.setdefault(cities.get(number % 3), []).append(number * 10)
    revenue = [(city, sum(found), max(found), len(found)) for city, found in by_city.items()]
    return {"revenue": sorted(revenue, key=repr), "largest": [(number, number * 10) for number in numbers[-2:]]}


def content(p: et.Pipeline) -> dict[str, Rows]:
    return {
        name: sorted((tuple(row.values()) for row in p.view(name).to_pylist()), key=repr)
        for name in ("revenue", "largest")
    }


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a storage with a checkpoint, transactions after it and no process, and the shards of the views."""
    root = tmp_path_factory.mktemp("damage") / "shop.evertide"
    p = open_shop(spark, root)
    for number in range(1, 5):
        push(p, number)
    p.checkpoint()
    for number in range(5, 7):
        push(p, number)
    shards = {name: view.shard for name, view in p.definition.views.items()}
    crash(p)
    p.storage.close()
    return root, shards


@pytest.fixture
def root(template: tuple[Path, dict[str, str]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(template[0], tmp_path / "shop.evertide"))


def damage_files(root: Path, below: str, way: str) -> None:
    found = [path for path in (root / below).rglob("*") if path.is_file()]
    assert found
    for path in found:
        changed = WAYS[way](path.read_bytes())
        if changed is None:
            path.unlink()
        else:
            path.write_bytes(changed)


def damage_record(root: Path, key: str, way: str) -> None:
    """Damage the newest record of a key."""
    with closing(sqlite3.connect(root / "meta.db")) as meta, meta:
        seqno, data = meta.execute("SELECT seqno, data FROM log WHERE key = ? ORDER BY seqno DESC", (key,)).fetchone()
        changed = WAYS[way](bytes(data))
        assert changed is not None
        meta.execute("UPDATE log SET data = ? WHERE key = ? AND seqno = ?", (changed, key, seqno))


def check_continues(spark: SparkSession, root: Path) -> None:
    """Check that the views hold what they held, and follow their tables."""
    with open_shop(spark, root) as p:
        assert p.wait_until_hydrated(60)
        assert content(p) == expected(range(1, 7))
        push(p, 7)
        assert content(p) == expected(range(1, 8))
    assert evertide("fsck", "--storage", root).exit_code == 0


@pytest.mark.parametrize("way", ["gone", "flipped"])
def test_damaged_state_is_recomputed_from_the_tables(spark: SparkSession, root: Path, way: str) -> None:
    damage_files(root, state_prefix(), way)
    check_continues(spark, root)


def test_a_view_with_a_damaged_log_is_recomputed(
    spark: SparkSession, template: tuple[Path, dict[str, str]], root: Path
) -> None:
    damage_record(root, shard_key(template[1]["revenue"]), "flipped")
    check_continues(spark, root)


@pytest.mark.parametrize(("way", "error"), [("gone", BlobMissing), ("flipped", BlobDamaged)])
def test_damaged_parts_of_a_view_are_repaired(
    spark: SparkSession, template: tuple[Path, dict[str, str]], root: Path, way: str, error: type[Damaged]
) -> None:
    """The pipeline opens, as its state is intact; a reader gets the error; the repair makes it recompute the view."""
    damage_files(root, f"parts/{template[1]['revenue']}", way)
    p = open_shop(spark, root)
    with pytest.raises(error):
        content(p)
    crash(p)
    p.storage.close()
    assert evertide("fsck", "--storage", root).exit_code == Damaged.exit_code
    assert evertide("fsck", "--repair", "--storage", root).exit_code == 0
    check_continues(spark, root)


def damage_definition(root: Path) -> None:
    damage_record(root, PIPELINE, "flipped")


def damage_journal(root: Path) -> None:
    damage_record(root, JOURNAL, "short")


@pytest.mark.parametrize("damage", [damage_definition, damage_journal])
def test_a_damaged_record_is_refused_and_repaired(
    spark: SparkSession, root: Path, damage: Callable[[Path], None]
) -> None:
    damage(root)
    with pytest.raises(Damaged):
        open_shop(spark, root)
    assert evertide("fsck", "--repair", "--storage", root).exit_code == 0
    with open_shop(spark, root) as p:
        assert p.wait_until_hydrated(60)
        numbers = range(1, p.time + 1)
        assert numbers[-1] in {5, 6}, "the repair may lose the record of the newest transaction, and must report that"
        assert content(p) == expected(numbers)
