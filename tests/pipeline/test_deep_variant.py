"""A VARIANT may be nested less deeply than in an earlier version. What is committed or acknowledged stays valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import evertide as et
from evertide.errors import Diverged, Unavailable
from evertide.pipeline.transaction.runner import Runner
from tests.pipeline.kit import crash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEEP = "[" * 300 + "]" * 300
VIEW = "CREATE MATERIALIZED VIEW v AS SELECT k, variant_get(j, '$[0][0]', 'STRING') AS inner FROM t;"


@contextmanager
def deep_variants() -> Iterator[None]:
    """An earlier version, which had no fixed limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evertide.sources.values.values._VARIANT_LEVELS_MAX", 450)
        yield


def write(directory: Path, name: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f'{{"k": 1, "j": {DEEP}}}\n{{"k": 2, "j": [[7]]}}\n')


def script(directory: Path, *, keep: str) -> str:
    return f"""
        CREATE TABLE t (k INT, j VARIANT) USING files OPTIONS (path '{directory}', format 'json')
        TBLPROPERTIES ('evertide.keep' = '{keep}');
        {VIEW}
    """


def dead_letters(p: et.Pipeline) -> int:
    return len(p.view("evertide_errors").to_pylist())


def test_deep_variants_of_a_kept_table_are_replayed_as_committed(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json")
    text = script(tmp_path / "in", keep="all")
    with deep_variants():
        p = et.Pipeline.open(text, tmp_path / "s", spark=spark)
        p.run(until_idle=True)
        p.close(checkpoint=False)
    with et.Pipeline.open(text, tmp_path / "s", spark=spark) as p:
        assert (p.view("v").to_arrow().num_rows, dead_letters(p)) == (2, 0)


def test_the_log_names_a_row_that_is_not_valid_in_a_replay_any_more(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that is not kept is read from its source again. The error has only counts and digests."""
    write(tmp_path / "in", "a.json")
    text = script(tmp_path / "in", keep="none")
    with deep_variants():
        p = et.Pipeline.open(text, tmp_path / "s", spark=spark)
        p.run(until_idle=True)
        p.close(checkpoint=False)
    with pytest.raises(Diverged, match="replaying transaction 1 gave"):
        et.Pipeline.open(text, tmp_path / "s", spark=spark)
    assert (
        "transaction 1: 1 rows that fitted when it was committed do not fit now; the first, of table 't'" in caplog.text
    )
    assert "200 levels of a VARIANT" in caplog.text


def test_acknowledged_deep_variants_are_valid(spark: SparkSession, tmp_path: Path) -> None:
    """They are staged, and were bound by the earlier version, which did not commit them."""
    text = f"CREATE TABLE t (k INT, j VARIANT); {VIEW}"
    with deep_variants():
        p = et.Pipeline.open(text, tmp_path / "s", spark=spark)
        p.push("t", [{"k": 1, "j": [[7]]}])
        p.push("t", [{"k": 2, "j": json.loads(DEEP)}])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Runner, "complete", lambda *_: (_ for _ in ()).throw(Unavailable(path="s", why="away")))
            with pytest.raises(Unavailable):
                p.commit()
        crash(p)
    with et.Pipeline.open(text, tmp_path / "s", spark=spark) as p:
        assert (p.view("v").to_arrow().num_rows, dead_letters(p)) == (2, 0)
