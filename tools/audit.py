# ruff: noqa: INP001 - a script; tests import it
"""`make audit`: known advisories, licences and pins of everything that the lock files name.

1. Every package is pinned to one version, with digests; every direct dependency of pyproject.toml is among them.
2. Every installed package has a licence that is compatible with Apache-2.0. A licence that would apply to our source
   (GPL, AGPL, SSPL), an unknown licence and a missing one are findings.
3. No package has a known advisory, according to pip-audit. If no advisory service can be reached, one line says so, and
   that is not a finding. Each service has a time limit.
4. A finding fails the audit, unless tools/audit.toml accepts it, with a reason and an end date in the future.
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

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements.lock", "requirements-dev.lock")
SERVICES_S = {"pypi": 12.0, "osv": 5.0}
"""The advisory services, in order, and the time limit of each."""

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


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def check_pins(lock: str, wanted: Iterable[str]) -> Iterator[Finding]:
    """`wanted` are the requirements of pyproject.toml."""
    found = set()
    for block in re.split(
        r"\n(?=\S)", "\n".join(line for line in lock.splitlines() if not line.lstrip().startswith("#"))
    ):
        hit = _PIN.match(block)
        if hit is None:
            if block.strip():
                yield Finding(block.split()[0], "pin", "the lock file does not pin this package to one version")
            continue
        found.add(normalize(hit["name"]))
        if "--hash=sha256:" not in block:
            yield Finding(hit["name"], "pin", "the lock file has no digest of this package")
    for requirement in wanted:
        name = _NAME.match(requirement)
        if name is not None and normalize(name[0]) not in {*found, "evertide"}:
            yield Finding(
                name[0],
                "pin",
                "pyproject.toml requires this package, and no lock file has it; run `make lock`",
            )


def check_licences(packages: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """`packages` are names with the text of the licence."""
    for name, text in packages:
        if _OURS_TOO.search(text):
            yield Finding(name, f"licence {text}", "this licence is not compatible with Apache-2.0")
        elif not _FINE.search(text):
            yield Finding(
                name, f"licence {text or 'unknown'}", "this licence is not in the list of known ones (tools/audit.py)"
            )


def list_installed() -> Iterator[tuple[str, str]]:
    for one in metadata.distributions():
        fields: Any = one.metadata
        classifiers = [text.split(" :: ")[-1] for text in fields.get_all("Classifier") or [] if text.startswith("Lic")]
        said = fields.get("License-Expression") or " ".join(classifiers) or (fields.get("License") or "")[:80]
        yield one.name, " ".join(said.split())


def ask_service(service: str, limit_s: float) -> Any:
    """The report of pip-audit; None if the service cannot be reached."""
    files = [text for name in LOCKS for text in ("-r", str(ROOT / name))]
    command = [sys.executable, "-m", "pip_audit", *files, "--disable-pip"]
    options = ["--require-hashes", "--format", "json", "--progress-spinner", "off", "--timeout", "3", "-s", service]
    try:
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=limit_s, check=False)  # noqa: S603
        return json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None


def read_advisories(report: Any) -> tuple[list[Finding], int, int]:
    """The findings of a report, the number of packages that were looked up, and of all packages."""
    packages = report.get("dependencies", []) if isinstance(report, dict) else []
    looked_at = [one for one in packages if "skip_reason" not in one]
    found = [
        Finding(one["name"], each["id"], f"{one['version']} is affected; fixed in {each.get('fix_versions') or 'none'}")
        for one in looked_at
        for each in one.get("vulns", [])
    ]
    return found, len(looked_at), len(packages)


def read_accepted(text: str) -> list[Accepted]:
    """The accepted findings. Exits if one of them has no reason or no end date."""
    return [Accepted(one["package"], one["what"], one["reason"], one["until"]) for one in _tables(text)]


def _tables(text: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = tomllib.loads(text).get("accepted", [])
    for one in found:
        if not str(one.get("reason", "")).strip() or not isinstance(one.get("until"), date):
            raise SystemExit(
                f"tools/audit.toml: {one.get('what')}: an accepted finding needs a `reason`, and a date `until`"
            )
    return found


def judge(findings: Iterable[Finding], accepted: Iterable[Accepted], today: date) -> tuple[list[Finding], list[str]]:
    """The findings that fail the audit, and lines about the accepted ones."""
    known = {(normalize(one.package), one.what): one for one in accepted}
    fail, said = [], []
    for one in findings:
        found = known.get((normalize(one.package), one.what))
        if found is None:
            fail.append(one)
        elif found.until < today:
            fail.append(Finding(one.package, one.what, f"the acceptance ended on {found.until}: {found.reason}"))
        else:
            said.append(f"accepted until {found.until}: {one} ({found.reason})")
    return fail, said


def list_requirements(project: Mapping[str, Any]) -> Iterator[str]:
    yield from project["project"]["dependencies"]
    for extra in project["project"].get("optional-dependencies", {}).values():
        yield from extra
    for group in project.get("dependency-groups", {}).values():
        yield from group


def look_up_advisories() -> tuple[list[Finding], str]:
    """Advisories from the first service that answers, and a line that says which one."""
    for service, limit_s in SERVICES_S.items():
        found, count, total = read_advisories(ask_service(service, limit_s))
        if count:
            return found, f"{count} of {total} packages were looked up at {service}"
    return [], "advisories were not looked up: no service could be reached"


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lock = "".join((ROOT / name).read_text("utf-8") for name in LOCKS)
    accepted = read_accepted((ROOT / "tools" / "audit.toml").read_text("utf-8"))
    known, how = look_up_advisories()
    findings = [*check_pins(lock, list_requirements(project)), *check_licences(list_installed()), *known]
    fail, said = judge(findings, accepted, datetime.now(UTC).date())
    for line in (*said, *map(str, fail)):
        sys.stdout.write(f"audit: {line}\n")
    sys.stdout.write(f"audit: {len(fail)} findings; {how}\n")
    return 1 if fail else 0


if __name__ == "__main__":
    sys.exit(main())
