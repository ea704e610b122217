"""The layout of graphs: nodes of random graphs are in layers, do not overlap, and are placed deterministically."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evertide.console

LAYOUT = Path(evertide.console.__file__).parent / "static" / "layout.js"
ASK = """
import { readFileSync } from "node:fs"
const { curve, computeLayers } = await import(process.argv[1])
const told = JSON.parse(readFileSync(0)).map(({ nodes, edges }) => {
  const laid = computeLayers(nodes, edges)
  const drawn = laid.edges.map((one) => ({ ...one, path: curve(one.points) }))
  return { width: laid.width, height: laid.height, nodes: Object.fromEntries(laid.nodes), edges: drawn }
})
process.stdout.write(JSON.stringify(told))
"""

Graph = dict[str, Any]


def lay_out(graphs: list[Graph]) -> list[Any]:
    if shutil.which("node") is None:
        pytest.skip("node is not installed: the console's layout cannot be tried")
    command = ["node", "--input-type=module", "--eval", ASK, LAYOUT.as_uri()]
    done = subprocess.run(command, input=json.dumps(graphs), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def graph(seed: int) -> Graph:
    """Edges only go from lower to higher numbers, so there is no cycle."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 24))
    nodes = [{"id": f"n{at}", "width": 100, "height": int(rng.integers(20, 80))} for at in range(count)]
    pairs = {(int(a), int(b)) for a, b in rng.integers(0, count, (int(rng.integers(0, 40)), 2)) if a < b}
    return {"nodes": nodes, "edges": [{"from": f"n{a}", "to": f"n{b}"} for a, b in sorted(pairs)]}


def overlaps(one: Any, other: Any) -> bool:
    apart = (
        one["x"] + one["width"] <= other["x"]
        or other["x"] + other["width"] <= one["x"]
        or one["y"] + one["height"] <= other["y"]
        or other["y"] + other["height"] <= one["y"]
    )
    return not apart


def test_nodes_do_not_overlap_and_edges_go_to_the_right() -> None:
    graphs = [graph(seed) for seed in range(60)]
    found = lay_out(graphs)
    for asked, told in zip(graphs, found, strict=True):
        boxes = told["nodes"]
        assert set(boxes) == {node["id"] for node in asked["nodes"]}
        named = list(boxes.values())
        assert not any(overlaps(one, other) for at, one in enumerate(named) for other in named[:at])
        assert all(box["x"] >= 0 and box["y"] >= 0 for box in named)
        assert all(box["y"] + box["height"] <= told["height"] + 1 for box in named)
        assert {(one["from"], one["to"]) for one in told["edges"]} == {(e["from"], e["to"]) for e in asked["edges"]}
        for edge in told["edges"]:
            (x0, _), (x1, _) = edge["points"][0], edge["points"][-1]
            assert x0 == boxes[edge["from"]]["x"] + boxes[edge["from"]]["width"]
            assert x1 == boxes[edge["to"]]["x"]
            assert x0 < x1
            assert "NaN" not in edge["path"]


def test_the_order_in_which_nodes_are_listed_makes_no_difference() -> None:
    graphs = [graph(seed) for seed in range(20)]
    turned = [{"nodes": one["nodes"][::-1], "edges": one["edges"][::-1]} for one in graphs]
    for one, other in zip(lay_out(graphs), lay_out(turned), strict=True):
        assert one["nodes"] == other["nodes"]


def test_cycles_and_unknown_nodes_do_not_hang_the_layout() -> None:
    node = {"width": 10, "height": 10}
    cycle = {
        "nodes": [{"id": "a", **node}, {"id": "b", **node}],
        "edges": [
            {"from": "a", "to": "b"},
            {"from": "b", "to": "a"},
            {"from": "a", "to": "a"},
            {"from": "a", "to": "x"},
        ],
    }
    [empty, told] = lay_out([{"nodes": [], "edges": []}, cycle])
    assert (empty["width"], empty["nodes"]) == (0, {})
    assert set(told["nodes"]) == {"a", "b"}
