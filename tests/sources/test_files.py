"""A watched directory: each file is read once, complete and unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evertide.errors import RecordDamaged, SourceChanged, SourceFailed, Unexpected, UnsupportedFormat
from evertide.journal.records import Place, Staged
from evertide.sources.contract import Lag, Limit, Monitored, Source
from evertide.sources.files.directory import decode_position, encode_position
from evertide.sources.files.source import FilesSource
from tests.kit.runtime import ManualRuntime
from tests.sources.kit import LIMIT, batches, ids, open_source, put, require_offer, rows_in, table


def csv(*ids: int) -> str:
    return "id,name,amount\n" + "".join(f"{one},n{one},{one}.5\n" for one in ids)


def orders(base: Path, **options: str) -> Source:
    return open_source(base, table(connector="csv", **{"path": "in", "settle_ms": "0", **options}))


def problems(source: Source) -> tuple[str, ...]:
    assert isinstance(source, FilesSource)
    return tuple(problem.why for problem in source.problems)


def test_files_are_offered_by_time_then_name_and_each_once(tmp_path: Path) -> None:
    put(tmp_path / "in/b.csv", csv(2), at_s=10)
    put(tmp_path / "in/a.csv", csv(3), at_s=20)
    put(tmp_path / "in/0.csv", csv(1), at_s=10)
    source = orders(tmp_path)
    offer = require_offer(source)
    assert ids(source, offer) == [1, 2, 3]
    assert offer.rows == 3
    assert source.offer(offer.after, LIMIT) is None


def test_an_offer_moves_nothing_and_can_be_made_again(tmp_path: Path) -> None:
    put(tmp_path / "in/a.csv", csv(1, 2))
    source = orders(tmp_path)
    assert require_offer(source) == require_offer(source)
    assert rows_in(source, require_offer(source)) == rows_in(orders(tmp_path), require_offer(source)), (
        "another process reads it"
    )


def test_each_file_once_across_restarts(tmp_path: Path) -> None:
    """With a watermark instead of the set, the late files (an old name, an old time) would be lost."""
    put(tmp_path / "in/m.csv", csv(1), at_s=100)
    first = require_offer(orders(tmp_path))
    put(tmp_path / "in/a.csv", csv(2), at_s=50)
    put(tmp_path / "in/z.csv", csv(3), at_s=100)
    source = orders(tmp_path)
    second = require_offer(source, first.after)
    assert ids(source, second) == [2, 3]
    assert orders(tmp_path).offer(second.after, LIMIT) is None
    (tmp_path / "in/a.csv").unlink()
    assert orders(tmp_path).offer(second.after, LIMIT) is None


@pytest.mark.parametrize("name", [".hidden.csv", "_SUCCESS", "x.csv.tmp", "x.csv.part", "x.txt", "empty.csv"])
def test_files_that_do_not_match_are_ignored(tmp_path: Path, name: str) -> None:
    put(tmp_path / "in" / name, "" if name == "empty.csv" else csv(1))
    (tmp_path / "in/folder.csv").mkdir()
    assert orders(tmp_path, pattern="*.csv").offer(encode_position({}), LIMIT) is None


def test_a_growing_file_is_not_read_before_it_is_complete(tmp_path: Path) -> None:
    """Without the second check, the first half would be taken for the file, and the rest never read."""
    runtime = ManualRuntime()
    source = open_source(tmp_path, table(connector="csv", path="in"), runtime=runtime)
    path = put(tmp_path / "in/a.csv", csv(1), at_s=10)
    assert source.offer(source.start, LIMIT) is None
    runtime.advance_s(0.4)
    put(path, csv(1, 2), at_s=10)
    assert source.offer(source.start, LIMIT) is None
    runtime.advance_s(0.4)
    assert source.offer(source.start, LIMIT) is None, "0.4 s since it grew"
    put(path, csv(1, 2), at_s=11)
    runtime.advance_s(0.4)
    assert source.offer(source.start, LIMIT) is None, "the file's time changed"
    runtime.advance_s(0.5)
    assert ids(source, require_offer(source)) == [1, 2]


def test_a_file_that_has_not_settled_holds_back_those_after_it(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    source = open_source(tmp_path, table(connector="csv", path="in"), runtime=runtime)
    put(tmp_path / "in/b.csv", csv(2), at_s=20)
    put(tmp_path / "in/c.csv", csv(3), at_s=30)
    assert source.offer(source.start, LIMIT) is None
    runtime.advance_s(0.5)
    put(tmp_path / "in/a.csv", csv(1), at_s=25)
    assert ids(source, require_offer(source)) == [2]
    runtime.advance_s(0.5)
    assert ids(source, require_offer(source)) == [2, 1, 3]


def test_a_file_that_changes_while_it_is_read_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the second check, the checksums would be those of two contents in one file."""
    path = put(tmp_path / "in/a.csv", csv(1), at_s=10)
    source = orders(tmp_path)
    assert isinstance(source, FilesSource)
    cut = type(source._reader).split_file

    def read_slowly(reader: object, at: Path, limit: Limit) -> object:
        yield from cut(reader, at, limit)  # type: ignore[arg-type]
        put(path, csv(1, 2), at_s=11)

    monkeypatch.setattr(type(source._reader), "split_file", read_slowly)
    assert source.offer(source.start, LIMIT) is None
    monkeypatch.undo()
    assert ids(source, require_offer(source)) == [1, 2]


def test_a_file_that_changes_after_it_was_read_is_reported_and_not_read_again(tmp_path: Path) -> None:
    put(tmp_path / "in/a.csv", csv(1), at_s=10)
    first = require_offer(orders(tmp_path))
    put(tmp_path / "in/a.csv", csv(1, 2), at_s=20)
    source = orders(tmp_path)
    assert source.offer(first.after, LIMIT) is None
    (problem,) = problems(source)
    assert problem.startswith(f"{tmp_path / 'in/a.csv'} changed after it was read")
    assert isinstance(source, FilesSource)
    assert (source.problems[0].state, source.problems[0].error_code) == ("warning", "file_changed")
    since_s = source.problems[0].since_s
    source.offer(first.after, LIMIT)
    assert source.problems[0].since_s == since_s
    put(tmp_path / "in/a.csv", csv(1), at_s=10)
    source.offer(first.after, LIMIT)
    assert problems(source) == (), "the old content was restored"


def test_lag_counts_waiting_files_and_bytes(tmp_path: Path) -> None:
    """Also of files that have not settled; not of bound ones, even before the next listing."""
    runtime = ManualRuntime()
    (tmp_path / "in").mkdir()
    source = open_source(tmp_path, table(connector="csv", path="in", settle_ms="5000"), runtime=runtime)
    assert isinstance(source, FilesSource)
    assert isinstance(source, Monitored)
    assert source.lag == Lag(), "the directory was not listed yet"
    assert source.offer(source.start, LIMIT) is None
    assert source.lag == Lag(bytes=0, files=0, seconds=0.0)
    first = put(tmp_path / "in/a.csv", csv(1), at_s=10).stat().st_size
    assert source.offer(source.start, LIMIT) is None
    runtime.advance_s(3)
    second = put(tmp_path / "in/b.csv", csv(2, 3), at_s=11).stat().st_size
    assert source.offer(source.start, LIMIT) is None
    assert source.lag == Lag(bytes=first + second, files=2, seconds=3.0)
    runtime.advance_s(3)
    offer = source.offer(source.start, LIMIT)
    assert offer is not None
    assert source.lag.files == 2, "an offered file is not bound"
    source.acknowledge(offer.after)
    assert source.lag == Lag(bytes=second, files=1, seconds=3.0)


@pytest.mark.parametrize("limit", [LIMIT, Limit(rows=2, bytes=1 << 30)])
def test_j4_a_changed_file_is_source_changed(tmp_path: Path, limit: Limit) -> None:
    """Without the checksum, the other rows would be taken for those that were bound."""
    path = put(tmp_path / "in/a.csv", csv(1, 2, 3), at_s=10)
    source = orders(tmp_path)
    offer = require_offer(source, limit=limit)
    put(path, csv(1, 2, 4), at_s=10)
    with pytest.raises(SourceChanged) as changed:
        list(batches(source, offer))
    assert (changed.value.source, changed.value.where) == ("orders", str(path))
    assert "expected 42 bytes with the checksum" in changed.value.why
    assert "found 42 bytes with" in changed.value.why
    path.unlink()
    with pytest.raises(SourceChanged, match=r"the file, of .* bytes, is gone"):
        list(batches(source, offer))
    put(path, csv(1, 2, 3), at_s=99)
    assert ids(source, offer) == [1, 2, 3], "the old content was restored, with another time"


def test_a_large_file_is_several_fragments_of_one_offer(tmp_path: Path) -> None:
    put(tmp_path / "in/a.csv", csv(*range(10)), at_s=10)
    put(tmp_path / "in/b.csv", csv(10), at_s=20)
    source = orders(tmp_path)
    offer = require_offer(source, limit=Limit(rows=3, bytes=1 << 30))
    assert [batch.rows.num_rows for batch in batches(source, offer)] == [3, 3, 3, 1]
    assert ids(source, offer) == list(range(10))
    assert ids(source, require_offer(source, offer.after)) == [10]
    small = require_offer(source, limit=Limit(rows=100, bytes=15))
    assert len(small.fragments) > 3
    assert ids(source, small) == list(range(10))


def test_an_offer_has_whole_files_until_the_limit_is_reached(tmp_path: Path) -> None:
    for at in range(5):
        put(tmp_path / f"in/{at}.csv", csv(2 * at, 2 * at + 1), at_s=at)
    source = orders(tmp_path)
    offer = require_offer(source, limit=Limit(rows=3, bytes=1 << 30))
    assert ids(source, offer) == [0, 1, 2, 3]
    assert ids(source, require_offer(source, offer.after)) == [4, 5, 6, 7, 8, 9]


def test_a_file_that_does_not_match_stalls_the_source_after_the_files_before_it(tmp_path: Path) -> None:
    put(tmp_path / "in/a.csv", csv(1), at_s=10)
    put(tmp_path / "in/b.csv", "id,nmae\n2,x\n", at_s=20)
    put(tmp_path / "in/c.csv", csv(3), at_s=30)
    source = orders(tmp_path)
    offer = require_offer(source)
    assert ids(source, offer) == [1]
    with pytest.raises(SourceFailed, match=r"in/b.csv, table 'orders'.*the table has no column 'nmae'"):
        source.offer(offer.after, LIMIT)
    put(tmp_path / "in/b.csv", csv(2), at_s=20)
    assert ids(source, require_offer(source, offer.after)) == [2, 3]


def test_a_single_file_and_a_missing_directory(tmp_path: Path) -> None:
    source = orders(tmp_path, path="in/only.csv")
    with pytest.raises(SourceFailed, match="No such file"):
        source.offer(source.start, LIMIT)
    put(tmp_path / "in/only.csv", csv(1))
    put(tmp_path / "in/other.csv", csv(2))
    offer = require_offer(source)
    assert ids(source, offer) == [1]
    assert source.offer(offer.after, LIMIT) is None


def test_a_position_stays_small_and_a_damaged_one_is_refused() -> None:
    read = {f"events-2026-01-{at % 28 + 1:02d}-{at:06d}.csv": at & 0xFFFF for at in range(20_000)}
    position = encode_position(read)
    assert decode_position(position) == read
    assert len(position) < 8 * len(read)
    with pytest.raises(RecordDamaged):
        decode_position(position[:-20] + position[-10:])


def test_a_fragment_of_another_source_is_refused(tmp_path: Path) -> None:
    source = orders(tmp_path)
    for fragment in (Place('{"first":0,"count":5}'), Staged("orders", "x", 1, 1, "")):
        with pytest.raises(Unexpected, match="source 'orders'"):
            list(source.read(fragment))


def test_errors_of_the_operating_system_are_reported(tmp_path: Path) -> None:
    path = put(tmp_path / "in/a.csv", csv(1))
    source = orders(tmp_path)
    offer = require_offer(source)
    path.unlink()
    path.mkdir()
    with pytest.raises(SourceFailed, match=r"in/a.csv.*Is a directory"):
        list(batches(source, offer))


def test_a_name_that_is_not_valid_text_is_reported(tmp_path: Path) -> None:
    put(tmp_path / "in/a.csv", csv(1))
    put(tmp_path / os.fsdecode(b"in/\xff.csv"), csv(2))
    source = orders(tmp_path)
    assert ids(source, require_offer(source)) == [1]
    assert "the name is not UTF-8" in problems(source)[0]


def test_positions_and_fragments_of_version_1_are_read(tmp_path: Path) -> None:
    """As stored in journals: these texts must never change their meaning."""
    position = '{"version":1,"files":2,"read":"EAAAAHjaS9RLLi5jSAKRABV2A7gBAAIA"}'
    assert decode_position(position) == {"a.csv": 1, "b.csv": 2}
    put(tmp_path / "in/x.csv", "id,name\n1,a\n2,b\n")
    cut = (
        '{"first":12,"last":16,"line":3,"rows":1,"checksum":"e0c01e12832098083f29ec71552ec197","columns":["id","name"]}'
    )
    fragment = Place(f'{{"path":"x.csv","bytes":16,"mtime_ns":1000000000000,"cut":{cut}}}')
    (batch,) = orders(tmp_path).read(fragment)
    assert batch.rows.column("name").to_pylist() == ["b"]
    with pytest.raises(UnsupportedFormat):
        decode_position(position.replace('"version":1', '"version":2'))
