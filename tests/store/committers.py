"""Runs in a process of its own: commits to a SQLite Meta, and prints which commits were acknowledged.

It prints `ready` and begins when its standard input ends. Each further line on its standard output is one acknowledged
commit, `<seqno>`, written before the next one begins.
"""

from __future__ import annotations

import sys

from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store import SqliteMeta, Write

PAIR = ("pair/a", "pair/b")


def payload(who: str, seqno: int) -> bytes:
    return f"{who} {seqno} ".encode() * 200


def main(path: str, count: int, who: str) -> None:
    """Advance both keys of the pair together, `count` times. After a lost race, take the next number."""
    meta = SqliteMeta(path, SystemRuntime(), Settings())
    print("ready", flush=True)
    sys.stdin.read()
    wins = number = 0
    while wins < count:
        data = payload(who, number + 1)
        stale = meta.commit([Write(key, number, data) for key in PAIR])
        if stale is None:
            wins += 1
            print(number + 1, flush=True)
        number = stale.found if stale else number + 1
    meta.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
