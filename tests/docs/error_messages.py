"""Every error as users see it: the texts that each place in the source can raise, with `{...}` for each value.

A text that is built in steps is followed through the statements of its function: `why = f"{why}; ..."` continues what
`why` was, and each branch of an `if` counts. A text that a private function takes as an argument or returns is
followed through the calls in its module, one level deep. A line that several places of a module raise is listed once.

`EVERTIDE_GOLDEN=write` rewrites tests/golden/error-messages.txt, so that a reader can judge all messages in one go.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from evertide import errors
from evertide.errors import EvertideError

SOURCE = Path(errors.__file__).parents[1]
_KINDS: dict[str, type[EvertideError]] = {name: getattr(errors, name) for name in errors.__all__}

Texts = dict[str, list[str]]
"""By name, the texts that a variable can have. A variable that is missing has other values."""


def error_messages() -> str:
    """The messages by module, in the order of the source."""
    blocks = []
    for path in sorted(SOURCE.rglob("*.py")):
        lines = _Module(ast.parse(path.read_text())).list_messages()
        if lines and path.parent.name != "errors":
            blocks.append("\n".join([f"== {path.relative_to(SOURCE)}", *lines]))
    return "\n\n".join(blocks) + "\n"


class _Module:
    def __init__(self, tree: ast.Module) -> None:
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        names = [each.name for each in functions]
        self._body = tree.body
        self._functions = functions
        self._private = {each.name: each for each in functions if each.name[0] == "_" and names.count(each.name) == 1}
        self._arguments: dict[str, list[Texts]] = {}
        self._results: Texts = {}
        self._messages: list[str] = []

    def list_messages(self) -> list[str]:
        """Read all functions twice: the second time, the arguments and results of private functions are known."""
        constants: Texts = {}
        self._read(self._body, constants, [])
        results: Texts = {function.name: [] for function in self._functions}
        for function in self._functions:
            self._read(function.body, dict(constants), results[function.name])
        arguments, self._arguments = self._arguments, {}
        self._results = {name: _without_repeats(results[name]) for name in self._private}
        self._messages = []
        self._read(self._body, {}, [])
        for function in self._functions:
            for given in arguments.get(function.name, [{}]):
                self._read(function.body, constants | given, [])
        return _without_repeats(self._messages)

    def _read(self, block: Sequence[ast.stmt], texts: Texts, results: list[str]) -> bool:
        """Follow the statements; `texts` changes with them. False if the end of the block is never reached."""
        for statement in block:
            for child in ast.iter_child_nodes(statement):
                if isinstance(child, ast.expr | ast.withitem):
                    self._read_expression(child, texts)
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    texts[name] = (self._find_values if name == "why" else self._find_texts)(value, texts)
                case ast.AugAssign(target=ast.Name(id=name), value=value):
                    texts[name] = self._find_texts(ast.BinOp(ast.Name(name), ast.Add(), value), texts)
                case ast.Return(value=ast.expr() as value):
                    results += self._find_texts(value, texts)
            if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
                return False
            branches = _list_branches(statement)
            if branches and not self._read_branches(branches, texts, results):
                return False
        return True

    def _read_branches(self, branches: Sequence[Sequence[ast.stmt]], texts: Texts, results: list[str]) -> bool:
        """After the branches, a variable can have the texts that it has at the end of any of them."""
        ends = [after for branch in branches if self._read(branch, after := dict(texts), results)]
        names = [name for after in ends for name in after]
        texts.update({name: _without_repeats(text for after in ends for text in after.get(name, [])) for name in names})
        return bool(ends)

    def _read_expression(self, expression: ast.AST, texts: Texts) -> None:
        for node in ast.walk(expression):
            if isinstance(node, ast.NamedExpr):
                texts[node.target.id] = self._find_texts(node.value, texts)
        for node in ast.walk(expression):
            if isinstance(node, ast.Call):
                name = _get_name(node)
                if name in _KINDS:
                    self._add_messages(_KINDS[name], node, texts)
                elif name in self._private:
                    self._add_arguments(self._private[name], node, texts)

    def _add_messages(self, kind: type[EvertideError], call: ast.Call, texts: Texts) -> None:
        names = [field.name for field in fields(kind)]
        given = _match_arguments(names, call)
        for values in product(*(self._find_values(given[name], texts) if name in given else [""] for name in names)):
            facts = dict(zip(names, values, strict=True))
            if isinstance(facts.get("views"), str):
                facts["views"] = (facts["views"],)
            if facts.get("why") not in ("", "{None}"):
                self._messages.append(f"[{kind.error_code}] {kind(**facts)}")

    def _add_arguments(self, function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, texts: Texts) -> None:
        names = [
            each.arg for each in (*function.args.args, *function.args.kwonlyargs) if each.arg not in ("self", "cls")
        ]
        given = {name: self._find_texts(value, texts) for name, value in _match_arguments(names, call).items()}
        self._arguments.setdefault(function.name, []).append({name: found for name, found in given.items() if found})

    def _find_values(self, node: ast.expr, texts: Texts) -> list[Any]:
        """The texts that a fact can have, or its expression in braces."""
        if isinstance(node, ast.Tuple):
            return [tuple(self._find_values(each, texts)[0] for each in node.elts)]
        return self._find_texts(node, texts) or [f"{{{ast.unparse(node)}}}"]

    def _find_texts(self, node: ast.expr, texts: Texts) -> list[str]:  # noqa: PLR0911
        """The texts that an expression can have; none if it has other values, or values that cannot be followed."""
        match node:
            case ast.Constant(value=str() as text):
                return [text]
            case ast.Name(id=name):
                return texts.get(name, [])
            case ast.Call():
                return self._results.get(_get_name(node), [])
            case ast.NamedExpr(value=value):
                return self._find_texts(value, texts)
            case ast.JoinedStr(values=pieces):
                return ["".join(each) for each in product(*(self._find_pieces(piece, texts) for piece in pieces))]
            case ast.BinOp(left=left, op=ast.Add(), right=right) if self._find_texts(left, texts):
                return [
                    "".join(pair) for pair in product(self._find_texts(left, texts), self._find_values(right, texts))
                ]
            case ast.IfExp(body=first, orelse=second) | ast.BoolOp(op=ast.Or(), values=[first, second]):
                if self._find_texts(first, texts) or self._find_texts(second, texts):
                    return [text for each in (first, second) for text in self._find_values(each, texts)]
        return []

    def _find_pieces(self, piece: ast.expr, texts: Texts) -> list[str]:
        if not isinstance(piece, ast.FormattedValue):
            return self._find_texts(piece, texts)
        quote = "'" if piece.conversion == ord("r") else ""
        return [f"{quote}{text}{quote}" for text in self._find_values(piece.value, texts)]


def _list_branches(statement: ast.stmt) -> list[list[ast.stmt]]:
    match statement:
        case ast.If(body=body, orelse=orelse):
            return [body, orelse]
        case ast.Match(cases=cases):
            return [*(case.body for case in cases), []]
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
            return [[*body, *orelse, *final], *([*handler.body, *final] for handler in handlers)]
        case ast.For(body=body) | ast.While(body=body) | ast.AsyncFor(body=body):
            return [body, []]
        case ast.With(body=body) | ast.AsyncWith(body=body):
            return [body]
        case _:
            return []


def _match_arguments(names: Sequence[str], call: ast.Call) -> dict[str, ast.expr]:
    return dict(zip(names, call.args, strict=False)) | {each.arg: each.value for each in call.keywords if each.arg}


def _get_name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _without_repeats(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
