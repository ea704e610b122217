"""`BackgroundMerging`: a thread that merges the arrangements of a circuit without a pipeline, for tests and
benchmarks."""

from __future__ import annotations

from evertide.flow.circuit import Circuit
from evertide.threads.ticker import Ticker

_INTERVAL_S = 0.2


class BackgroundMerging(Ticker):
    """Stops at the first error, which is in `error`. Transactions continue without merges, and slow down."""

    def __init__(self, circuit: Circuit, interval_s: float = _INTERVAL_S) -> None:
        super().__init__("evertide-merging", interval_s)
        self._circuit = circuit
        self.error: BaseException | None = None

    def tick(self) -> bool:
        try:
            while self._circuit.maintain(self._stopping.is_set) and not self._stopping.is_set():
                pass
        except Exception as error:  # noqa: BLE001 - the owner reads any error from `error`
            self.error = error
            return False
        return True
