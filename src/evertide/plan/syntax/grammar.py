"""`Grammar`: the grammar of Spark SQL, from the jar of the installed Spark.

ANTLR generates Spark's lexer and parser. Each of the two classes has its grammar in a constant text, the *serialized
ATN*: an automaton for each rule, whose edges consume a token, call another rule, or do nothing. `read_network` decodes
version 4 of this format. The classes also have the numbers of tokens and rules as constants.

A Spark without this jar, or with another format, has no grammar here (`find_grammar` returns None).
"""

from __future__ import annotations

import logging
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path

logger = logging.getLogger(__name__)

_CLASSES = "org/apache/spark/sql/catalyst/parser/SqlBase"
_VERSION = 4
_BRANCHES = (3, 4, 5, 12)
"""Types of states that name another state: those where a block or a loop begins, and where a loop ends."""
_RULE_STOP = 7
_RULE_PREFIX = "RULE_"
_START = "RULE_compoundOrSingleStatement"
_EOF = -1
_TEXT_MAX = 64
"""Characters of the longest keyword, and more."""


class EdgeKind(IntEnum):
    EPSILON = 1
    RANGE = 2
    RULE = 3
    PREDICATE = 4
    ATOM = 5
    ACTION = 6
    SET = 7
    NOT_SET = 8
    WILDCARD = 9
    PRECEDENCE = 10


@dataclass(frozen=True, slots=True)
class Network:
    """The states and edges of a grammar. Decoded edges are of one of three kinds."""

    steps: list[list[int]]
    """By state: the states that are reached without a token."""
    calls: list[list[tuple[int, int]]]
    """By state: the first states of rules that are called, and the states that follow the calls."""
    tokens: list[list[tuple[frozenset[int], int]]]
    """By state: the tokens that are consumed, and the states that follow. -1 is the end of the text."""
    is_end: Sequence[bool]
    """By state: whether it ends its rule."""
    starts: Sequence[int]
    """By rule: its first state."""
    kinds: Sequence[int]
    """By rule of a lexer: the number of its tokens."""


@dataclass(frozen=True, slots=True)
class Grammar:
    parser: Network
    start: int
    """The first state of a statement."""
    names: Mapping[str, int]
    """The numbers of tokens by name."""
    literals: Mapping[str, int]
    """The numbers of tokens by text in upper case, for keywords and operators."""


@cache
def find_grammar() -> Grammar | None:
    """None if the installed Spark has no grammar that this module can read."""
    try:
        with zipfile.ZipFile(_find_jar()) as jar:
            parser, lexer = (_read_constants(jar.read(f"{_CLASSES}{name}.class")) for name in ("Parser", "Lexer"))
        names = {name: number for name, number in lexer.items() if isinstance(number, int)}
        network = _read_network(parser)
        start = network.starts[int(parser[_START])]
        return Grammar(network, start, names, _list_literals(_read_network(lexer)))
    except (OSError, ValueError, LookupError, StopIteration, struct.error, zipfile.BadZipFile) as error:
        logger.info("the grammar of Spark cannot be read, so Spark alone checks the syntax: %r", error)
        return None


def _find_jar() -> Path:
    home = os.environ.get("SPARK_HOME")
    spec = find_spec("pyspark")
    places = [Path(home)] if home else [] if spec is None or spec.origin is None else [Path(spec.origin).parent]
    found = [jar for place in places for jar in sorted(place.glob("jars/spark-sql-api_*.jar"))]
    if not found:
        raise FileNotFoundError("spark-sql-api")
    return found[0]


def _read_constants(data: bytes) -> dict[str, int | str]:
    """The constant integers and texts of a Java class."""
    (count,) = struct.unpack_from(">H", data, 8)
    pool: list[bytes | int | None] = [None] * count
    """Texts as bytes; integers; for a string, the index of its text."""
    at, index = 10, 1
    while index < count:
        tag = data[at]
        match tag:
            case 1:
                (size,) = struct.unpack_from(">H", data, at + 1)
                pool[index] = data[at + 3 : at + 3 + size]
                at += 3 + size
            case 3:
                (pool[index],) = struct.unpack_from(">i", data, at + 1)
                at += 5
            case 7 | 8 | 16 | 19 | 20:
                (pool[index],) = struct.unpack_from(">H", data, at + 1)
                at += 3
            case 4 | 9 | 10 | 11 | 12 | 17 | 18:
                at += 5
            case 5 | 6:  # takes two entries
                at, index = at + 9, index + 1
            case 15:
                at += 4
            case _:
                raise ValueError(f"entry {tag} in the pool of constants")
        index += 1
    (interfaces,) = struct.unpack_from(">H", data, at + 6)
    return dict(_read_fields(data, at + 8 + 2 * interfaces, pool))


def _read_fields(data: bytes, at: int, pool: Sequence[bytes | int | None]) -> Iterator[tuple[str, int | str]]:
    (fields,) = struct.unpack_from(">H", data, at)
    at += 2
    for _ in range(fields):
        _, name, kind, attributes = struct.unpack_from(">HHHH", data, at)
        at += 8
        for _ in range(attributes):
            attribute, size = struct.unpack_from(">HI", data, at)
            if pool[attribute] == b"ConstantValue":
                (constant,) = struct.unpack_from(">H", data, at + 6)
                yield _decode(pool[name]), _read_constant(pool, constant, is_text=pool[kind] != b"I")
            at += 6 + size


def _read_constant(pool: Sequence[bytes | int | None], index: int, *, is_text: bool) -> int | str:
    found = pool[index]
    if not isinstance(found, int):
        raise ValueError("a constant of an unexpected type")  # noqa: TRY004 - the class file is what is wrong
    return _decode(pool[found]) if is_text else found


def _decode(text: bytes | int | None) -> str:
    """A text of a class file: UTF-8, in which a zero has two bytes, and so has each half of a surrogate pair."""
    if not isinstance(text, bytes):
        raise ValueError("a text is missing")  # noqa: TRY004 - as above
    return text.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")


def _read_network(constants: Mapping[str, int | str]) -> Network:
    segments = [str(constants[name]) for name in sorted(constants) if name.startswith("_serializedATN")]
    numbers = _decode_numbers("".join(segments))
    if next(numbers) != _VERSION:
        raise ValueError("another version of serialized ATNs")
    is_lexer = next(numbers) == 0
    every = frozenset(range(1, next(numbers) + 1))
    is_end = list(_read_states(numbers))
    _skip_list(numbers)  # states of loops that take as little as possible
    _skip_list(numbers)  # rules with precedences
    rules = [(next(numbers), next(numbers) if is_lexer else 0) for _ in range(next(numbers))]
    _skip_list(numbers)  # modes
    sets = [_read_set(numbers) for _ in range(next(numbers))]
    starts, kinds = [start for start, _ in rules], [kind for _, kind in rules]
    found = Network([[] for _ in is_end], [[] for _ in is_end], [[] for _ in is_end], is_end, starts, kinds)
    for _ in range(next(numbers)):
        source, target, kind, one, two, three = (next(numbers) for _ in range(6))
        match EdgeKind(kind):
            case EdgeKind.RULE:
                found.calls[source].append((one, target))
            case EdgeKind.ATOM:
                found.tokens[source].append((frozenset([_EOF if three else one]), target))
            case EdgeKind.RANGE:
                found.tokens[source].append((frozenset(range(one, two + 1)), target))
            case EdgeKind.SET:
                found.tokens[source].append((sets[one], target))
            case EdgeKind.NOT_SET:
                found.tokens[source].append((every - sets[one], target))
            case EdgeKind.WILDCARD:
                found.tokens[source].append((every, target))
            case _:  # conditions count as met
                found.steps[source].append(target)
    return found


def _skip_list(numbers: Iterator[int]) -> None:
    for _ in range(next(numbers)):
        next(numbers)


def _decode_numbers(text: str) -> Iterator[int]:
    """Numbers of 15 bits are one character, others two."""
    characters = map(ord, text)
    for first in characters:
        if not first & 0x8000:
            yield first
        else:
            second = next(characters)
            yield -1 if first == second == 0xFFFF else (first & 0x7FFF) << 16 | second


def _read_states(numbers: Iterator[int]) -> Iterator[bool]:
    for _ in range(next(numbers)):
        if kind := next(numbers):
            next(numbers)  # the rule
        if kind in _BRANCHES:
            next(numbers)
        yield kind == _RULE_STOP


def _read_set(numbers: Iterator[int]) -> frozenset[int]:
    ranges, has_end = next(numbers), next(numbers)
    found = {_EOF} if has_end else set()
    for _ in range(ranges):
        found.update(range(next(numbers), next(numbers) + 1))
    return frozenset(found)


def _list_literals(lexer: Network) -> dict[str, int]:
    """The texts of the tokens that have few texts; of two tokens with one text, the first counts."""
    found: dict[str, int] = {}
    for start, number in zip(lexer.starts, lexer.kinds, strict=True):
        for text in _list_texts(lexer, start) if number > 0 else ():
            found.setdefault(text, number)
    return found


def _list_texts(lexer: Network, start: int) -> list[str]:
    """The texts of a rule; none if it has many: if it calls a rule, repeats itself, or has a set of characters."""
    found, waiting = [], [(start, "")]
    while waiting:
        state, text = waiting.pop()
        if lexer.calls[state] or len(text) > _TEXT_MAX or any(len(each) > 1 for each, _ in lexer.tokens[state]):
            return []
        if lexer.is_end[state]:
            found.append(text)
        waiting += [(target, text) for target in lexer.steps[state]]
        waiting += [(target, text + chr(*each)) for each, target in lexer.tokens[state]]
    return found
