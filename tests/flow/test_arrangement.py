"""Arrangements against a plain model, a Counter of rows: after any operations, lookups and scans agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.errors import InvalidInput, StateInconsistent, Unexpected, UnsupportedFormat
from evertide.flow.state import arrangement as arrangement_module
from evertide.flow.state import block as block_module
from evertide.flow.state.arrangement import Arrangement, ArrangementManifest
from evertide.flow.state.spine import ArrangementSettings
from evertide.rows import changes
from evertide.rows.changes import DIFF
from evertide.rows.columns import Longs
from evertide.rows.digest import RowHashes
from tests.flow.arranging import SCHEMA, Content, World, content, delta, grouped, keys
from tests.kit.arrow import canonical_rows, reencoded, schemas, tables
from tests.kit.compacting import compact
from tests.kit.runtime import RandomStream

EXAMPLES = settings(max_examples=60, deadline=None)
FEW = settings(max_examples=25, deadline=None)
STEPS = ["apply", "apply", "apply", "retract", "inverse", "maintain", "compact", "save", "restore", "empty"]


class Model:
    """The collection as a Counter of canonical rows, and the pool that its rows come from."""

    def __init__(self, pool: Any, key: Sequence[str]) -> None:
        self.pool = pool
        self.rows = canonical_rows(pool)
        self.at = [pool.schema.names.index(name) for name in key]
        self.content: Content = Counter()

    def key_of(self, row: tuple[Any, ...]) -> Any:
        return tuple(grouped(row[i]) for i in self.at)

    def add(self, rows: Sequence[int], diffs: Sequence[int]) -> Any:
        for row, diff in zip(rows, diffs, strict=True):
            self.content[self.rows[row]] += diff
        self.content = Counter({row: count for row, count in self.content.items() if count})
        return delta(self.pool.take(pa.array(rows, pa.int64())), list(diffs))

    def found(self, asked: Sequence[int] | None, names: Sequence[str]) -> Content:
        """The expected result of a lookup of the keys of these rows; of a scan, if None."""
        at = [self.pool.schema.names.index(name) for name in names]
        wanted_keys = None if asked is None else {self.key_of(self.rows[i]) for i in asked}
        found: Content = Counter()
        for row, count in self.content.items():
            if wanted_keys is None or self.key_of(row) in wanted_keys:
                found[tuple(row[i] for i in at)] += count
        return found


@EXAMPLES
@given(st.data())
def test_an_arrangement_has_the_applied_rows_after_any_operations(given_data: st.DataObject) -> None:
    draw = given_data.draw
    schema = draw(schemas())
    pool = draw(tables(schema).filter(lambda table: table.num_rows > 0))
    key = draw(st.permutations(schema.names).flatmap(lambda names: st.integers(0, len(names)).map(lambda n: names[:n])))
    world, model = World(cache_bytes=draw(st.sampled_from([0, 20_000, 1 << 20]))), Model(pool, key)
    subject = world.arrangement(schema, key)
    indices = st.integers(0, pool.num_rows - 1)
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=2, max_size=9)):
        subject = take_step(draw, step, subject, model, world)
        asked = draw(st.lists(indices, max_size=6))
        key_table = (
            draw(reencoded(pool.select(key).take(pa.array(asked, pa.int64())))) if key else pool.slice(0, 1).select([])
        )
        found = subject.lookup(key_table)
        assert content(found) == model.found(asked if key else None, schema.names)
        assert found.schema.names == [*schema.names, DIFF]
        assert all(found.schema.field(name).equals(schema.field(name)) for name in found.schema.names[:-1])
    assert content(subject.scan()) == model.found(None, schema.names)
    assert content(subject.scan(), schema.names[:1]) == model.found(None, schema.names[:1])
    assert subject.rows >= len(model.content)
    assert world.cache.bytes <= world.cache.bytes_max


def take_step(draw: Any, step: str, subject: Arrangement, model: Model, world: World) -> Arrangement:
    indices = st.integers(0, len(model.rows) - 1)
    if step == "apply":
        rows = draw(st.lists(indices, min_size=1, max_size=14))
        subject.apply(model.add(rows, draw(st.lists(st.integers(1, 3), min_size=len(rows), max_size=len(rows)))))
    elif step == "retract":
        there = [i for i, row in enumerate(model.rows) if model.content[row]]
        rows = list({model.rows[i]: i for i in there}.values())
        subject.apply(model.add(rows, [-draw(st.integers(0, model.content[model.rows[i]])) for i in rows]))
    elif step == "inverse":
        rows = draw(st.lists(indices, max_size=8))
        subject.apply(model.add(rows * 2, [2] * len(rows) + [-2] * len(rows)))
    elif step == "empty":
        subject.apply(model.add([], []))
    elif step == "maintain":
        subject.maintain()
    elif step == "compact":
        compact(subject)
        assert subject.rows == len(model.content)
    else:
        manifest = subject.save()
        if step == "restore":
            manifest = msgspec.json.decode(msgspec.json.encode(manifest), type=ArrangementManifest)
            return world.restore(manifest)
    return subject


@FEW
@given(st.data())
def test_order_and_grouping_of_deltas_do_not_matter(given_data: st.DataObject) -> None:
    draw = given_data.draw
    table = draw(tables(rows_max=20))
    key = table.schema.names[: draw(st.integers(0, table.num_columns))]
    subjects = [World().arrangement(table.schema, key) for _ in range(2)]
    subjects[0].apply(delta(table))
    order = draw(st.permutations(range(table.num_rows)))
    for start in range(0, len(order), 3):
        subjects[1].apply(delta(table.take(pa.array(order[start : start + 3], pa.int64()))))
        subjects[1].maintain()
    for subject in subjects:
        compact(subject)
    assert subjects[0].rows == subjects[1].rows
    assert content(subjects[0].scan()) == content(subjects[1].scan()) == Counter(canonical_rows(table))


@FEW
@given(st.data())
def test_a_transaction_and_its_inverse_leave_nothing(given_data: st.DataObject) -> None:
    table = given_data.draw(tables(rows_max=30))
    subject = World().arrangement(table.schema, table.schema.names[:1])
    subject.apply(delta(table))
    subject.save()
    subject.apply(delta(given_data.draw(reencoded(table)), -1))
    compact(subject)
    assert (subject.rows, subject.bytes, subject.parts()) == (0, 0, ())
    assert subject.scan().num_rows == 0


@pytest.mark.parametrize("key", [("id",), ()])
def test_a_key_larger_than_what_a_merge_reads_at_once(key: Sequence[str]) -> None:
    """Its rows are merged although they are at different positions of each run. Fails if the merge outputs rows of a
    word before it has read all of them.
    """
    subject = World().arrangement(key=key)
    rows = [(7, f"{i}", 0.0) for i in range(60)]
    for number, some in enumerate((rows, [(6, "x", 0.0), *rows[::-1], (8, "y", 0.0)])):
        subject.apply(delta(some, -1 if number else 1))
        assert subject.maintain()
    subject.apply(delta([(6, "x", 0.0), (8, "y", 0.0), (9, "z", 0.0)], [1, 1, 1]))
    assert content(subject.scan(), ["id", "name"]) == {(9, "z"): 1}
    compact(subject)
    assert subject.rows == 1


def test_zero_finds_negative_zero_and_rows_stay_as_they_are() -> None:
    schema = pa.schema([pa.field("x", pa.float64()), pa.field("n", pa.int64())])
    subject = World().arrangement(schema, ("x",))
    subject.apply(delta(pa.table({"x": [0.0, -0.0, float("nan"), None], "n": [1, 2, 3, 4]}, schema=schema)))
    for zero in (0.0, -0.0):
        found = subject.lookup(pa.table({"x": [zero]}))
        assert sorted(zip(map(str, found["x"].to_pylist()), found["n"].to_pylist(), strict=True)) == [
            ("-0.0", 2),
            ("0.0", 1),
        ]
    assert subject.lookup(pa.table({"x": pa.array([float("nan"), None])}))["n"].to_pylist() == [3, 4]


def test_nulls_and_the_largest_integers_share_a_word_but_no_rows() -> None:
    largest = [None, 2**63 - 1, 2**63 - 2, 2**63 - 3]
    subject = World().arrangement()
    for save in (False, True):
        subject.apply(delta([(number, "x", 0.0) for number in largest]))
        if save:
            compact(subject)
        for number in largest:
            assert subject.lookup(keys(number))["id"].to_pylist() == [number]
    assert content(subject.lookup(keys(*largest, *largest)), ["name"]) == {("x",): 8}


@pytest.mark.parametrize("coarse", [True, False])
def test_equal_words_do_not_make_keys_equal(coarse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails without the verification in `WantedKeys`: each lookup then finds the rows of all names with its word."""
    schema = pa.schema([pa.field("name", pa.string()), pa.field("n", pa.int64())])

    def words(table: Any) -> Longs:
        lengths = [len(name or "") % 2 if coarse else 0 for name in table.column(0).to_pylist()]
        return np.array(lengths, np.int64)

    monkeypatch.setattr(block_module, "hash_keys", words)
    monkeypatch.setattr(arrangement_module, "hash_keys", words)
    names = [None, "", "a", "b", "aa", "bb", "c", "cc"]
    subject = World().arrangement(schema, ("name",))
    for number in range(4):
        subject.apply(delta(pa.table({"name": names, "n": [number] * len(names)}, schema=schema)))
    for asked in (names[:1], names[2:5], ["b", "b", "a", "b", "zz"], [*names, *names], ["nothing"]):
        found = subject.lookup(pa.table({"name": pa.array(asked, pa.string())}))
        assert content(found, ["name"]) == {(name,): 4 for name in set(asked) & set(names)}
    assert content(subject.scan(), ["name"]) == {(name,): 4 for name in names}


def test_equal_hashes_do_not_make_rows_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails without the comparison in `_verify_groups`: all rows of a key become one."""

    def clash(table: pa.Table) -> RowHashes:
        return RowHashes(*(np.zeros(table.num_rows, np.uint64),) * 2)

    monkeypatch.setattr(changes, "hash_rows", clash)
    subject = World().arrangement()
    rows = [(1, name, price) for name in ("a", "b") for price in (0.0, -0.0, 1.0)]
    for _ in range(3):
        subject.apply(delta(rows))
    subject.apply(delta(rows[:1], -3))
    assert set(content(subject.lookup(keys(1))).values()) == {3}
    assert subject.lookup(keys(1)).num_rows == 5
    assert sorted(content(subject.scan(), ["name"]).items()) == [(("a",), 6), (("b",), 9)]


@pytest.mark.parametrize("where", ["memory", "parts"])
def test_a_negative_count_is_damage_and_names_the_row(where: str) -> None:
    subject = World().arrangement()
    subject.apply(delta([(1, "a", 0.0), (2, "b", 0.5)], [1, -2]))
    if where == "parts":
        compact(subject)
    assert subject.lookup(keys(1)).num_rows == 1
    reads: list[Callable[[], Any]] = [lambda: subject.lookup(keys(2, 1)), subject.scan]
    for read in reads:
        with pytest.raises(StateInconsistent, match=r"'a'.*\"b\".*the count -2") as caught:
            read()
        assert "arrangement 'a'" in caught.value.where


def test_diffs_that_do_not_fit_are_refused_and_change_nothing() -> None:
    subject = World().arrangement()
    most = 2**63 - 1
    subject.apply(delta([(1, "a", 0.0)], [most]))
    with pytest.raises(InvalidInput, match="64 bits"):
        subject.apply(delta([(1, "a", 0.0)], [1]))
    subject.apply(delta([(1, "a", 0.0)] * 3, [most, -most, 0]))
    assert list(content(subject.scan()).values()) == [most]


def test_invalid_changes_are_refused() -> None:
    world = World()
    subject = world.arrangement()
    good = delta([(1, "a", 0.0)])
    bad: list[Any] = [
        good.drop_columns([DIFF]),
        good.select(["name", "id", "price", DIFF]),
        good.set_column(0, "id", pa.array([1], pa.int32())),
        good.set_column(3, DIFF, pa.array([None], pa.int64())),
        good.set_column(3, DIFF, pa.array([1.0])),
    ]
    for table in bad:
        with pytest.raises(Unexpected, match="arrangement 'a'"):
            subject.apply(table)
    assert subject.rows == 0
    for call in (
        lambda: subject.lookup(pa.table({"name": ["a"]})),
        lambda: subject.lookup(pa.table({"id": ["a"]})),
        lambda: world.arrangement(key=("nothing",)),
        lambda: world.arrangement(key=("id", "id")),
        lambda: world.arrangement(pa.schema([pa.field(DIFF, pa.int64())]), ()),
        lambda: world.arrangement(pa.schema([pa.field("a", pa.int64())] * 2), ()),
        lambda: ArrangementSettings(merge_fan_in=1),
    ):
        with pytest.raises(Unexpected):
            call()
    with pytest.raises(InvalidInput):
        world.arrangement(pa.schema([pa.field("a", pa.dictionary(pa.int8(), pa.string()))]), ())
    required = world.arrangement(pa.schema([SCHEMA.field("id").with_nullable(False)]), ("id",))
    with pytest.raises(Unexpected, match="NULL"):
        required.apply(delta(keys(None)))


def test_the_number_of_runs_is_bounded() -> None:
    """Fewer runs of each size than are merged, for any number of deltas; and each row is written once per size."""
    world, chance = World(), RandomStream(5)
    limits = ArrangementSettings(
        memory_rows_max=64, inline_rows_max=32, row_group_rows=16, part_rows_max=256, merge_fan_in=4
    )
    subject = world.arrangement(settings=limits)
    for number in range(600):
        subject.apply(delta([(number * 4 + i, "n", float(chance.below(9))) for i in range(4)]))
        while subject.maintain():
            pass
        assert len(subject._spine.runs.memory) <= 8
        assert len(subject._spine.runs.parts) <= 3 * 3
    assert subject.rows == 2400
    written = sum(entry.bytes for entry in world.blob.list("state/"))
    assert written < 6 * sum(entry.bytes for entry in subject.parts())
    assert {entry.key for entry in world.blob.list("")} == {*subject.released, *(part.key for part in subject.parts())}
    assert all(part.rows <= 256 for part in subject.parts())


def test_a_merge_ends_early_when_its_owner_stops() -> None:
    """A pipeline that closes does not wait for it. Its parts are released, and the rows are unchanged. Fails without
    the check of `is_stopping`: the merge runs to its end.
    """
    world = World()
    limits = ArrangementSettings(
        memory_rows_max=16, inline_rows_max=8, row_group_rows=4, part_rows_max=8, merge_fan_in=2
    )
    subject = world.arrangement(settings=limits)
    for name in "ab":
        subject.apply(delta([(i, name, None) for i in range(40)]))
        assert subject.maintain()
    before, written = subject.parts(), len([*world.blob.list("")])
    looks = iter([False, False, True])
    assert not subject.maintain(lambda: next(looks))
    assert subject.parts() == before
    assert len([*world.blob.list("")]) > written, "the merge was in progress"
    assert {entry.key for entry in world.blob.list("")} == {*subject.released, *(part.key for part in before)}
    assert content(subject.scan()) == {(i, name, None): 1 for i in range(40) for name in "ab"}
    assert subject.maintain()
    assert subject.rows == 80


def test_a_manifest_of_another_version_is_refused() -> None:
    world = World()
    manifest = world.arrangement().save()
    with pytest.raises(UnsupportedFormat):
        world.restore(msgspec.structs.replace(manifest, version=3))
    assert world.restore(manifest).rows == 0


def test_saving_writes_each_row_once() -> None:
    world = World()
    subject = world.arrangement(settings=ArrangementSettings())
    subject.apply(delta([(i, "n", 0.0) for i in range(100)]))
    first = subject.save()
    assert subject.save() == first
    assert len(list(world.blob.list(""))) == 1
    assert len(subject._spine.runs.memory) == 1, "saved rows are still in memory"
    subject.apply(delta([(1000, "n", 0.0)]))
    second = subject.save()
    assert len(second.runs) == 2
    assert first.runs[0] in second.runs
    assert content(world.restore(first).scan(), ["name"]) == {("n",): 100}
    assert content(world.restore(second).scan(), ["name"]) == {("n",): 101}
