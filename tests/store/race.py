"""`together`: the same work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(threads: int, work: Callable[[int], object]) -> list[Exception | None]:
    """Run `work(0)`, `work(1)`, ... at the same time: the error of each, or None."""
    errors: list[Exception | None] = [None] * threads
    start = threading.Barrier(threads)

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - handed to the test
            errors[number] = error

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return errors
