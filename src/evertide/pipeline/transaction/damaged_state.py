"""What happens to the state that uses a damaged part.

State parts are verified when they are read, by a step, a merge or the scrub, and not when the state is restored.

1. The views of a cohort that uses the part lose their state, and are computed again beside the transactions. The state
   of tables is read again from their shards. A new checkpoint replaces those that name the part.
2. If a table under them is not kept, its rows are not stored. Then the process ends with the error. The next one reads
   all state parts when it opens the pipeline, and continues from an older checkpoint.
"""

from __future__ import annotations

from evertide.pipeline.state.hydration import rehydrate_tables
from evertide.pipeline.transaction.runner import Runner


def discard_damaged_state(runner: Runner) -> None:
    """Only between two transactions. `Runner.lost` has the views that lost their state."""
    machine = runner.machine
    while machine.damage:
        error = machine.damage[0]
        runner.checkpoints.note_damaged_file(error)
        if (lost := machine.discard_damaged(error)) is not None:
            runner.note_lost(lost)
        elif machine.has_damaged_table(error) and not rehydrate_tables(machine, runner.members):
            raise error
        machine.damage.remove(error)
