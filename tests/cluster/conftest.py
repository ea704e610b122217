"""One cluster for the tests here: a master and two workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.cluster import SparkCluster, running_cluster
from tests.servers.spark import QUICK


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), QUICK) as made:
        yield made
