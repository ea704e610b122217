"""Tests of the source itself: the rules that no linter checks.

Each rule is a function from a module (or a text file) to its offences, so that the tests below can also apply it to bad
examples.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"

LINES_MAX = 500
VAGUE = {"common", "data", "helper", "helpers", "info", "manager", "managers", "util", "utils"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")

RANDOMNESS = {"random", "secrets", "uuid", "numpy.random", "os.urandom"}
CLOCKS = {
    *(f"time.{name}" for name in ("sleep", "time", "monotonic", "perf_counter", "process_time", "localtime", "gmtime")),
    *(f"time.{name}_ns" for name in ("time", "monotonic", "perf_counter", "process_time")),
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    "datetime.date.today",
}

# Names of a machine or of a package registry do not belong in a file that others read.
ELSEWHERE = re.compile(
    r"""\.\./shared
    | (?<![\w.\-*}>])/(?:work|root)\b(?!-)
    | (?<![\w.\-*}>])/(?:home|Users)/\w
    | \b(?:pypi\.org|pythonhosted\.org|repo1?\.maven(?:\.apache)?\.org|registry\.npmjs\.org)""",
    re.VERBOSE,
)
NOT_OURS = {"__pycache__", "build", "dist", "metastore_db", "node_modules", "spark-warehouse"}


@dataclass(frozen=True)
class Module:
    path: str
    """As the source tree spells it: `evertide/store/blob.py`."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def at(self, line: int, what: str) -> str:
        return f"{self.path}:{line}: {what}"


THREADS = {"threading.Thread", "threading.Timer", "_thread.start_new_thread", "multiprocessing.pool.ThreadPool"}
POOLS = {"concurrent.futures.ThreadPoolExecutor", "concurrent.futures.ProcessPoolExecutor"}
RESULTS_TAKEN = {
    "evertide/flow/wide/step.py": "the caller, by map",
    "evertide/checkpoint/verification.py": "the caller, by map",
    "evertide/pipeline/transaction/portions.py": "the commit, which stores what was not stored ahead",
    "evertide/shapes/log/snapshot.py": "the readers of the chunks, which get the error",
    "evertide/shard/read.py": "the caller, by map",
    "evertide/sources/kafka/source.py": "the caller, by map",
}
"""By module with a thread pool: what receives the errors of its work."""

PARTICIPLE = re.compile(
    r"_*([a-z]+(?<!e)ed|built|chosen|done|found|given|gone|held|hidden|kept|known|lost|made|seen|sent|shown|taken|told|written)"
)
"""A bare participle, such as `taken` or `_quantified`: as the name of a function it says neither what happens nor to
what."""

FOREIGN_OBJECTS = {
    "evertide/cli/main.py": "the context of typer",
    "evertide/cli/output/logs.py": "the root logger",
    "evertide/cli/output/output.py": "sys.stdout",
    "evertide/metrics/http.py": "samples of the Prometheus client",
    "evertide/plan/catalyst/jobs.py": "the serializer of an RDD",
    "evertide/plan/catalyst/network.py": "os.environ",
    "evertide/plan/program/project_files.py": "Spark's module of pipelines",
    "evertide/plan/program/view_function.py": "Spark's active session",
    "evertide/server/access/gate.py": "the headers of a response of Starlette",
    "evertide/server/app.py": "the state of a Starlette application",
    "evertide/server/endpoints/health.py": "a response of Starlette",
    "evertide/shapes/http/endpoint.py": "the headers of a response of Starlette",
    "evertide/sources/postgres/session.py": "a connection of psycopg",
    "evertide/store/metas/postgres.py": "a connection that psycopg constructs",
    "evertide/store/retry.py": "a thread-local variable",
    "evertide/threads/steps.py": "a thread-local variable",
}
"""By module, the object of a library whose attribute it assigns."""

MODULES = [Module(path.relative_to(SRC).as_posix(), path.read_text("utf-8")) for path in sorted(SRC.rglob("*.py"))]


def too_long(module: Module) -> Iterator[str]:
    lines = len(module.text.splitlines())
    if lines > LINES_MAX:
        yield module.at(lines, f"over {LINES_MAX} lines: do two things live in it?")


def vague_name(module: Module) -> Iterator[str]:
    for word in re.split(r"[._]", module.name):
        if word in VAGUE:
            yield module.at(1, f"{word!r} names nothing: use a noun of the glossary")


def participle_function(module: Module) -> Iterator[str]:
    """Functions are verbs; properties are values, and may be participles."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not PARTICIPLE.fullmatch(node.name):
            continue
        if not any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
            yield module.at(node.lineno, f"the function {node.name!r} is a participle: use a verb")


def public_classes(modules: list[Module]) -> dict[str, list[str]]:
    """The places of all public classes, by name."""
    found: dict[str, list[str]] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module.at(node.lineno, node.name))
    return found


def no_docstring(module: Module) -> Iterator[str]:
    if not ast.get_docstring(module.tree):
        yield module.at(1, "no docstring")


def unfinished(module: Module) -> Iterator[str]:
    for number, line in enumerate(module.text.splitlines(), 1):
        if found := UNFINISHED.search(line):
            yield module.at(number, f"{found[0]}: finish it, or leave it out")


def own_clock(module: Module) -> Iterator[str]:
    """Clock, sleep, ids and randomness come from a Runtime. Names are followed through imports and their aliases."""
    if module.path == "evertide/runtime.py":
        return
    banned = RANDOMNESS | CLOCKS
    aliases = {}
    for line, alias, name in imported(module.tree):
        aliases[alias] = name
        if name in banned or name.split(".")[0] in RANDOMNESS:
            yield module.at(line, f"{name}: take a Runtime")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and (used := full_name(node, aliases)) in banned:
            yield module.at(node.lineno, f"{used}: take a Runtime")


def imported(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, name, and its full name: `from time import sleep as s` gives (1, "s", "time.sleep")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                yield node.lineno, alias.asname or name, name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, alias.asname or alias.name, f"{node.module}.{alias.name}"


def full_name(node: ast.expr, aliases: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := full_name(node.value, aliases)):
        return f"{owner}.{node.attr}"
    return None


def catch_all(module: Module) -> Iterator[str]:
    """A handler that catches everything raises again, or gives the reason on that line; the name of a lint rule is no
    reason.
    """
    lines = module.text.splitlines()
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {kind.id for kind in kinds if isinstance(kind, ast.Name)}
        last = node.body[-1]
        again = isinstance(last, ast.Raise) and last.exc is None
        if again or (node.type is not None and not names & {"Exception", "BaseException"}):
            continue
        comment = lines[node.lineno - 1].partition("#")[2]
        reason = re.sub(r"noqa(:\s*[A-Z]+[0-9]+(,\s*[A-Z]+[0-9]+)*)?|pragma: no cover", "", comment)
        if len(re.findall(r"\w+", reason)) < 2:
            yield module.at(node.lineno, "catches everything without saying why")


def unwatched_thread(module: Module) -> Iterator[str]:
    """A thread that is not watched may die unnoticed. The code that submits work to a pool must read the result."""
    if module.path == "evertide/threads/watched.py":
        return
    aliases = {alias: name for _, alias, name in imported(module.tree)}
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        used = full_name(node.func, aliases)
        if used in THREADS or (used in POOLS and module.path not in RESULTS_TAKEN):
            yield module.at(
                node.lineno,
                f"{used}: start an evertide.threads.watched.WatchedThread, or name what gets its errors",
            )


def assigned_elsewhere(module: Module) -> Iterator[str]:
    """State is owned: a module assigns only to attributes of classes that it defines, and to their entries.

    Assignments to an object that the same function has just constructed are allowed.
    """
    if module.path in FOREIGN_OBJECTS:
        return
    classes = [node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    own = {name for owner in classes for node in ast.walk(owner) for name in declared(node)}
    for function in ast.walk(module.tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        nodes = list(ast.walk(function))
        new = {
            target.id for node in nodes for target in targets(node) if constructs(node) and isinstance(target, ast.Name)
        }
        for target in (target for node in nodes for target in targets(node)):
            if not isinstance(target, ast.Attribute) or target.attr in own or target.attr.startswith("__"):
                continue
            if not (isinstance(target.value, ast.Name) and target.value.id in {"self", "cls", *new}):
                yield module.at(target.lineno, f"{ast.unparse(target)}: let the owner assign it, in a method")


def assigned_through(module: Module) -> Iterator[str]:
    """No code assigns through an attribute (`self.owner.count = 1`), not even to a class of its own module."""
    if module.path in FOREIGN_OBJECTS:
        return
    for target in (target for node in ast.walk(module.tree) for target in targets(node)):
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute):
            yield module.at(target.lineno, f"{ast.unparse(target)}: let the owner assign it, in a method")


def targets(node: ast.AST) -> list[ast.expr]:
    """The names and attributes that a statement assigns to or deletes, also those whose entries it changes."""
    given: list[ast.expr] = []
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        given = [node.target]
    elif isinstance(node, ast.Assign | ast.Delete):
        given = node.targets
    several = [each for one in given for each in (one.elts if isinstance(one, ast.Tuple) else [one])]
    return [unwrap(each) for each in several]


def unwrap(target: ast.expr) -> ast.expr:
    while isinstance(target, ast.Subscript):
        target = target.value
    return target


def declared(node: ast.AST) -> Iterator[str]:
    """The attributes that a statement inside a class declares."""
    for target in targets(node):
        if isinstance(target, ast.Name) and isinstance(node, ast.AnnAssign):
            yield target.id
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            yield target.attr


def constructs(node: ast.AST) -> bool:
    """Whether a statement assigns the result of a constructor, such as `Thread(...)` or `threading.Thread(...)`."""
    call = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name[:1].isupper()


def exported(module: Module) -> list[str] | None:
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


RULES: list[Callable[[Module], Iterator[str]]] = [
    too_long,
    vague_name,
    participle_function,
    no_docstring,
    unfinished,
    own_clock,
    catch_all,
    unwatched_thread,
    assigned_elsewhere,
    assigned_through,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_source_is_tidy(rule: Callable[[Module], Iterator[str]]) -> None:
    assert MODULES
    offences = [offence for module in MODULES for offence in rule(module)]
    assert not offences, "\n".join(offences)


def test_no_two_public_classes_share_a_name() -> None:
    shared = {name: places for name, places in public_classes(MODULES).items() if len(places) > 1}
    assert not shared


@pytest.mark.parametrize("module", [m for m in MODULES if exported(m)], ids=lambda module: str(module.name))
def test_exported_names_exist(module: Module) -> None:
    public = importlib.import_module(module.name)
    assert [name for name in exported(module) or [] if not hasattr(public, name)] == []


def texts() -> Iterator[tuple[str, str]]:
    """Every text file that could be committed: path below the root, and content."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if not is_generated(name))
        for path in (Path(folder, file) for file in sorted(files) if file != ".git"):  # a worktree's `.git` is a file
            try:
                yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
            except (UnicodeDecodeError, FileNotFoundError):  # not text, or deleted meanwhile
                continue


def is_generated(folder: str) -> bool:
    """Generated folders: environments, caches, build output, storages."""
    hidden = folder.startswith(".") and folder not in {".ci", ".github"}
    return hidden or folder in NOT_OURS or folder.endswith((".egg-info", ".evertide"))


def test_no_file_names_a_machine_or_a_registry() -> None:
    offences = [
        f"{path}:{number}: {found[0]}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if (found := ELSEWHERE.search(line))
    ]
    assert not offences, "\n".join(offences)


def test_the_rules_detect_bad_examples() -> None:
    def offends(rule: Callable[[Module], Iterator[str]], text: str, path: str = "evertide/shard/append.py") -> bool:
        return list(rule(Module(path, text))) != []

    assert offends(own_clock, "import time as t\nwait = t.sleep")
    assert offends(own_clock, "from time import time as now")
    assert offends(own_clock, "def f():\n    from datetime import datetime as d\n    return d.now(UTC)")
    assert offends(own_clock, "import datetime\ndatetime.datetime.utcnow()")
    assert offends(own_clock, "from uuid import uuid4")
    assert offends(own_clock, "import numpy as np\nnp.random.default_rng()")
    assert not offends(own_clock, "import time\nimport datetime\ndatetime.timedelta(1)\ntime.strftime")
    assert not offends(own_clock, "import time\ntime.sleep(1)", "evertide/runtime.py")

    assert offends(catch_all, "try: ...\nexcept Exception: ...")
    assert offends(catch_all, "try: ...\nexcept (OSError, BaseException):  # noqa: BLE001, S110\n    ...")
    assert offends(catch_all, "try: ...\nexcept: ...")
    assert not offends(catch_all, "try: ...\nexcept Exception:  # noqa: BLE001 - handed to the caller\n    ...")
    assert not offends(catch_all, "try: ...\nexcept BaseException:\n    close()\n    raise")
    assert not offends(catch_all, "try: ...\nexcept OSError: ...")

    assert offends(unwatched_thread, "from threading import Thread as T\nT(target=print).start()")
    assert offends(unwatched_thread, "from concurrent import futures\nfutures.ThreadPoolExecutor(1)")
    assert not offends(unwatched_thread, "import threading\nthreading.Lock()")

    assert offends(assigned_elsewhere, "def f(runner):\n    runner.outcome = None")
    assert offends(assigned_elsewhere, "class A:\n    def f(self):\n        self.owner.count += 1")
    assert offends(assigned_elsewhere, "def f():\n    one = find()\n    one.time, two = 1, 2")
    assert not offends(assigned_elsewhere, "class A:\n    def f(self):\n        self.count = 1")
    assert not offends(assigned_elsewhere, "class _Lane:\n    count: int\ndef f(lane):\n    lane.count = 1")
    assert not offends(assigned_elsewhere, "def f():\n    thread = threading.Thread()\n    thread.name = 'x'")

    assert offends(assigned_elsewhere, "def f(machine):\n    machine.lost[1] = 2")
    assert offends(assigned_elsewhere, "def f(machine):\n    del machine.lost[1]")

    assert offends(assigned_through, "class _Lane:\n    count: int\ndef f(self):\n    self.lane.count = 1")
    assert offends(assigned_through, "def f(self):\n    self.lane.count[1] += 1")
    assert offends(assigned_through, "def f(self):\n    del self.lane.count")
    assert not offends(assigned_through, "def f(self, lane):\n    self.counts[lane.name] = lane.count = 1")

    assert offends(vague_name, "", "evertide/store/utils.py")
    assert offends(vague_name, "", "evertide/data/__init__.py")
    assert offends(participle_function, "class A:\n    async def _quantified(self): ...")
    assert offends(participle_function, "def taken(): ...")
    assert not offends(participle_function, "def need(): ...\ndef proceed(): ...\ndef make_taken(): ...")
    assert not offends(participle_function, "class A:\n    @property\n    def damaged(self): ...")
    one, two = Module("evertide/a.py", "class Result: ..."), Module("evertide/b.py", "class Result: ...\nclass _R: ...")
    assert public_classes([one, two]) == {"Result": ["evertide/a.py:1: Result", "evertide/b.py:1: Result"]}
    assert offends(unfinished, "x = 1  # " + "TO" + "DO later")
    assert offends(too_long, "\n" * (LINES_MAX + 1))


@pytest.mark.parametrize(
    "text", ["see ../sha" + "red/x", "cd /wo" + "rk/main", "'/ro" + "ot'", "https://py" + "pi.org/simple"]
)
def test_other_locations_are_detected(text: str) -> None:
    assert ELSEWHERE.search(text)


@pytest.mark.parametrize("text", ["frame/work", "/workers", "./root/x", "<storage>/root", "https://example.org/work"])
def test_other_words_are_accepted(text: str) -> None:
    assert not ELSEWHERE.search(text)
