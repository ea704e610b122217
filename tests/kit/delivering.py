"""Delivers all outstanding transactions to the sinks of a pipeline that runs no threads."""

from __future__ import annotations

from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.sinks.delivery_threads import DeliveryThreads


def deliver_once(pipeline: Pipeline) -> None:
    """Deliver what is outstanding and report the states of the sinks, as the threads of a leader do."""
    tasks = pipeline._leader_tasks
    if tasks.delivery_threads is not None:
        deliver_all(tasks.delivery_threads)
        tasks._reporter.write_if_changed()


def deliver_all(threads: DeliveryThreads) -> None:
    for sink_thread in threads._sink_threads.values():
        while threads._step(sink_thread):
            pass
        if sink_thread.problem is None:
            sink_thread.delivery.record_position()
