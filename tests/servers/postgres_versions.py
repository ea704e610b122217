"""PostgreSQL in other versions than the one that most tests use: 18 is in the same package; 17 and older ones come from
Maven, as the binaries that zonky.io builds for tests. They have no pgbench.
"""

from __future__ import annotations

import platform
import tarfile
import zipfile
from pathlib import Path

from tests.servers.maven import PLUGIN, copy_jars
from tests.servers.postgres import BINARIES

VERSIONS = {"14": "14.18.0", "15": "15.13.0", "17": "17.5.0", "18": ""}
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}


def binaries_of(version: str, place: Path) -> Path:
    """The directory of its programs, unpacked into `place`, where the user that runs them has access."""
    if not VERSIONS[version]:
        return BINARIES.parents[1] / f"pginstall{version}" / "bin"
    kind = f"{platform.system().lower()}-{_MACHINES[platform.machine()]}"
    artifact = f"io.zonky.test.postgres:embedded-postgres-binaries-{kind}:{VERSIONS[version]}"
    [jar] = copy_jars("postgres", [f"{PLUGIN}:copy", f"-Dartifact={artifact}"]).glob("*.jar")
    with zipfile.ZipFile(jar) as archive:
        [name] = (name for name in archive.namelist() if name.endswith(".txz"))
        with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as files:
            # Set as an attribute, because the oldest supported Python does not have the parameter.
            files.extraction_filter = getattr(tarfile, "tar_filter", None)
            files.extractall(place)
    return place / "bin"
