"""`fsck`, `gc`, `export`, `import`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.kit import document, evertide, lines, make_storage, one_error, open_small, order


def test_fsck_of_an_intact_storage(tmp_path: Path) -> None:
    make_storage(tmp_path / "s")
    result = evertide("fsck", "--storage", tmp_path / "s", "--json")
    found = document(result)
    assert result.exit_code == 0
    assert found["is_sound"] is True
    assert found["problems"] == []
    assert found["checkpoints"] == 2
    assert evertide("fsck", "--storage", tmp_path / "s").stdout.startswith("sound: ")


def _damage(storage: Path) -> Path:
    """Truncate a state file of the newest checkpoint."""
    newest = max((storage / "checkpoints").iterdir())
    victim = next(file for file in sorted(newest.iterdir()) if file.name != "manifest.json")
    victim.write_bytes(victim.read_bytes()[:-1])
    return victim


def test_fsck_lists_damage_and_exits_with_8(tmp_path: Path) -> None:
    """Without the check of every byte, `fsck` would accept a checkpoint that cannot be restored."""
    victim = _damage(make_storage(tmp_path / "s"))
    result = evertide("fsck", "--storage", tmp_path / "s", "--json")
    assert result.exit_code == 8
    assert [one["path"] for one in document(result)["problems"]] == [str(victim)]
    said = evertide("fsck", "--storage", tmp_path / "s")
    assert said.exit_code == 8
    assert "blob_damaged" in said.stdout
    assert "1 problem: " in said.stdout


def test_fsck_repairs_and_the_pipeline_continues(tmp_path: Path) -> None:
    _damage(make_storage(tmp_path / "s"))
    result = evertide("fsck", "--storage", tmp_path / "s", "--repair", "--json")
    assert (result.exit_code, document(result)["is_sound"]) == (0, True)
    assert document(result)["repaired"]
    assert evertide("fsck", "--storage", tmp_path / "s").exit_code == 0
    with open_small(tmp_path / "s") as p:
        p.push("orders", [order(9)])
        assert p.commit() == 4


def test_a_repair_beside_a_running_pipeline_is_refused(tmp_path: Path) -> None:
    with open_small(tmp_path / "s"):
        assert "pid" in one_error(evertide("fsck", "--storage", tmp_path / "s", "--repair"), 19)


def test_gc_deletes_only_files_that_no_record_names(tmp_path: Path) -> None:
    make_storage(tmp_path / "s")
    orphan = tmp_path / "s" / "state" / "nobody" / "0000000000000000-00000001.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"?")
    found = document(evertide("gc", "--storage", tmp_path / "s", "--json"))
    assert found["deleted"]["state"] == ["state/nobody/0000000000000000-00000001.parquet"]
    assert not orphan.exists()
    assert evertide("fsck", "--storage", tmp_path / "s").exit_code == 0
    assert evertide("gc", "--storage", tmp_path / "s").stdout.endswith("0 files deleted\n")


def test_gc_that_cannot_read_a_record_deletes_nothing_and_reports_it(tmp_path: Path) -> None:
    """I12: if the refusal were swallowed, the exit code would be 0."""
    make_storage(tmp_path / "s")
    newest = max((tmp_path / "s" / "checkpoints").iterdir())
    (newest / "manifest.json").write_bytes(b"{")
    result = evertide("gc", "--storage", tmp_path / "s", "--json")
    assert result.exit_code == 8
    assert document(result)["count"] == 0
    assert document(result)["refused"][0]["error_code"] == "record_damaged"


def test_gc_beside_a_running_pipeline_is_refused(tmp_path: Path) -> None:
    with open_small(tmp_path / "s"):
        assert "stop it first" in one_error(evertide("gc", "--storage", tmp_path / "s"), 3)


def test_an_exported_checkpoint_is_a_storage_again(tmp_path: Path) -> None:
    make_storage(tmp_path / "s")
    number = document(evertide("checkpoints", "--storage", tmp_path / "s", "--json"))[0]["number"]
    archive = tmp_path / "shop.tar"
    done = document(evertide("export", str(number), archive, "--storage", tmp_path / "s", "--json"))
    assert (done["number"], done["time"], done["bytes"]) == (number, 4, archive.stat().st_size)
    assert evertide("import", archive, "--storage", tmp_path / "copy").exit_code == 0
    told = lines(evertide("subscribe", "revenue", "--storage", tmp_path / "copy", "--no-follow", "--json"))
    assert [line["row"] for line in told[:-1]] == [{"customer": "ann", "amount": 2}, {"customer": "bob", "amount": 4}]
    with open_small(tmp_path / "copy") as p:
        p.push("orders", [order(9)])
        assert p.commit() == 4


def test_impossible_exports_and_imports_are_refused(tmp_path: Path) -> None:
    make_storage(tmp_path / "s")
    archive = tmp_path / "shop.tar"
    assert "does not exist" in one_error(evertide("export", "99", archive, "--storage", tmp_path / "s"), 2)
    archive.write_bytes(b"mine")
    assert "--force" in one_error(evertide("export", "1", archive, "--storage", tmp_path / "s"), 2)
    assert archive.read_bytes() == b"mine"
    assert "the place is not empty" in one_error(evertide("import", archive, "--storage", tmp_path / "s"), 2)
    missing = one_error(evertide("import", tmp_path / "none.tar", "--storage", tmp_path / "new", "--json"), 2)
    assert json.loads(missing)["where"].endswith("none.tar")
    assert not (tmp_path / "new").exists()
