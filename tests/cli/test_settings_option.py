"""`--set`: settings by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertide.cli.options import make_settings, make_shape_options
from evertide.errors import InvalidInput
from evertide.settings import Settings
from evertide.shapes.options import ShapeOptions
from tests.cli.kit import SHOP, evertide, one_error


def test_settings_by_name() -> None:
    assert make_settings(None) == Settings()
    found = make_settings(
        ["writer_ttl_s=5", " heartbeat_interval_s = 0.5", "portion_rows_max=100"], checkpoint_interval_s=7.0
    )
    assert found == Settings(
        writer_ttl_s=5.0, heartbeat_interval_s=0.5, portion_rows_max=100, checkpoint_interval_s=7.0
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("writer_ttl=5", "did you mean 'writer_ttl_s'"),
        ("beat_interval_s=5", "is now 'heartbeat_interval_s'"),
        ("collection_interval_s=5", "is now 'garbage_interval_s'"),
        ("portion_rows_max=1.5", "a whole number, not '1.5'"),
        ("writer_ttl_s=soon", "a number, not 'soon'"),
        ("writer_ttl_s", "not ''"),
        ("heartbeat_interval_s=40", "at most half"),
        ("retry_wait_s=0", "positive"),
    ],
)
def test_an_unknown_setting_is_refused_by_its_name(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=r"settings|--set") as refused:
        make_settings([text])
    assert why in str(refused.value)


def test_settings_of_shapes_by_name() -> None:
    """`run` has both kinds of settings; each part ignores those of the other."""
    both = ["shapes.log_cache_s=7", "writer_ttl_s=50", " shapes.long_poll_s = 1.5"]
    assert make_settings(both) == Settings(writer_ttl_s=50.0)
    found = make_shape_options(both, deletion=True, shapes_max=3)
    assert found == ShapeOptions(deletion=True, shapes_max=3, log_cache_s=7, long_poll_s=1.5)
    assert make_shape_options(None, deletion=False) == ShapeOptions()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("shapes.log_cache=5", "did you mean 'shapes.log_cache_s'"),
        ("shapes.writer_ttl_s=5", "does not exist"),
        ("shapes.deletion=1", "does not exist"),
        ("shapes.log_cache_s=1.5", "a whole number"),
        ("shapes.log_cache_s=-1", "a whole number from 0 on"),
        ("shapes.sse_s=0", "a positive number"),
    ],
)
def test_an_unknown_setting_of_shapes_is_refused_by_its_name(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=r"shapes\.") as refused:
        make_shape_options([text], deletion=False)
    assert why in str(refused.value)


def test_shapes_refuses_a_setting_of_the_pipeline(tmp_path: Path) -> None:
    said = one_error(evertide("shapes", "--storage", tmp_path / "s", "--set", "writer_ttl_s=5"), 2)
    assert "only settings that begin with 'shapes.'" in said


def test_run_refuses_an_unknown_setting_before_it_creates_anything(tmp_path: Path) -> None:
    script = tmp_path / "shop.sql"
    script.write_text(SHOP)
    said = one_error(evertide("run", script, "--storage", tmp_path / "s", "--set", "speed=11"), 2)
    assert "the setting 'speed' does not exist" in said
    assert not (tmp_path / "s").exists()
