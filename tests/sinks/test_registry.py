"""The available sinks, their options in a script, and the sources of secrets."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.errors import InvalidInput, SetupIncomplete
from evertide.plan.program.program import Program
from evertide.plan.program.properties import SinkProperties, check_properties, read_sinks
from evertide.secrets import Secrets
from evertide.sinks.contract import SinkDeclaration
from evertide.sinks.registry import CONNECTORS, prepare_sinks
from tests.sinks.kit import SCHEMA, declare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA = {"evertide.sinks": "lake", "evertide.sink.lake.connector": "delta", "evertide.sink.lake.path": "x"}
VIEW = "CREATE MATERIALIZED VIEW v TBLPROPERTIES ({}) AS SELECT 1 AS a"


def test_sinks_are_properties_of_a_collection() -> None:
    given = {
        **DELTA,
        "evertide.sinks": "lake, hook",
        "evertide.sink.hook.connector": "WebHook",
        "evertide.sink.hook.header.Authorization": "x",
        "owner": "ann",
    }
    assert read_sinks(given, "shop.sql:3, view 'v'") == (
        SinkProperties("lake", "delta", {"path": "x"}, "shop.sql:3"),
        SinkProperties("hook", "webhook", {"header.authorization": "x"}, "shop.sql:3"),
    )
    assert read_sinks({"owner": "ann"}, "v") == ()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"evertide.sinks": "a b"}, "must list names"),
        ({"evertide.sinks": ""}, "must list names"),
        ({**DELTA, "evertide.sinks": "lake, lake"}, "each once"),
        ({**DELTA, "evertide.sinks": "pond"}, "does not list; the list has 'pond'"),
        ({"evertide.sink.lake.path": "x"}, "does not list; the list has none"),
        ({"evertide.sinks": "lake"}, "sink 'lake' has no connector; set 'evertide.sink.lake.connector'"),
        ({"evertide.sink": "lake"}, r"property 'evertide.sink' does not exist; did you mean 'evertide.sinks'"),
        (
            {**DELTA, "evertide.sink.lake": "x"},
            "'evertide.sink.lake' is for a sink that 'evertide.sinks' does not list",
        ),
    ],
)
def test_invalid_options_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        check_properties(given, is_view=True, where="v")


def test_a_sink_of_a_table_that_is_not_kept_is_refused() -> None:
    check_properties(DELTA, is_view=False, where="t")
    with pytest.raises(InvalidInput, match=r"cannot have sinks; set 'evertide.sinks' on a view over it"):
        check_properties({**DELTA, "evertide.keep": "none"}, is_view=False, where="t")


def test_sinks_of_a_script_have_their_position_in_it(spark: SparkSession) -> None:
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in DELTA.items())
    script = f"""CREATE TABLE t (a INT) TBLPROPERTIES ({listed.replace("lake", "pond")});
    {VIEW.format(listed)}"""
    program = Program(spark, script, "shop.sql")
    assert program.sinks["t"][0].where == "shop.sql:1:1"
    assert program.sinks["v"] == (SinkProperties("lake", "delta", {"path": "x"}, "shop.sql:2:5"),)
    with pytest.raises(InvalidInput, match=r"shop.sql:1.*view 'v'.*'evertide.sink.pond.*does not list"):
        Program(spark, VIEW.format(listed.replace("sink.lake", "sink.pond")), "shop.sql")


@pytest.mark.parametrize("name", CONNECTORS)
def test_each_connector_is_found_and_names_the_option_that_it_lacks(tmp_path: Path, name: str) -> None:
    declaration = replace(declare(tmp_path, name), options={})
    with pytest.raises(InvalidInput, match=r"the option '\w+' is missing"):
        prepare_sinks([declaration])


def test_connector_key_and_name_are_checked(tmp_path: Path) -> None:
    files = declare(tmp_path, "files")
    with pytest.raises(
        InvalidInput, match=r"shop.sql, line 3.*there is no connector 'ftp' for a sink; the connectors are .*files"
    ):
        prepare_sinks([replace(files, connector="ftp")])
    with pytest.raises(InvalidInput, match="'orders' already has a sink of that name"):
        prepare_sinks([files, replace(files, collection="others")])
    with pytest.raises(InvalidInput, match=r"'key' is 'id, nme': expected columns of 'id', 'name'"):
        prepare_sinks([replace(files, options={"path": "x", "key": "id, nme"})])
    with pytest.raises(InvalidInput, match="connector 'files' has no option 'paht'; did you mean 'path'"):
        prepare_sinks([replace(files, options={"path": "x", "paht": "y"})])
    with pytest.raises(InvalidInput, match="'path' is missing"):
        prepare_sinks([replace(files, options={"key": "ID, name"})])


def test_a_package_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "evertide.sinks.delta", raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(SetupIncomplete, match=r"the package 'deltalake' is missing: pip install 'evertide\[delta\]'"):
        prepare_sinks([declare(tmp_path, "delta")])


def test_the_key_is_spelled_as_the_collection_spells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[SinkDeclaration] = []
    monkeypatch.setattr("evertide.sinks.files.prepare_files", seen.append)
    prepare_sinks([declare(tmp_path, "files", key=("id",), options={"path": "x", "Key": "NAME, Day"})])
    prepare_sinks([declare(tmp_path, "files", key=("id",), options={"path": "x"})])
    assert [each.key for each in seen] == [("name", "day"), ("id",)]
    assert seen[0].options == {"path": "x"}
    assert set(seen[0].key) <= set(SCHEMA.names)


def test_secrets_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss w/ord\n")
    secrets = Secrets(tmp_path, {"TOKEN": "abc123"})
    assert secrets.reveal("a ${ENV:TOKEN} b ${FILE:password}", "x") == "a abc123 b p@ss w/ord"
    assert secrets.reveal("$ENV {plain}", "x") == "$ENV {plain}"
    told = "abc123, p@ss w/ord, p%40ss%20w%2Ford, p%40ss+w%2Ford"
    assert secrets.hide(told) == "***, ***, ***, ***"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("${ENV:GONE}", "the environment has no variable 'GONE'"),
        ("${FILE:gone}", "the file 'gone' cannot be read"),
        ("${ENV:EMPTY}", "EMPTY} is empty"),
        ("${VAULT:x}", "unknown kind of secret"),
    ],
)
def test_a_missing_secret_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"here.*{why}"):
        Secrets(tmp_path, {"EMPTY": ""}).reveal(text, "here")
