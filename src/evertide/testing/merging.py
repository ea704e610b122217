"""`Upkeep`: a thread that merges the arrangements of a circuit without a pipeline, for tests and benchmarks."""

from __future__ import annotations

from evertide.flow.circuit import Circuit
from evertide.threads.ticker import Ticker

__all__ = ["Upkeep"]

_INTERVAL_S = 0.2


class Upkeep(Ticker):
    """It ends when something fails; `error` says what. The transactions go on without it, and slow down."""

    def __init__(self, circuit: Circuit, interval_s: float = _INTERVAL_S) -> None:
        super().__init__("evertide-upkeep", interval_s)
        self._circuit = circuit
        self.error: BaseException | None = None

    def tick(self) -> bool:
        try:
            while self._circuit.maintain(self._stopping.is_set) and not self._stopping.is_set():
                pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the owner is told
            self.error = error
            return False
        return True
