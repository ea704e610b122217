"""`python -m tests.shapes.conformance CHECKOUT`: run Electric's client tests, and compare with `expected.json`.

1. The client's sources and tests are copied from the checkout. The fixtures of the copy have the schema `public`
   instead of `electric_test`, and the port of the database; when one has created a table, it asks the server to follow
   it. The tests themselves are not changed.
2. If the checkout has its patch of the library that reads event streams, the patch is applied to the copy.
3. A test that fails is repeated once, alone: many of these tests allow one second for a change.
4. `expected.json` has the results of one run, and why each test fails; those that are `unsteady` pass in some runs. The
   exit code is 1 if another test fails, or one of those that always fail passes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from tests.servers.npm import npm_folder
from tests.servers.tls import free_port
from tests.shapes.conformance.server import FOLLOW, serving
from tests.sources.postgres.server import running_logical

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
FILES = ("integration.test.ts", "client.test.ts")
SCHEMA = "public"
LIBRARY = "@microsoft/fetch-event-source"
FOLLOW_FIRST = f"""
    await fetch(`${{inject(`baseUrl`)}}{FOLLOW}?table=${{encodeURIComponent(urlAppropriateTable)}}`)
    await use(urlAppropriateTable)
"""
CONFIG = """
import { defineConfig } from "vitest/config"
export default defineConfig({ server: { fs: { strict: false } }, test: {
  globalSetup: "test/support/global-setup.ts", setupFiles: ["vitest-localstorage-mock"], fileParallelism: false,
  testTimeout: 30000, environment: "jsdom" } })
"""


def copy_tests(checkout: Path, folder: Path, port: int) -> str:
    """The version of the client."""
    client = checkout / "packages" / "typescript-client"
    for name in ("src", "test"):
        shutil.copytree(client / name, folder / name)
    support = folder / "test" / "support"
    changes = {
        "test-helpers.ts": {"electric_test": SCHEMA, "port: 54321": f"port: {port}"},
        "global-setup.ts": {"provide(`testPgSchema`, `electric_test`)": f"provide(`testPgSchema`, `{SCHEMA}`)"},
        "test-context.ts": {"    await use(urlAppropriateTable)\n": FOLLOW_FIRST},
    }
    for name, replacements in changes.items():
        text = (support / name).read_text()
        for before, after in replacements.items():
            if before not in text:
                raise SystemExit(f"{support / name} has no {before!r}: this version of the tests is not supported")
            text = text.replace(before, after)
        (support / name).write_text(text)
    package = json.loads((client / "package.json").read_text())
    (folder / "package.json").write_text(json.dumps({"type": "module", "version": package["version"]}))
    (folder / "vitest.config.js").write_text(CONFIG)
    for patch in (checkout / "patches").glob("@microsoft__fetch-event-source*.patch"):
        copy = folder / "node_modules" / LIBRARY
        shutil.copytree(folder.parent / "node_modules" / LIBRARY, copy)
        subprocess.run(["patch", "-p1", "-s", "-i", str(patch.resolve())], cwd=copy, check=True)
    return str(package["version"])


def run_tests(folder: Path, url: str, *arguments: str) -> dict[str, str]:
    """The result of each test: `passed`, `skipped`, or the first line of its error."""
    report = folder / "report.json"
    vitest = folder.parent / "node_modules" / "vitest" / "vitest.mjs"
    command = [
        "node",
        str(vitest),
        "run",
        "--reporter=default",
        "--reporter=json",
        f"--outputFile={report}",
        *arguments,
    ]
    subprocess.run(command, cwd=folder, env={**os.environ, "ELECTRIC_URL": url}, stdout=sys.stderr, check=False)
    results = {}
    for file in json.loads(report.read_text())["testResults"]:
        for test in file["assertionResults"]:
            lines = [line for message in test["failureMessages"] for line in message.splitlines() if line.strip()]
            title = f"{Path(file['name']).name}: {test['fullName']}"
            name, count = title, 1
            while name in results:  # some tests have the same name
                count += 1
                name = f"{title} ({count})"
            results[name] = lines[0] if lines else test["status"]
    return results


def run_all(checkout: Path) -> tuple[str, dict[str, str]]:
    installed = npm_folder("shapes-conformance", HERE / "package.json")
    port = free_port()
    with (
        tempfile.TemporaryDirectory(dir=installed) as scratch,
        running_logical(port=str(port), listen_addresses="localhost", TimeZone="UTC") as server,
        psycopg.connect(server.dsn(), autocommit=True) as admin,
    ):
        admin.execute("CREATE ROLE postgres SUPERUSER LOGIN")
        admin.execute("CREATE DATABASE electric")
        folder = Path(scratch)
        version = copy_tests(checkout, folder, port)
        with serving(server.dsn("electric")) as url:
            results = run_tests(folder, url, *(f"test/{name}" for name in FILES))
            for name in [name for name, result in results.items() if result not in ("passed", "skipped")]:
                file, _, title = name.partition(": ")
                title = re.sub(r" \(\d+\)$", "", title)
                again = run_tests(folder, url, f"test/{file}", "-t", f"^{re.escape(title)}$")
                results[name] = again[name]
    return version, results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shapes.conformance")
    parser.add_argument("checkout", type=Path, help="a checkout of Electric's repository")
    version, results = run_all(parser.parse_args().checkout)
    expected: dict[str, Any] = json.loads(EXPECTED.read_text())
    failed = {name: result for name, result in results.items() if result not in ("passed", "skipped")}
    passed = sum(result == "passed" for result in results.values())
    print(
        f"client {version}: {passed} of {len(results)} tests pass; expected {expected['passed']} of {expected['tests']}"
    )
    surprising = failed.keys() - expected["failed"].keys() - expected["unsteady"].keys()
    for name in sorted(surprising):
        print(f"fails, and is expected to pass: {name}\n    {failed[name]}")
    fixed = expected["failed"].keys() - failed.keys()
    for name in sorted(fixed):
        print(f"passes, and is expected to fail: {name}")
    return 1 if surprising or fixed else 0


if __name__ == "__main__":
    sys.exit(main())
