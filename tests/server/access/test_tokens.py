"""Tokens from files and the environment: accepted and refused ones, and errors that do not contain them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from evertide.errors import InvalidInput
from evertide.pgexpr.restriction import Restriction
from evertide.server.access import Access, Role, Token

TEXT = "a-secret-that-nobody-says"
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()
TOML = f"""
[[token]]
name = "dashboard"
role = "read"
token_sha256 = "{DIGEST}"
where = {{orders = "region = 'eu'", Totals = "true"}}

[[token]]
name = "till"
role = "write"
token = "another-secret-of-a-till"
ends = 2027-01-01T00:00:00Z
"""


def write_tokens(path: Path, content: Any, mode: int = 0o600) -> Path:
    text = content if isinstance(content, str) else "\n".join(json.dumps(one) for one in content)
    path.write_text(text)
    path.chmod(mode)
    return path


def load_tokens(path: Path | None, secret: str = "", **environment: str) -> Access:
    return Access.load(path, environment, secret)


def test_toml_and_json_lines_have_the_same_meaning(tmp_path: Path) -> None:
    lines = [
        {
            "name": "dashboard",
            "role": "read",
            "token_sha256": DIGEST,
            "where": {"orders": "region = 'eu'", "totals": "true"},
        },
        {"name": "till", "role": "WRITE", "token": "another-secret-of-a-till", "ends": "2027-01-01T00:00:00Z"},
    ]
    found = load_tokens(write_tokens(tmp_path / "t.toml", TOML))
    assert found == load_tokens(write_tokens(tmp_path / "t.jsonl", lines))
    dashboard, till = found.tokens
    assert (dashboard.name, dashboard.role, dashboard.ends_at_s) == ("dashboard", Role.READ, None)
    assert dashboard.where == {"orders": "region = 'eu'", "totals": "true"}
    assert sorted(dashboard.restriction.collections or ()) == ["orders", "totals"]
    assert (till.role, till.ends_at_s, till.restriction.is_unrestricted) == (Role.WRITE, 1_798_761_600, True)
    assert found.find(TEXT) == dashboard
    assert found.find("another-secret-of-a-till") == till
    assert found.find(DIGEST) is None
    assert found.find("") is None
    assert TEXT not in repr(found)
    assert DIGEST not in repr(found)


def test_a_token_may_be_in_another_file_or_variable(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{TEXT}\n")
    lines = [
        {"name": "a", "role": "admin", "token": "${FILE:secret}"},
        {"name": "b", "role": "read", "token": "${ENV:THERE}"},
    ]
    found = load_tokens(write_tokens(tmp_path / "t", lines), THERE="what-the-environment-has")
    assert [found.find(text) for text in (TEXT, "what-the-environment-has")] == [*found.tokens]


def test_the_example_in_the_docs_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text("utf-8")
    example = page.partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "till").write_text(TEXT)
    till, dashboard = load_tokens(write_tokens(tmp_path / "t", example.replace("/run/secrets/till", "till"))).tokens
    assert (till.role, dashboard.where) == (Role.WRITE, {"orders": "region = 'eu'"})


def test_the_environment_has_tokens_of_each_role() -> None:
    texts = {f"EVERTIDE_TOKEN{end}": f"{TEXT}{end}" for end in ("", "_READ", "_WRITE", "_ADMIN")}
    found = load_tokens(None, f"{TEXT}-shapes", **texts)
    roles = {name: token.role for name, text in texts.items() if (token := found.find(text)) is not None}
    assert [*roles.values()] == [Role.ADMIN, Role.READ, Role.WRITE, Role.ADMIN]
    shapes = found.find(f"{TEXT}-shapes")
    assert shapes is not None
    assert shapes.role is Role.READ
    assert len(load_tokens(None, TEXT, EVERTIDE_TOKEN=TEXT).tokens) == 1
    assert load_tokens(None).is_open
    assert not found.is_open


def token(**given: Any) -> list[dict[str, Any]]:
    return [{"name": "a", "role": "read", "token": TEXT, **given}]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "the file has no tokens"),
        ("# nothing yet\n", "the file has no tokens"),
        ("{}", "the field 'name' is missing"),
        ("[token", "neither TOML nor JSON lines"),
        (f"token = '{TEXT}'", "expected a [[token]]"),
        (f"x = 1\n{TOML}", "expected a [[token]]"),
        (f'{{"name": "a"}}\n{TEXT}', "expected a JSON object"),
        (token(role="root"), "the role 'root' does not exist"),
        (token(token="short"), "at least 16 characters"),
        (token(token=f" {TEXT}"), "no spaces around it"),
        (token(token_sha256=DIGEST), "exactly one of the fields token and token_sha256"),
        ([{"name": "a", "role": "read"}], "exactly one of the fields token and token_sha256"),
        ([{"name": "a", "role": "read", "token_sha256": "12ab"}], "64 hexadecimal digits"),
        ([{"name": "a", "role": "read", "token_sha256": TEXT}], "64 hexadecimal digits"),
        (token(token="${ENV:NOT_THERE}"), "no variable 'NOT_THERE'"),
        (token(wher={"orders": "true"}), "the field 'wher' does not exist"),
        (token(where={}), "where is empty"),
        (token(where="true"), "where must map collections to where clauses"),
        (token(where={"orders": ""}), "where must map collections to where clauses"),
        (token(where={"orders": "region ="}), "where of 'orders'"),
        (token(where={"orders": "true"}, collections=["totals"]), "add the collection to 'collections'"),
        (token(collections=[]), "collections must be a list of names"),
        (token(collections="orders"), "collections must be a list of names"),
        (token(where={"orders": "true"}, role="write"), "must have the role read"),
        (token(collections=["orders"], role="admin"), "must have the role read"),
        (token(ends="soon"), "ends must be a date and time"),
        (token(ends=17), "ends must be a date and time"),
        (token() + token(name="b"), "another token has the same text"),
        (token() + token(token=f"{TEXT}-2"), "another token has the same name"),
    ],
)
def test_errors_name_the_mistake_and_not_the_secret(tmp_path: Path, content: Any, why: str) -> None:
    """A file that restricts a token, with a mistake, must not admit every client."""
    with pytest.raises(InvalidInput) as caught:
        load_tokens(write_tokens(tmp_path / "t", content))
    assert why in str(caught.value)
    assert TEXT not in str(caught.value)


def test_a_line_that_has_a_field_twice_is_refused(tmp_path: Path) -> None:
    """Fails if the last one counts: a reader of the file may see another role than the token's."""
    twice = f'{{"name": "a", "role": "read", "token": "{TEXT}", "role": "admin"}}'
    with pytest.raises(InvalidInput, match=r"t:1: .*repeats the name 'role'"):
        load_tokens(write_tokens(tmp_path / "t", twice))


def test_permissions_of_the_tokens_file_are_checked(tmp_path: Path) -> None:
    """Fails if the mode is not checked."""
    digests = [{"name": "a", "role": "read", "token_sha256": DIGEST}]
    for mode in (0o644, 0o604):
        with pytest.raises(InvalidInput, match="other users may read the tokens"):
            load_tokens(write_tokens(tmp_path / "t", token(), mode))
        assert load_tokens(write_tokens(tmp_path / "d", digests, mode)).tokens
    for mode in (0o660, 0o602, 0o666):
        with pytest.raises(InvalidInput, match="other users may write the file"):
            load_tokens(write_tokens(tmp_path / "d", digests, mode))
    assert load_tokens(write_tokens(tmp_path / "t", token(), 0o440)).tokens
    with pytest.raises(InvalidInput, match="cannot read the file: No such file"):
        load_tokens(tmp_path / "none")


def test_a_variable_that_is_set_and_empty_is_refused() -> None:
    """Otherwise a variable that was set by mistake to an empty text would turn off the check of tokens."""
    for name in ("EVERTIDE_TOKEN", "EVERTIDE_TOKEN_READ", "EVERTIDE_TOKEN_WRITE", "EVERTIDE_TOKEN_ADMIN"):
        with pytest.raises(InvalidInput, match=f"{name}.*empty"):
            load_tokens(None, **{name: ""})
        with pytest.raises(InvalidInput, match=f"{name}.*at least 16"):
            load_tokens(None, **{name: "short"})


def test_a_token_has_a_name_and_each_role_includes_the_lower_ones() -> None:
    assert Role.READ < Role.WRITE < Role.ADMIN
    assert str(Role.WRITE) == "write"
    with pytest.raises(InvalidInput, match="the name is empty"):
        Token.of(" ", Role.READ, TEXT)
    with pytest.raises(InvalidInput, match=r"token 'x', where of 'orders'"):
        Token.of("x", Role.READ, TEXT, Restriction.to({"orders": "a b"}, None))


def test_a_changed_tokens_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is read at most once a second, and an unreadable file changes nothing. Fails if the tokens of the start stay
    valid: a leaked token could not be revoked without a restart."""
    path = write_tokens(tmp_path / "t.toml", TOML)
    access = load_tokens(path, EVERTIDE_TOKEN="what-the-environment-has")
    assert access.reload_if_changed(10.0) is access
    write_tokens(path, TOML.partition('[[token]]\nname = "till"')[0])
    assert access.reload_if_changed(10.5) is access
    fewer = access.reload_if_changed(11.0)
    assert [token.name for token in fewer.tokens] == ["dashboard", "EVERTIDE_TOKEN"]
    assert fewer.reload_if_changed(13.0) is fewer
    for number, (broken, mode) in enumerate([("[[token]", 0o600), ("", 0o600), (TOML, 0o666)]):
        caplog.clear()
        write_tokens(path, broken, mode)
        assert fewer.reload_if_changed(20.0 + number) is fewer
        assert "the previous tokens stay valid" in caplog.text
    path.unlink()
    assert fewer.reload_if_changed(1e9) is fewer
    write_tokens(path, TOML)
    assert [token.name for token in fewer.reload_if_changed(2e9).tokens] == ["dashboard", "till", "EVERTIDE_TOKEN"]
