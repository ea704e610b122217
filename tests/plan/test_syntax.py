"""The syntax check that needs no JVM: it refuses what Spark's own parser refuses, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import ParseException

from evertide.errors import InvalidInput
from evertide.plan.catalyst.failure import silence_traces
from evertide.plan.query.functions import ALLOWED, CONSTRUCTS, REFUSED
from evertide.plan.query.query import remove_forbidden_functions
from evertide.plan.script.statement_splitter import split_script
from evertide.plan.syntax import check as syntax
from evertide.plan.syntax.check import check_syntax
from evertide.plan.syntax.grammar import find_grammar
from tests.kit.runtime import RandomStream
from tests.plan.query_places import PLACES
from tests.plan.syntax_corpus import RARE
from tests.server.translated_queries import DASHBOARD, UNSURE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 1500
PIECE = re.compile(r"\s+|\w+|'[^']*'|.", re.DOTALL)
SIGNS = "'\"`()[],.;:-+*/<>=!|&^~%?@#$\\{}0 1ae\n\té"
NESTED_MAX = 20
"""Spark's parser takes minutes for deeper ones."""


def list_corpus() -> list[str]:
    places = [place.format(relation="t") for place in PLACES]
    files = sorted((Path(__file__).parents[1] / "flow" / "views").glob("*.sql"))
    views = [one.text for file in files for one in split_script(file.read_text(), file.name)]
    queries = [text for text in (*DASHBOARD, *UNSURE) if "(" * NESTED_MAX not in text]
    return [*queries, *places, *views, *RARE]


def refuses(spark: SparkSession, text: str) -> bool:
    """Whether Spark's parser refuses the text."""
    try:
        spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except ParseException:
        return True
    return False


def checks(text: str) -> str:
    """What the check refuses; empty if it accepts the text."""
    try:
        check_syntax(text)
    except InvalidInput as error:
        return error.message
    return ""


def mutate(chance: RandomStream, text: str, words: list[str]) -> str:
    pieces = PIECE.findall(text)
    for _ in range(1 + chance.below(3)):
        at = chance.below(len(pieces))
        match chance.below(7):
            case 0:
                pieces[at] = ""
            case 1:
                pieces[at] = f"{words[chance.below(len(words))]} {pieces[at]}"
            case 2:
                pieces[at] = words[chance.below(len(words))]
            case 3:  # a character is missing
                cut = chance.below(len(pieces[at]) or 1)
                pieces[at] = pieces[at][:cut] + pieces[at][cut + 1 :]
            case 4:
                pieces = pieces[: at + 1]
            case 5:
                pieces[at] += SIGNS[chance.below(len(SIGNS))]
            case _:
                other = chance.below(len(pieces))
                pieces[at], pieces[other] = pieces[other], pieces[at]
    return "".join(pieces)


def test_queries_of_spark_are_accepted(spark: SparkSession) -> None:
    for text in list_corpus():
        if not refuses(spark, text):
            assert not checks(text), text


def test_what_the_check_refuses_spark_refuses_too(spark: SparkSession) -> None:
    """Fails if the rules that follow a call are forgotten, or if a token is taken for another."""
    chance = RandomStream(7)
    corpus = list_corpus()
    words = sorted({word for text in corpus for word in PIECE.findall(text) if word.strip()})
    refused = missed = 0
    with silence_traces():
        for _ in range(ROUNDS):
            text = mutate(chance, corpus[chance.below(len(corpus))], words)
            found, is_refused = checks(text), refuses(spark, text)
            assert is_refused or not found, (text, found)
            refused, missed = refused + bool(found), missed + (is_refused and not found)
    assert refused > 5 * missed, "Spark's parser also refuses what conditions in its code exclude, but that is rare"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELEC id FROM orders", "query:1:1: syntax error at 'SELEC'; did you mean 'SELECT'?"),
        ("SELECT id FRM orders", "query:1:11: syntax error at 'FRM'; did you mean 'FROM'?"),
        ("SELECT id FROM orders\nWERE id = 1", "query:2:1: syntax error at 'WERE'; did you mean 'WHERE'?"),
        ("SELECT id FROM orders GROP BY id", "query:1:23: syntax error at 'GROP'; did you mean 'GROUP'?"),
        ("SELECT id FROM orders ORDER BY id DSC", "query:1:35: syntax error at 'DSC'; did you mean 'DESC'?"),
        ("SELECT a b c FROM orders", "query:1:12: syntax error at 'c'"),
        ("SELECT sum(id FROM orders", "query:1:15: syntax error at 'FROM'"),
        ("SELECT 1 +", "query:1:11: syntax error at end of input"),
        ("SELECT 'ann FROM orders", "query:1:8: the quote ' is not closed"),
        ("SELECT 1 /* all", "query:1:10: the comment /* is not closed"),
        ("", "query:1:1: syntax error at end of input"),
    ],
)
def test_a_syntax_error_has_its_place_and_the_keyword_that_was_meant(text: str, message: str) -> None:
    assert checks(text) == message


def test_without_a_grammar_every_text_is_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Spark of another version, or a client of a remote Spark."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert find_grammar.__wrapped__() is None
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-sql-api_2.13-9.jar").write_text("not a jar")
    assert find_grammar.__wrapped__() is None
    monkeypatch.setattr(syntax, "find_grammar", lambda: None)
    assert not checks("SELEC 1")


def test_words_that_look_like_calls_and_are_no_functions_are_known(spark: SparkSession) -> None:
    """Fails if Spark gets a construct that reads like the call of a function, and a query with it is refused."""
    grammar = find_grammar()
    assert grammar is not None
    session = spark.newSession()
    remove_forbidden_functions(session)
    time = "timestamp'2020-01-01 00:00:00'"
    arguments = ("1", "'a'", "1 AS INT", f"DAY, 1, {time}", f"DAY, {time}, {time}", f"DAY FROM {time}", "'a' IN 'b'")
    with silence_traces():
        for word in sorted(text.lower() for text in grammar.literals if text.isidentifier()):
            if word in ALLOWED | REFUSED.keys() | CONSTRUCTS:
                continue
            for each in arguments:
                with pytest.raises(Exception):  # noqa: B017, PT011 - of any kind
                    session.sql(f"SELECT {word}({each})")
