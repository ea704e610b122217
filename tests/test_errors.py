"""The error tree: every class keeps its facts, has a remedy, and can be pickled."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from evertide import errors
from evertide.errors import Conflict, Damaged, EvertideError, Unavailable

VALUES: dict[str, Any] = {
    "int": 41,
    "str": "s3://bucket/prefix/parts/x.parquet",
    "tuple[str, ...]": ("orders", "items"),
}


def tree(root: type[EvertideError] = EvertideError) -> list[type[EvertideError]]:
    return [root, *(below for child in root.__subclasses__() for below in tree(child))]


def example(kind: type[EvertideError]) -> EvertideError:
    """Every fact has a distinct value, so that none can be mistaken for another."""
    values: dict[str, Any] = {}
    for position, field in enumerate(fields(kind)):
        value = VALUES[str(field.type)]
        match value:
            case int():
                values[field.name] = value + position
            case str():
                values[field.name] = f"{value}-{field.name}"
            case _:
                values[field.name] = value
    return kind(**values)


EXAMPLES = [pytest.param(example(kind), id=kind.__name__) for kind in tree()]


@pytest.mark.parametrize("error", EXAMPLES)
def test_an_error_survives_pickling_and_copying(error: EvertideError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is type(error)
        assert twin.facts == error.facts
        assert str(twin) == str(error)
        assert twin.args == error.args


def test_an_error_survives_the_transfer_to_another_process() -> None:
    error = example(errors.UpperMismatch)
    code = "import pickle, sys; e = pickle.load(sys.stdin.buffer); sys.stdout.buffer.write(pickle.dumps(e.facts))"
    found = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(error), capture_output=True, check=True)
    assert pickle.loads(found.stdout) == error.facts


@pytest.mark.parametrize("error", EXAMPLES)
def test_the_text_is_the_message_with_the_facts_and_then_the_remedy(error: EvertideError) -> None:
    text = str(error)
    assert text == f"{error.message}. {error.remedy}"
    assert error.summary
    assert error.remedy.endswith(".")
    for name, value in error.facts.items():
        if name != "role":  # the reason names the role
            for one in value if isinstance(value, tuple) else [value]:
                assert str(one) in text
    assert "\n" not in text
    assert "Traceback" not in text
    assert type(error).__name__ in repr(error)


def test_a_message_that_ends_a_sentence_gets_no_second_full_stop() -> None:
    error = errors.InvalidInput(where="--set cache", why="there is no setting 'cache'. Did you mean 'cache_bytes'?")
    assert str(error).startswith("--set cache: there is no setting 'cache'. Did you mean 'cache_bytes'? Nothing")


@pytest.mark.parametrize("error", EXAMPLES)
def test_facts_are_attributes_and_all_are_required(error: EvertideError) -> None:
    assert error.facts == {name: getattr(error, name) for name in error.facts}
    assert error.args == tuple(error.facts.values())
    if error.facts:
        with pytest.raises(TypeError):
            type(error)()


def test_empty_facts_are_omitted() -> None:
    error = errors.BlobDamaged(path="p", why="w")
    assert str(error) == f"blob p is damaged: w. {error.remedy}"


def test_state_of_a_table_that_diverged_names_no_views() -> None:
    error = errors.StateDiverged(views=(), time=7, why="the state of table 'orders' has 2 rows")
    assert error.message == "the state is wrong, as transaction 7 shows: the state of table 'orders' has 2 rows"


def test_a_difference_without_a_record_is_one_sentence() -> None:
    error = errors.Diverged(where="view 'v'", time=7, expected="", found="other rows than Spark computes from scratch")
    assert error.message == "view 'v': transaction 7 gave other rows than Spark computes from scratch"


def test_errors_are_caught_by_kind() -> None:
    with pytest.raises(Unavailable) as caught:
        raise errors.StorageFull(path="p", why="no room")
    assert caught.value.why == "no room"
    caught.value.add_note("a note sticks")
    assert caught.value.__notes__ == ["a note sticks"]


def test_codes_are_unique_and_kinds_have_exit_codes() -> None:
    kinds = [
        kind for kind in tree() if kind.__module__.startswith(errors.__name__)
    ]  # elsewhere, a kind may only be narrower
    assert len({kind.error_code for kind in kinds}) == len(kinds)
    direct = EvertideError.__subclasses__()
    assert len({kind.exit_code for kind in direct}) == len(direct)
    assert all(1 < kind.exit_code < 64 for kind in direct)
    for kind in direct:
        assert {below.exit_code for below in tree(kind)} == {kind.exit_code}


def test_did_not_happen_and_may_have_happened_are_never_caught_together() -> None:
    """I14: the first is retried, the second is read back before."""
    assert not issubclass(errors.OutcomeUnknown, Unavailable | Conflict | Damaged)
    assert not issubclass(Unavailable, errors.OutcomeUnknown)


def test_all_lists_exactly_the_classes_of_the_tree() -> None:
    ours = [kind for kind in tree() if kind.__module__.startswith(errors.__name__)]
    assert sorted(kind.__name__ for kind in ours) == errors.__all__ == sorted(errors.__all__)


def test_the_docstrings_tree_has_every_class() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        assert name in errors.__doc__
