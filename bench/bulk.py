"""`python -m bench.bulk MASTER STORAGE EVENTS ROUNDS`: loads Nexmark in large transactions on a Spark cluster.

It prints the seconds of each transaction after the warm-up. It is a program since a process has only one Spark.
"""

from __future__ import annotations

import json
import sys
import time

from bench.pipelines import VIEWS
from evertide.pipeline.pipeline import Pipeline
from evertide.settings import Settings
from tests.kit.nexmark import WORKLOAD, Nexmark


def main(master: str, storage: str, events: str, rounds: str) -> None:
    generator, taken, count = Nexmark(seed=5), [], int(events)
    settings = Settings(checkpoint_interval_s=1e9)
    with Pipeline.open(WORKLOAD.script(VIEWS), storage, master=master, settings=settings) as opened:
        for number in range(-1, int(rounds)):
            made = generator.events((number + 1) * count, count)
            for name, rows in (("person", made.person), ("auction", made.auction), ("bid", made.bid)):
                opened.push(name, rows)
            begun = time.perf_counter()
            opened.commit()
            if number >= 0:
                taken.append(time.perf_counter() - begun)
    sys.stdout.write(json.dumps(taken) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
