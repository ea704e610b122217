"""What a new user sees in a terminal, compared with tests/golden/terminal: help, the first run, and what follows it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.cli.main import app
from evertide.client import Client
from tests.cli.kit import ROOT, SHOP, evertide, make_storage
from tests.kit.golden import compare_with_golden, normalize, normalize_numbers
from tests.kit.terminal import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENVIRONMENT = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "SPARK_LOCAL_IP": "127.0.0.1"}
CHANGED = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, channel STRING, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW revenue AS SELECT customer, sum(amount + 1) AS amount FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW top AS SELECT max(amount) AS amount FROM orders;
"""


def open_terminal(folder: Path, *args: str) -> Terminal:
    return Terminal([sys.executable, "-m", "evertide.cli", *args], folder, ENVIRONMENT)


def capture(folder: Path, *args: str) -> str:
    """The command line, and what the command prints on a terminal."""
    with open_terminal(folder, *args) as terminal:
        code, shown = terminal.finish()
    return f"$ evertide {' '.join(args)}\n{shown}\n" + (f"[exit code {code}]\n" if code else "")


def test_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command says what it does and shows an example; a misspelled command or option gets a suggestion."""
    monkeypatch.setenv("COLUMNS", "100")
    commands = [command.name or "" for command in app.registered_commands]
    asked = [["--help"], *([name, "--help"] for name in commands), ["stats"], ["run", "--storge", "s"], ["query"]]
    shown = []
    for args in asked:
        found = evertide(*args)
        lines = "\n".join(line.rstrip() for line in (found.stdout + found.stderr).splitlines())
        shown.append(f"$ evertide {' '.join(args)}\n{lines}\n")
    compare_with_golden("terminal/help.txt", "\n".join(shown))


def test_the_first_run_and_a_look_at_its_storage(tmp_path: Path) -> None:
    """Fails if a line of Spark or Java reaches the terminal, or if Ctrl-C leaves half a display."""
    (tmp_path / "shop.sql").write_text(SHOP)
    run = ("run", "shop.sql", "--storage", "shop.evertide", "--listen", "127.0.0.1:0")
    with open_terminal(tmp_path, *run, "--set", "stall_after_s=600") as terminal:  # the machine may be slow
        started = terminal.wait_for("no transactions in this process")
        [address] = set(re.findall(r"http://127\.0\.0\.1:\d+", started))
        with Client(address) as client:
            client.push("orders", [{"id": 1, "customer": "ann", "amount": 20}])
        running = terminal.wait_for("in 1 transaction,")
        terminal.press_ctrl_c()
        code, ended = terminal.finish()
    assert code == 0
    shown = [f"$ evertide {' '.join(run)}\n{started}\n", f"-- after a push\n{running}\n", f"-- after Ctrl-C\n{ended}\n"]
    shown += [
        capture(tmp_path, *command, "--storage", "shop.evertide")
        for command in (
            ("status",),
            ("fsck",),
            ("query", "SELECT * FROM revenue"),
            ("subscribe", "revenue", "--no-follow"),
            ("journal",),
            ("checkpoints",),
            ("gc",),
        )
    ]
    shown.append(capture(tmp_path, "status", "--storage", "elsewhere"))
    compare_with_golden("terminal/first-run.txt", normalize("\n".join(shown), {str(tmp_path): "DIR"}))


def test_a_changed_script_a_wrong_file_and_an_erroneous_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.chdir(tmp_path)
    make_storage(Path("shop.evertide"))
    Path("shop.sql").write_text(SHOP)
    Path("changed.sql").write_text(CHANGED)
    Path("wrong.sql").write_text(SHOP.replace("customer,", "custmer,", 1).replace("amount BIGINT", "amount BIGNIT"))
    Path("wrong.csv").write_text("id,customer,amount\n1,ann,20\n2,bob,many\n")
    Path("other.csv").write_text("id,buyer\n1,ann\n")
    Path("right.csv").write_text("id,customer,amount\n1,ann,20\n")
    files = ("right.csv", "wrong.csv", "other.csv", "none.csv")
    storage = ("--storage", "shop.evertide")
    commands: list[tuple[str, ...]] = [
        ("plan", "shop.sql", "--storage", "new.evertide"),
        ("plan", "changed.sql", *storage),
        ("run", "changed.sql", *storage, "--until-idle"),
        ("plan", "wrong.sql", *storage),
        *(("push", "orders", file, "--storage", "new.evertide", "--script", "shop.sql") for file in files),
        ("query", "SELECT custmer FROM orders", *storage),
    ]
    shown = []
    for command in commands:
        found = evertide(*command)
        code = f"[exit code {found.exit_code}]\n" if found.exit_code else ""
        shown.append(f"$ evertide {' '.join(command)}\n{found.stdout}{found.stderr}{code}")
    compare_with_golden("terminal/mistakes.txt", normalize("\n".join(shown), {str(tmp_path): "DIR"}))


def test_the_start_of_the_demo(tmp_path: Path) -> None:
    """Its state is not compared: on a busy machine, the first transactions take so long that it is `stalled`."""
    with open_terminal(tmp_path, "demo", "--rate", "100") as terminal:
        shown = terminal.wait_until(is_whole_display)
        terminal.press_ctrl_c()
        code, ended = terminal.finish()
    assert code == 0
    shown = re.sub(
        r"(?ms)^(running|stalled)  time \d+(, \d+ waiting)?(.*?) each\n.*?(?=^state:)", r"STATE\3 each\n", shown
    )
    shown = re.sub(r"\d+ rows? in \d+ transactions?,", "9 rows in 9 transactions,", shown)
    shown = re.sub(r"(?m)^ +\d.*\n", "", shown)  # the rows of the view
    shown = "\n".join([shown, "-- after Ctrl-C", ended.splitlines()[-1]])
    shown = normalize_numbers(normalize(shown, {str(tmp_path): "DIR"}))
    compare_with_golden("terminal/demo.txt", f"$ evertide demo --rate 100\n{shown}")


def is_whole_display(shown: str) -> bool:
    return shown.endswith("start it again") and re.search(r" in \d+ transactions?, ", shown) is not None
