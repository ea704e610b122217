"""The input that the comparison gives to peers in environments of their own, and the results that it reads from
them.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from bench.peers import nexmark, pathway_input
from bench.peers.agreement import check_agreement
from bench.peers.pathway_queries import PATHWAY
from bench.peers.pathway_tables import READ, TEXTS
from bench.peers.worker_output import keep_answer
from tests.kit.compare import Differs
from tests.kit.nexmark import SCHEMAS


def test_every_query_has_a_form_for_pathway() -> None:
    assert set(PATHWAY) == set(READ) == set(nexmark.QUERIES)


@pytest.mark.parametrize("query", READ)
def test_pathway_reads_the_tables_of_a_query_with_their_types(query: str) -> None:
    """A text that is read as a number would be an error there, and a number as a text another result."""
    assert set(READ[query]) == set(nexmark.inputs_of(query))
    for name, columns in READ[query].items():
        kinds = {"number" if field.name == "id" else field.name: field.type for field in SCHEMAS[name]}
        for column in columns.split():
            assert (column in TEXTS) == pa.types.is_string(kinds[column])


def test_the_files_for_pathway_hold_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pathway_input, "_ROWS", 300)
    nexmark.write_files(tmp_path, 1_000, 500)
    made = pathway_input.pathway_files(tmp_path)
    assert pathway_input.pathway_files(tmp_path) == made
    for name in nexmark.TABLES:
        expected = pq.read_table(tmp_path / name)
        files = sorted((made / name).glob("*.csv"))
        found = pa.concat_tables([pyarrow.csv.read_csv(file) for file in files])
        renamed = expected.rename_columns(found.column_names)
        as_ints = [field.type if pa.types.is_string(field.type) else pa.int64() for field in renamed.schema]
        kinds = pa.schema(list(zip(found.column_names, as_ints, strict=True)))
        assert found.cast(kinds).equals(renamed.cast(kinds))
        assert ("id" in expected.column_names) == ("number" in found.column_names)
    assert len(list((made / "bid").iterdir())) == 4


def test_answers_are_the_sum_of_the_changes(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.parquet", tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"at": pa.array([1, 5], pa.timestamp("us", "UTC")), "n": [2, 2]}), ours)
    changes = [((1, 1), True), ((1, 1), False), ((1, 2), True), ((5, 2), True)]
    keep_answer(["starttime", "many"], changes, theirs)
    check_agreement(theirs, ours, "q")
    keep_answer(["starttime", "many"], changes[:-1], theirs)
    with pytest.raises(Differs, match="1 rows missing"):
        check_agreement(theirs, ours, "q")
