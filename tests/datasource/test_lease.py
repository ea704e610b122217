"""I6: parts of a planned read stay until they are read, or the lease is lost, which is an error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evertide.datasource.planning import ReadTask, choose_read_point, plan_tasks
from evertide.datasource.request import Request
from evertide.errors import BlobMissing, InvalidInput, LeaseLost, TimeCompacted
from evertide.settings import Settings
from evertide.shard.lease import LeaseRecord, end_lease, read_live_leases, renew_lease
from tests.datasource.kit import History, content, grow, make_request, opened, rows_of


def leases(history: History, name: str = "things") -> dict[str, LeaseRecord]:
    return read_live_leases(history.shard(name).log)


def disturb(history: History) -> int:
    """Do everything that a running pipeline does to parts; return how many were deleted."""
    for _ in range(8):
        history.forget(history.step() - 1)
    history.compact()
    return history.collect_garbage()


def plan_read(history: History, **options: object) -> tuple[Request, list[ReadTask]]:
    request = make_request(history.root, "things", **options)
    return request, plan_tasks(request, choose_read_point(request))


@pytest.mark.parametrize("options", [{}, {"partition_bytes": 1}, {"changes_after": 3}])
def test_i6_parts_of_a_planned_read_survive_compaction_and_garbage_collection(
    tmp_path: Path, options: dict[str, int]
) -> None:
    with opened(tmp_path / "s") as p:
        history = grow(p, 2, 7)
        request, found = plan_read(history, **options)
        before = rows_of(request, found)
        disturb(history)
        assert content(rows_of(request, found)) == content(before)
        if not options:
            assert content(before) == content(history.at[found[0].read_point.time]["things"])


def test_i6_a_lost_lease_is_distinguished_from_a_lost_file(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as p:
        history = grow(p, 2, 7)
        request, found = plan_read(history)
        end_lease(history.shard("things").log, found[0].read_point.lease)
        assert content(rows_of(request, found)) == content(
            history.at[found[0].read_point.time]["things"]
        )  # every part still exists
        assert disturb(history) > 0
        with pytest.raises(LeaseLost) as lost:
            rows_of(request, found)
        assert (lost.value.lease, lost.value.restart_from) == (found[0].read_point.lease, found[0].read_point.time)
        request, found = plan_read(history)
        Path(request.storage, found[0].group.parts[0].key).unlink()
        with pytest.raises(BlobMissing):
            rows_of(request, found)


def test_since_does_not_pass_the_time_of_a_loaded_dataframe(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as p:
        history = grow(p, 2, 7)
        request = make_request(history.root, "things")
        pinned = choose_read_point(request)
        disturb(history)
        assert history.shard("things").since == pinned.time
        assert content(rows_of(request, plan_tasks(request, pinned))) == content(history.at[pinned.time]["things"])


def test_a_lease_lost_before_planning_is_replaced_if_the_time_is_readable(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as p:
        history = grow(p, 2, 7)
        request = make_request(history.root, "things")
        pinned = choose_read_point(request)
        end_lease(history.shard("things").log, pinned.lease)
        again = plan_tasks(request, pinned)
        assert again[0].read_point.lease != pinned.lease
        assert list(leases(history)) == [f"lease/{pinned.shard}/{again[0].read_point.lease}"]
        end_lease(history.shard("things").log, again[0].read_point.lease)
        disturb(history)
        with pytest.raises(TimeCompacted, match=f"the earliest is {history.shard('things').since}"):
            plan_tasks(request, pinned)
        assert leases(history) == {}


def test_a_task_renews_the_lease_of_another_process(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as p:
        history = grow(p, 2, 7)
        request, found = plan_read(history, lease_s=100)
        [before] = leases(history).values()
        assert before.ttl_s == 100
        rows_of(request, found)
        assert list(leases(history).values()) == [before]  # the lease was acquired just now
        rows_of(request, [replace(task, renewed_at_s=task.renewed_at_s - 99) for task in found])
        [after] = leases(history).values()
        assert after.beat > before.beat
        assert after.beat_at_s > before.beat_at_s


def test_renewing_an_ended_lease_fails(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as p:
        history = grow(p, 2, 3)
        log = history.shard("things").log
        lease = choose_read_point(make_request(history.root, "things")).lease
        assert renew_lease(log, lease)
        end_lease(log, lease)
        end_lease(log, lease)
        assert not renew_lease(log, lease)
        assert leases(history) == {}


def test_a_read_of_inline_batches_only_needs_no_lease(tmp_path: Path) -> None:
    with opened(tmp_path / "s", settings=Settings()) as p:
        history = grow(p, 2, 7)
        request, found = plan_read(history)
        assert leases(history) == {}
        disturb(history)
        assert content(rows_of(request, found)) == content(history.at[found[0].read_point.time]["things"])


def test_times_that_cannot_be_read_leave_no_lease(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as p:
        history = grow(p, 2, 9)
        since, last = history.shard("things").since, max(history.at)
        for options in ({"as_of": since - 1}, {"changes_after": since - 1}):
            with pytest.raises(TimeCompacted, match=f"the earliest is {since}"):
                choose_read_point(make_request(history.root, "things", **options))
        with pytest.raises(InvalidInput, match=f"time {last + 1} is not committed yet; the last time is {last}"):
            choose_read_point(make_request(history.root, "things", as_of=last + 1))
        with pytest.raises(InvalidInput, match=f"later than the last time, which is {last}"):
            choose_read_point(make_request(history.root, "things", changes_after=last + 1))
        assert leases(history) == {}
        assert rows_of(make_request(history.root, "things", changes_after=last)) == []
