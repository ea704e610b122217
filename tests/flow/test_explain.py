"""What `explain` shows of a circuit: how, at what cost, with which state; as text, JSON and diagrams."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from evertide.flow import Circuit
from evertide.flow.explanation.diagrams import render_dot, render_mermaid
from evertide.flow.explanation.explain import explain
from evertide.flow.explanation.explanation import Cost, Explanation, Operator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = """
CREATE TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT);
CREATE TABLE auction (id BIGINT NOT NULL, seller BIGINT, title STRING, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW sold AS
    SELECT a.id, a.title, b.price FROM auction a LEFT JOIN bid b ON b.auction = a.id AND b.price > a.seller;
CREATE MATERIALIZED VIEW best AS SELECT title, max(price) AS price, sum(price) AS total FROM sold GROUP BY title;
CREATE MATERIALIZED VIEW sellers AS SELECT DISTINCT seller FROM auction;
CREATE MATERIALIZED VIEW pairs AS SELECT x.price, y.id FROM bid x JOIN auction y ON x.price < y.seller;
CREATE MATERIALIZED VIEW first AS SELECT id, title FROM auction WHERE title <> 'a "b"' ORDER BY title, id LIMIT 2;
CREATE MATERIALIZED VIEW ranked AS
    SELECT auction, price, rank() OVER (PARTITION BY auction ORDER BY price DESC) AS place FROM bid;
CREATE MATERIALIZED VIEW numbered AS SELECT id, row_number() OVER (ORDER BY id) AS place FROM auction;
CREATE MATERIALIZED VIEW prices AS SELECT auction, collect_list(price) AS prices FROM bid GROUP BY auction;
CREATE MATERIALIZED VIEW all_prices AS SELECT collect_list(price) AS prices FROM bid;
CREATE MATERIALIZED VIEW named AS
    SELECT b.price, v.name FROM bid b JOIN (VALUES (1, 'one')) v(k, name) ON b.bidder = v.k;
"""


@pytest.fixture(scope="module")
def circuit(spark: SparkSession) -> Circuit:
    made = Circuit(spark, SCRIPT)
    schema = pa.schema([*made.tables["bid"], pa.field("__diff", pa.int64(), nullable=False)])
    rows = [{"auction": 1, "bidder": bidder, "price": 10 * bidder, "__diff": 1} for bidder in range(4)]
    made.step({"bid": pa.Table.from_pylist(rows, schema)})
    return made


@pytest.fixture(scope="module")
def explanation(circuit: Circuit) -> Explanation:
    return explain(circuit)


def operator(explanation: Explanation, view: str, kind: str) -> Operator:
    [found] = [each for each in explanation.views if each.name == view]
    return next(each for each in found.operators if each.kind == kind)


@pytest.mark.parametrize(
    ("view", "what", "how", "cost"),
    [
        (
            "sold",
            "Join LeftOuter on (auction = id) AND (price > seller)",
            "difference rule by (id) = (auction)",
            "touched groups",
        ),
        ("sold", "Scan auction", "a table", "delta"),
        (
            "best",
            "Aggregate max(price), sum(price) by title",
            "sums and extremes per group (title)",
            "touched groups",
        ),
        ("best", "Scan sold", "a view of its own", "delta"),
        ("best", "Map title, price", "linear", "delta"),
        ("sellers", "Aggregate distinct by seller", "counts per group (seller)", "touched groups"),
        ("pairs", "Join Inner on price < seller", "difference rule, scans the other side", "scan"),
        (
            "first",
            "TopK 2 order by title, id",
            "first rows and a reserve kept, a scan when it is used up",
            "delta",
        ),
        ("first", "Filter (title IS NOT NULL) AND (NOT (title = 'a \"b\"'))", "linear", "delta"),
        (
            "ranked",
            "Window RANK() partition by auction order by price DESC",
            "computed again per partition (auction)",
            "touched groups",
        ),
        ("numbered", "Window row_number() order by id", "computed again as a whole", "whole input"),
        (
            "prices",
            "Aggregate collect_list(price) by auction",
            "computed again per group (auction)",
            "touched groups",
        ),
        ("all_prices", "Aggregate collect_list(price)", "computed again as a whole", "whole input"),
        ("named", "Join Inner on bidder = CAST(k AS BIGINT)", "linear, as one side never changes", "delta"),
        ("named", "Constant 1 row", "never changes", "none"),
    ],
)
def test_explain_shows_how_each_operator_is_maintained(
    explanation: Explanation, view: str, what: str, how: str, cost: str
) -> None:
    [operators] = [each.operators for each in explanation.views if each.name == view]
    said = {each.what: (each.how, each.cost) for each in operators}
    assert what in said, list(said)
    assert said[what] == (how, cost)


def test_operators_that_are_recomputed_as_a_whole_are_listed(explanation: Explanation) -> None:
    operators = [(view.name, each) for view in explanation.views for each in view.operators]
    assert [(view, each.kind) for view, each in operators if each.cost is Cost.WHOLE_INPUT] == [
        ("numbered", "Window"),
        ("all_prices", "Aggregate"),
    ]


def test_state_is_shown_with_its_key_and_size(circuit: Circuit, explanation: Explanation) -> None:
    by_name = {each.name: each for each in explanation.arrangements}
    told = [by_name[name] for name in operator(explanation, "sold", "Join").state]
    assert sorted((each.of, each.key) for each in told) == [("auction", ("id",)), ("bid", ("auction",))]
    [bids] = [each for each in told if each.of == "bid"]
    assert bids.rows == 4
    assert bids.bytes > 0
    groups = [by_name[name] for name in operator(explanation, "best", "Aggregate").state]
    assert {each.key for each in groups} == {("title",)}
    assert len(groups) == 2, "sums, and the candidates for the maximum"
    assert operator(explanation, "named", "Join").state == ()
    kept = {name for view in explanation.views for each in view.operators for name in each.state}
    assert kept == set(by_name)


def test_text_is_a_tree_in_columns(explanation: Explanation) -> None:
    text = explanation.text()
    lines = text.splitlines()
    assert lines[0] == "sold"
    sold = lines[1 : lines.index("best")]
    assert len({line.index(" | ") for line in sold}) == 1, "columns are aligned"
    assert re.search(r"^ +Join LeftOuter .* \| touched groups +\| .*bid by \(auction\)", text, re.MULTILINE)
    assert re.search(r"^  bid\..* \| bid by \(auction\) +\| 4 rows +\| [\d,]+ bytes$", text, re.MULTILINE)
    assert "#" not in text
    plain = explanation.text(has_state=False)
    assert "bytes" not in plain
    assert "rows | " not in plain


def test_json_has_stable_keys(explanation: Explanation) -> None:
    read = json.loads(explanation.json())
    assert read == explanation.to_dict()
    assert list(read) == ["views", "arrangements"]
    assert {tuple(view) for view in read["views"]} == {("name", "operators", "ways")}
    ways = read["views"][0]["ways"]
    assert list(ways) == ["small", "large", "wide", "recompute"]
    assert all(isinstance(count, int) for count in ways.values())
    keys = ("number", "kind", "what", "how", "cost", "stage", "state", "inputs")
    assert {tuple(each) for view in read["views"] for each in view["operators"]} == {keys}
    assert {tuple(each) for each in read["arrangements"]} == {("name", "of", "key", "rows", "bytes")}
    numbers = [each["number"] for each in read["views"][0]["operators"]]
    assert numbers == list(range(1, len(numbers) + 1))


def test_diagrams_connect_tables_to_views(explanation: Explanation) -> None:
    picture = render_mermaid(explanation)
    assert picture.startswith("flowchart BT\n")
    assert '  t_bid[("bid")]' in picture
    assert re.search(r"v_sold --> o_best_\d+", picture)
    assert re.search(r"o_best_1 --> v_best", picture)
    known = set(re.findall(r"^ +(\w+)[\[(]", picture, re.MULTILINE))
    ends = {end for edge in re.findall(r"^  (\w+) --> (\w+)$", picture, re.MULTILINE) for end in edge}
    assert ends <= known
    graph = render_dot(explanation)
    assert graph.startswith("digraph evertide {")
    assert graph.count("{") == graph.count("}")
    assert graph.count('"') % 2 == 0, "quotes of the query do not end a label"
    assert graph.count(" -> ") == picture.count(" --> ")
