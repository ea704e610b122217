"""Every error as users see it: one line per place in the source that raises an error, with `{...}` for each value.

`EVERTIDE_GOLDEN=write` rewrites tests/golden/error-messages.txt, so that a reader can judge all messages in one go.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from evertide import errors
from evertide.errors import EvertideError

__all__ = ["GOLDEN", "error_messages"]

GOLDEN = Path(__file__).parents[1] / "golden" / "error-messages.txt"
SOURCE = Path(errors.__file__).parents[1]
_KINDS: dict[str, type[EvertideError]] = {name: getattr(errors, name) for name in errors.__all__}


def error_messages() -> str:
    """The messages by module, in the order of the source."""
    blocks = []
    for path in sorted(SOURCE.rglob("*.py")):
        lines = list(_messages(ast.parse(path.read_text())))
        if lines and path.parent.name != "errors":
            blocks.append("\n".join([f"== {path.relative_to(SOURCE)}", *lines]))
    return "\n\n".join(blocks) + "\n"


def _messages(tree: ast.Module) -> Iterator[str]:
    scopes = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))]
    for scope in scopes:
        texts: dict[str, list[ast.expr]] = {}
        inside = list(_nodes(scope))
        for node in inside:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_text(node.value):
                texts.setdefault(node.targets[0].id, []).append(node.value)
        for node in inside:
            if isinstance(node, ast.Call):
                yield from _of_call(node, texts)


def _nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of functions inside it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _nodes(node)


def _of_call(call: ast.Call, texts: dict[str, list[ast.expr]]) -> Iterator[str]:
    """A line for each text that `why` can have, if the call makes an error."""
    kind = _KINDS.get(call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", ""))
    if kind is None:
        return
    names = [field.name for field in fields(kind)]
    given = dict(zip(names, call.args, strict=False)) | {each.arg: each.value for each in call.keywords if each.arg}
    facts = {name: _text(given[name], texts) if name in given else [""] for name in names}
    for why in facts.get("why", [""]):
        values: dict[str, Any] = {name: why if name == "why" else found[0] for name, found in facts.items()}
        if "views" in values:
            values["views"] = (values["views"],)
        yield f"[{kind.error_code}] {kind(**values)}"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.IfExp) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _text(node: ast.expr, texts: dict[str, list[ast.expr]]) -> list[str]:
    """Return the texts that the expression can have: several for a conditional, or a variable with several
    assignments."""
    match node:
        case ast.Constant(value=str() as text):
            return [text]
        case ast.JoinedStr():
            return ["".join(_piece(piece) for piece in node.values)]
        case ast.IfExp():
            return _text(node.body, texts) + _text(node.orelse, texts)
        case ast.BinOp(op=ast.Add()):
            return [f"{_text(node.left, texts)[0]}{_text(node.right, texts)[0]}"]
        case ast.Name() if node.id in texts:
            return [text for value in texts[node.id] for text in _text(value, {})]
        case _:
            return [f"{{{ast.unparse(node)}}}"]


def _piece(piece: ast.expr) -> str:
    if isinstance(piece, ast.Constant):
        return str(piece.value)
    assert isinstance(piece, ast.FormattedValue)
    return f"{{{ast.unparse(piece.value)}}}"
