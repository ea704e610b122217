"""A process that commits a transaction beside a long backfill, on a Spark cluster of two cores.

python -m tests.cluster.fair MASTER FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from evertide.plan.catalyst.session import open_session
from tests.pipeline.test_backfill_pool import commit_during_backfill

if __name__ == "__main__":
    session = open_session(None, sys.argv[1])
    commit_during_backfill(session.spark, Path(sys.argv[2]))
    session.close()
