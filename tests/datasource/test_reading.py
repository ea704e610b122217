"""Every time of a random history reads as pushed, however it is split into tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from evertide.datasource.planning import choose_read_point, plan_tasks
from evertide.settings import Settings
from tests.datasource.kit import BLOBS, NAMES, History, content, grow, make_comparable, make_request, opened, rows_of

SIZES = (1, 2500, 10**9)
"""Bytes of a task: many tasks, some, one."""


@pytest.fixture(scope="module", params=[BLOBS, Settings()], ids=["blobs", "inline"])
def grown_history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with opened(tmp_path_factory.mktemp("grown") / "s", settings=request.param) as p:
        yield grow(p, seed=3, steps=24)


def test_every_time_equals_the_pushed_rows(grown_history: History) -> None:
    ways = set()
    for name in NAMES:
        since = grown_history.shard(name).since
        assert since > 0
        times = [time for time in grown_history.at if time >= since]
        for number, time in enumerate(times):
            for size in SIZES if time == times[-1] else [SIZES[number % 3]]:
                request = make_request(grown_history.root, name, as_of=time, partition_bytes=size)
                tasks = plan_tasks(request, choose_read_point(request))
                ways |= {(group.only_adds, group.span is not None) for group in (task.group for task in tasks)}
                found = content(rows_of(request, tasks))
                assert found == content(grown_history.at[time][name]), (name, time, size)
    if grown_history.pipeline.settings is BLOBS:
        assert (False, True) in ways  # split by ranges, and correct


def test_the_last_time_is_read_by_default(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as p:
        assert rows_of(make_request(tmp_path / "s", "bag")) == []
        history = grow(p, seed=5, steps=5)
        last = max(history.at)
        request = make_request(tmp_path / "s", "BAG")
        pinned = choose_read_point(request)
        history.step()
        assert content(rows_of(request, plan_tasks(request, pinned))) == content(history.at[last]["bag"])
        assert content(rows_of(request)) == content(history.at[last + 1]["bag"])


@pytest.mark.parametrize("size", SIZES)
def test_changes_between_two_times_add_up_to_the_difference(grown_history: History, size: int) -> None:
    for name in NAMES:
        times = [time for time in grown_history.at if time >= grown_history.shard(name).since]
        for after, upto in [(times[0], times[-1]), (times[1], times[4]), (times[3], times[3])]:
            rows = rows_of(
                make_request(grown_history.root, name, changes_after=after, as_of=upto, partition_bytes=size)
            )
            assert all(after < row["__time"] <= upto and row["__diff"] != 0 for row in rows)
            assert set(Counter((row["__time"], make_comparable(row)[:-2]) for row in rows).values()) <= {1}
            found = content(grown_history.at[after][name])
            for row in rows:
                found[make_comparable(row)[:-2]] += row["__diff"]
            assert +found == content(grown_history.at[upto][name])
            assert not -found
            known = grown_history.pipeline.view(name).as_of(upto).changes(since=after)
            assert content(rows) == content(known.to_pylist())


def test_changes_since_the_first_time(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as p:
        grow(p, seed=1, steps=2)
        assert len(rows_of(make_request(tmp_path / "s", "bag", changes_after=-1))) == p.view("bag").changes().num_rows


@pytest.mark.parametrize("size", SIZES)
def test_columns_and_conditions_equal_a_filter_afterwards(grown_history: History, size: int) -> None:
    last = max(grown_history.at)
    whole = grown_history.at[last]["things"]

    def found(**options: str) -> Counter[tuple[str, ...]]:
        return content(rows_of(make_request(grown_history.root, "things", partition_bytes=size, **options)))

    between = [{"name": row["name"], "weight": row["weight"]} for row in whole if 7 <= row["id"] < 20]
    assert found(columns="Name, weight", where="id >= 7 AND id < 20") == content(between)
    named = [{"id": row["id"]} for row in whole if row["name"] in ("ann", "Zoë")]
    assert found(columns="id", where="name IN ('ann', 'Zoë')") == content(named)
    changes = rows_of(
        make_request(grown_history.root, "things", columns="name", where="id < 20", changes_after=last - 9)
    )
    known = grown_history.pipeline.view("things").changes(since=last - 9).to_pylist()
    summed: Counter[tuple[int, str | None]] = Counter()
    for row in known:
        summed[row["__time"], row["name"]] += row["__diff"] if row["id"] < 20 else 0
    assert len(changes) < sum(row["id"] < 20 for row in known)  # some of them cancel out
    told_once = [((row["__time"], row["name"]), row["__diff"]) for row in changes]
    assert sorted(told_once, key=repr) == sorted(((one, n) for one, n in summed.items() if n), key=repr)


def test_parts_that_cannot_match_are_not_read(tmp_path: Path) -> None:
    """Proved by deleting them: the read still succeeds."""
    with opened(tmp_path / "s") as p:
        for first in range(0, 40, 4):
            p.push("things", [{"id": key, "name": "x"} for key in range(first, first + 4)])
            p.commit()
        request = make_request(tmp_path / "s", "things", where="id BETWEEN 5 AND 9")
        tasks = plan_tasks(request, choose_read_point(request))
        kept = {part.key for group in (task.group for task in tasks) for part in group.parts}
        assert len(kept) == 2
        for path in (tmp_path / "s" / "parts").rglob("*.parquet"):
            if path.relative_to(tmp_path / "s").as_posix() not in kept and "things" in path.as_posix():
                path.unlink()
        assert sorted(row["id"] for row in rows_of(request)) == [5, 6, 7, 8, 9]


def test_parts_without_retractions_are_distributed_and_read_once(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as p:
        for _ in range(10):
            p.push("bag", [{"word": "w", "n": 1}] * 4)
            p.commit()
        request = make_request(tmp_path / "s", "bag", partition_bytes=2000)
        tasks = plan_tasks(request, choose_read_point(request))
        parts = [part.key for group in (task.group for task in tasks) for part in group.parts]
        assert len(parts) == len(set(parts))
        assert len(tasks) > 2
        assert all(group.only_adds for group in (task.group for task in tasks))
        assert rows_of(request, tasks) == [{"word": "w", "n": 1}] * 40
