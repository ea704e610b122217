"""Reads a script: text, a SQL file, or a project of Spark Declarative Pipelines.

A project is `spark-pipeline.yml`, and the files that it names:

    name: shop
    storage: file:///var/shop            Spark's own checkpoints; ignored: Evertide's storage is given by --storage
    catalog, database, schema            where Spark would create tables; ignored
    configuration: {spark.sql.session.timeZone: UTC}
    libraries:
      - glob: {include: transformations/**}

1. A project is given by its directory or by its spec. As in Spark, a glob is a path, or a directory and `/**`.
2. The files of a glob are read in the order of their names. Declarations are ordered by their dependencies
   (`evertide.plan.program.program`).
3. An unknown field, file type or value is refused; the error lists what is allowed.
4. Reading a project needs no Spark, so errors are reported at once."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from evertide.errors import InvalidInput
from evertide.plan.program.project import Project, ProjectFile

_SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
_FIELDS = ("name", "storage", "catalog", "database", "schema", "configuration", "libraries")
_EVERYTHING = "/**"


def read_script(script: str | Path) -> tuple[str | Project, str, Path]:
    """The text or project, its name in messages, and the base directory of relative paths in it."""
    if isinstance(script, str) and (any(each.isspace() for each in script.strip()) or ";" in script):
        return script, "SQL", Path.cwd()
    path = Path(script)
    if _is_project(path):
        project = read_project(path)
        return project, project.where, project.root
    return _read_text(path), str(path), path.absolute().parent


def _is_project(path: Path) -> bool:
    return path.is_dir() or path.suffix in (".yml", ".yaml")


def read_project(path: Path) -> Project:
    spec = _find_spec(path)
    fields = _read_fields(spec)
    root = spec.absolute().parent
    files = [each for include in _read_includes(fields, str(spec)) for each in _find_files(root, include, str(spec))]
    files = list(dict.fromkeys(files))
    if not files:
        why = "the project has no libraries; name some, as in `libraries: [{glob: {include: transformations/**}}]`"
        raise InvalidInput(where=str(spec), why=why)
    read = [ProjectFile(spec.parent / each.relative_to(root), each, _read_text(each)) for each in files]
    return Project(
        name=str(fields["name"]),
        root=root,
        where=str(spec),
        configuration=_read_configuration(fields, str(spec)),
        sql=tuple(each for each in read if each.path.suffix == ".sql"),
        python=tuple(each for each in read if each.path.suffix == ".py"),
    )


def _find_spec(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = [path / name for name in _SPEC_NAMES if (path / name).is_file()]
    if not found:
        why = f"the directory has no {' or '.join(_SPEC_NAMES)}; name a SQL file, or the directory of a project"
        raise InvalidInput(where=str(path), why=why)
    if len(found) > 1:
        raise InvalidInput(where=str(path), why=f"the directory has both {' and '.join(_SPEC_NAMES)}; name one of them")
    return found[0]


def _read_fields(spec: Path) -> Mapping[str, Any]:
    try:
        fields = yaml.safe_load(_read_text(spec))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark is not None else ""
        why = f"the file is not valid YAML: {getattr(error, 'problem', None) or 'it cannot be parsed'}"
        raise InvalidInput(where=f"{spec}{at}", why=why) from error
    if not isinstance(fields, dict):
        raise InvalidInput(where=str(spec), why="expected fields with values, as in `name: shop`")
    for name in fields:
        if name not in _FIELDS:
            raise InvalidInput(where=str(spec), why=f"unknown field {name!r}; the fields are {', '.join(_FIELDS)}")
    if not fields.get("name"):
        raise InvalidInput(where=str(spec), why="the field 'name' is missing")
    return fields


def _read_includes(fields: Mapping[str, Any], where: str) -> Iterator[str]:
    for entry in fields.get("libraries") or ():
        try:
            include = entry["glob"]["include"]
        except (TypeError, KeyError) as error:
            why = f"the library {entry!r} is not understood; expected `glob: {{include: transformations/**}}`"
            raise InvalidInput(where=where, why=why) from error
        prefix = str(include).removesuffix(_EVERYTHING)
        if glob.has_magic(prefix):
            why = f"the glob {include!r} is not supported; expected a file, or a directory and {_EVERYTHING!r}"
            raise InvalidInput(where=where, why=why)
        yield str(include)


def _find_files(root: Path, include: str, where: str) -> list[Path]:
    if include.endswith(_EVERYTHING):
        named = sorted((root / include.removesuffix(_EVERYTHING)).rglob("*"))
    else:
        named = [root / include]
    found = [each for each in named if each.is_file() and "__pycache__" not in each.parts]
    if not found:
        raise InvalidInput(where=where, why=f"no file matches {include!r} in {root}")
    for each in found:
        if each.suffix not in (".sql", ".py"):
            why = f"the glob {include!r} names {each.relative_to(root)}: libraries must be .sql or .py files"
            raise InvalidInput(where=where, why=why)
    return found


def _read_configuration(fields: Mapping[str, Any], where: str) -> dict[str, str]:
    given = fields.get("configuration") or {}
    if not isinstance(given, dict):
        raise InvalidInput(where=where, why="the field 'configuration' must have names with values")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            why = f"the value {value!r} of the configuration {name!r} is not a string; put it in quotes"
            raise InvalidInput(where=where, why=why)
    return dict(given)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        why = f"the file is not UTF-8: byte {error.start} cannot be decoded"
        raise InvalidInput(where=str(path), why=why) from error
    except OSError as error:
        raise InvalidInput(where=str(path), why=f"the file cannot be read: {error.strerror}") from error
