"""The examples of README and docs work as printed, also the second time, and the commands that they name exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _run(example: str, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", example], cwd=where, capture_output=True, text=True, check=False)


def _examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


BLOCKS = _examples((ROOT / "docs" / "building-blocks.md").read_text())


def test_the_pipeline_continues_where_it_stopped(tmp_path: Path) -> None:
    [example] = _examples(README)
    for _ in range(2):
        done = _run(example, tmp_path)
        assert done.returncode == 0, done.stderr
        content, changes = done.stdout.splitlines()
        assert content == "[{'customer': 'ann', 'total': Decimal('27.00'), 'top': Decimal('20.00')}]"
        assert changes.count("'__diff': -1") == 2


def test_the_view_is_maintained(tmp_path: Path) -> None:
    done = _run(BLOCKS[0], tmp_path)
    assert done.returncode == 0, done.stderr
    first, second, *explained = done.stdout.splitlines()
    assert first.count("'__diff': 1") == 2
    assert second.count("'__diff': -1") == 2
    assert "Decimal('27.00')" in second
    assert "revenue" in explained[0]


def test_the_shard_example_works_and_a_second_run_is_an_error(tmp_path: Path) -> None:
    [_, example] = BLOCKS

    first = _run(example, tmp_path)

    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert lines[0] == "[{'id': 1, 'amount': 20, '__diff': 1}, {'id': 2, 'amount': 5, '__diff': 1}]"
    assert lines[1] == "[{'id': 1, 'amount': 20, '__diff': 1}, {'id': 2, 'amount': 7, '__diff': 1}]"
    assert "complete below 2" in lines

    second = _run(example, tmp_path)

    assert second.returncode != 0
    assert "UpperMismatch" in second.stderr
    assert "a peer wrote these times" in second.stderr


def test_the_commands_are_targets() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = set(re.findall(r"`?make ([a-z]+)", README))
    assert commands
    assert commands <= targets


def test_link_targets_exist() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())]
    assert len(links) > len(pages)
    for page, link in links:
        assert (page.parent / link).exists(), f"{page.name}: {link}"
