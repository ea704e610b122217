"""The notebook of the examples, and what a notebook shows, in a real Jupyter kernel."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
WAIT_S = 120
PROGRESS = """
import evertide as et
from evertide.notebook import find_progress
progress = find_progress()
progress('load <it>', 1, 4)
progress('load <it>', 4, 4)
"""


@contextmanager
def kernel(folder: Path) -> Iterator[KernelManager]:
    """The kernel of this Python, whatever kernels the machine has."""
    manager = KernelManager()
    manager._kernel_spec = KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    manager.start_kernel(cwd=str(folder))
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)


def run(cells: list[Any], folder: Path) -> list[Any]:
    """The cells with their outputs. Raises the error of a cell."""
    notebook = nbformat.v4.new_notebook(cells=cells)
    with kernel(folder) as manager:
        client = NotebookClient(notebook, km=manager, timeout=WAIT_S, shutdown_kernel="immediate")
        try:
            asyncio.run(client.async_execute(reset_kc=True, cwd=str(folder)))
        finally:
            if client.kc is not None:
                client.kc.stop_channels()
    return list(notebook.cells)


def read_cells() -> list[Any]:
    return [
        cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if "install" not in cell.metadata.get("tags", [])
    ]


def htmls(cell: Any) -> list[str]:
    return ["".join(each.data["text/html"]) for each in cell.outputs if "text/html" in each.get("data", {})]


def texts(cell: Any) -> str:
    return "".join(each.text for each in cell.outputs if each.output_type == "stream")


def find(cells: list[Any], start: str) -> Any:
    [found] = [cell for cell in cells if cell.cell_type == "code" and cell.source.startswith(start)]
    return found


def test_the_notebook_is_stored_without_outputs() -> None:
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in read_cells())


def test_every_cell_of_the_notebook_runs_and_shows_what_it_says(tmp_path: Path) -> None:
    cells = run(read_cells(), tmp_path)
    [view] = htmls(find(cells, 'p.push("orders", [{"id": 1'))
    assert "View revenue at time 1: 2 rows" in view
    assert "20.00" in view
    [frame] = htmls(find(cells, "import pandas"))
    assert ["ann" in frame, "eve" in frame, "bob" in frame, "25.50" in frame] == [True, True, False, True]
    [earlier] = htmls(find(cells, "p.sql("))
    assert earlier.index("20.00") < earlier.index("5.50")
    [explained] = htmls(find(cells, "p.explain()"))
    assert "how it is maintained" in explained
    changed = texts(find(cells, "p.close()\nSCRIPT"))
    assert "large_orders" in changed
    assert "View large_orders at time 2: 2 rows" in changed
    [watched] = htmls(find(cells, "watch = "))
    [time] = re.findall(r"View revenue at time (\d+)", watched)
    assert int(time) > 2, "the cell was not updated"
    [chart] = htmls(find(cells, "from IPython.display"))
    assert chart.count("<rect") == 3
    closed = find(cells, "watch.stop()").outputs[-1].data
    assert "closed" in closed["text/plain"]
    assert "text/html" not in closed, "the last status says running"
    assert not any("0 of 0" in html for cell in cells if cell.cell_type == "code" for html in htmls(cell))
    noise = [each.text for cell in cells for each in cell.get("outputs", []) if each.get("name") == "stderr"]
    assert not noise


def test_a_notebook_shows_progress_and_refuses_what_a_watch_cannot_do(tmp_path: Path) -> None:
    cells = [
        nbformat.v4.new_code_cell(source)
        for source in (
            PROGRESS,
            "p = et.Pipeline.open('CREATE TABLE t (a INT);', 's')\np",
            "p.push('t', [{'a': 1}])\np.commit()",
            "try:\n    p.view('t').as_of(0).watch()\nexcept et.EvertideError as error:\n    print(error)",
            "watch = p.view('t').watch()\np.close()\nwatch",
        )
    ]
    done = run(cells, tmp_path)
    [progress] = htmls(done[0])
    assert 'load &lt;it&gt; <progress value="4" max="4"></progress> 4 of 4' in progress
    [status] = htmls(done[1])
    assert "running since" in status
    assert "the rows as of a time never change" in texts(done[3])
    assert done[4].outputs[-1].data["text/plain"] == "<Watch stopped>"


def test_an_editor_completes_the_api(tmp_path: Path) -> None:
    with kernel(tmp_path) as manager:
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=WAIT_S)
        client.execute_interactive("import evertide as et", timeout=WAIT_S)
        found = [
            client.complete(code, reply=True, timeout=WAIT_S)["content"]["matches"]
            for code in ("et.P", "et.View.to_pa")
        ]
        client.stop_channels()
    assert [[each.rpartition(".")[2] for each in names] for names in found] == [["Pipeline"], ["to_pandas"]]
