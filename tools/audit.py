# ruff: noqa: INP001 - a script; tests import it
"""`make audit`: known advisories, licences and pins of everything that requirements.lock names.

1. Every package is pinned to one version, with digests; every direct dependency of pyproject.toml is among them.
2. Every package that is installed has a licence that we may ship beside Apache-2.0: a licence that asks for our own
   source (GPL, AGPL, SSPL), or none at all, is a finding.
3. No package has a known advisory, as pip-audit asks for them. If nobody can be asked (by a machine that reaches
   nothing but a mirror of packages), one line says so, and it is no finding. Nothing waits longer than the limit.
4. A finding fails, unless tools/audit.toml accepts it with a reason, and until a day that has not come.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["Accepted", "Finding", "accepted_in", "advisories", "judged", "licences", "main", "pins"]

ROOT = Path(__file__).parent.parent
SERVICES_S = {"pypi": 12.0, "osv": 5.0}
"""Who is asked, in order, and how long that may take."""

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_NAME = re.compile(r"^[A-Za-z0-9._-]+")
_OURS_TOO = re.compile(
    r"(?<![A-Za-z])(A?GPL|SSPL|BUSL)|GNU (Affero )?General Public|Server Side Public|proprietary|commercial",
    re.IGNORECASE,
)
_FINE = re.compile(
    r"MIT|BSD|Apache|ISC|MPL|Mozilla|PSF|Python Software Foundation|LGPL|Zlib|CC0|Unlicense", re.IGNORECASE
)


@dataclass(frozen=True)
class Finding:
    package: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.package}: {self.what}: {self.why}"


@dataclass(frozen=True)
class Accepted:
    package: str
    what: str
    reason: str
    until: date


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lock: str, wanted: Iterable[str]) -> Iterator[Finding]:
    """`wanted` are the requirements of pyproject.toml."""
    found = set()
    for block in re.split(
        r"\n(?=\S)", "\n".join(line for line in lock.splitlines() if not line.lstrip().startswith("#"))
    ):
        hit = _PIN.match(block)
        if hit is None:
            if block.strip():
                yield Finding(block.split()[0], "pin", "requirements.lock does not pin it to one version")
            continue
        found.add(normal(hit["name"]))
        if "--hash=sha256:" not in block:
            yield Finding(hit["name"], "pin", "requirements.lock has no digest of it")
    for requirement in wanted:
        name = _NAME.match(requirement)
        if name is not None and normal(name[0]) not in {*found, "evertide"}:
            yield Finding(
                name[0], "pin", "pyproject.toml needs it, and requirements.lock does not have it: `make lock`"
            )


def licences(packages: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Of names, and what each says of its licence."""
    for name, text in packages:
        if _OURS_TOO.search(text):
            yield Finding(name, f"licence {text}", "it asks for more than we can give")
        elif not _FINE.search(text):
            yield Finding(name, f"licence {text or 'unknown'}", "it is none that we know")


def installed() -> Iterator[tuple[str, str]]:
    for one in metadata.distributions():
        fields: Any = one.metadata
        classifiers = [text.split(" :: ")[-1] for text in fields.get_all("Classifier") or [] if text.startswith("Lic")]
        said = fields.get("License-Expression") or " ".join(classifiers) or (fields.get("License") or "")[:80]
        yield one.name, " ".join(said.split())


def asked(service: str, limit_s: float) -> Any:
    """What pip-audit says; None if the service cannot be asked."""
    command = [sys.executable, "-m", "pip_audit", "-r", str(ROOT / "requirements.lock"), "--disable-pip"]
    options = ["--require-hashes", "--format", "json", "--progress-spinner", "off", "--timeout", "3", "-s", service]
    try:
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=limit_s, check=False)  # noqa: S603
        return json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None


def advisories(report: Any) -> tuple[list[Finding], int, int]:
    """The findings of a report, and how many packages were looked at, of how many."""
    packages = report.get("dependencies", []) if isinstance(report, dict) else []
    looked_at = [one for one in packages if "skip_reason" not in one]
    found = [
        Finding(one["name"], each["id"], f"{one['version']} is affected; fixed in {each.get('fix_versions') or 'none'}")
        for one in looked_at
        for each in one.get("vulns", [])
    ]
    return found, len(looked_at), len(packages)


def accepted_in(text: str) -> list[Accepted]:
    """Raises if one has no reason or no day: that is not accepted, that is forgotten."""
    return [Accepted(one["package"], one["what"], one["reason"], one["until"]) for one in _tables(text)]


def _tables(text: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = tomllib.loads(text).get("accepted", [])
    for one in found:
        if not str(one.get("reason", "")).strip() or not isinstance(one.get("until"), date):
            raise SystemExit(f"tools/audit.toml: {one.get('what')}: it needs a reason, and a day until which it holds")
    return found


def judged(findings: Iterable[Finding], accepted: Iterable[Accepted], today: date) -> tuple[list[Finding], list[str]]:
    """Those that fail, and what is to be said of the others."""
    known = {(normal(one.package), one.what): one for one in accepted}
    fail, said = [], []
    for one in findings:
        found = known.get((normal(one.package), one.what))
        if found is None:
            fail.append(one)
        elif found.until < today:
            fail.append(Finding(one.package, one.what, f"it was accepted until {found.until}: {found.reason}"))
        else:
            said.append(f"accepted until {found.until}: {one} ({found.reason})")
    return fail, said


def requirements(project: Mapping[str, Any]) -> Iterator[str]:
    yield from project["project"]["dependencies"]
    for extra in project["project"].get("optional-dependencies", {}).values():
        yield from extra
    for group in project.get("dependency-groups", {}).values():
        yield from group


def looked_up() -> tuple[list[Finding], str]:
    """Advisories, from the first service that answers; and what is to be said of that."""
    for service, limit_s in SERVICES_S.items():
        found, count, total = advisories(asked(service, limit_s))
        if count:
            return found, f"{count} of {total} packages looked up at {service}"
    return [], "advisories were not looked up, as no service can be reached from here"


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    accepted = accepted_in((ROOT / "tools" / "audit.toml").read_text("utf-8"))
    known, how = looked_up()
    findings = [*pins(lock, requirements(project)), *licences(installed()), *known]
    fail, said = judged(findings, accepted, datetime.now(UTC).date())
    for line in (*said, *map(str, fail)):
        sys.stdout.write(f"audit: {line}\n")
    sys.stdout.write(f"audit: {len(fail)} findings; {how}\n")
    return 1 if fail else 0


if __name__ == "__main__":
    sys.exit(main())
