"""Being asked to stop: finish the optimizer step, save, and leave with a status that says so.

SIGTERM and SIGUSR1 come from a scheduler that takes the node back or ends the time limit, SIGINT
from a terminal. The status is that of sysexits.h's EX_TEMPFAIL, "try again later": Snakemake's
`retries`, a requeue by SLURM or the same command goes on from the state that was saved.
"""

import logging
import os
import signal
from types import FrameType, TracebackType
from typing import Self

logger = logging.getLogger(__name__)

EXIT_STATUS = 75
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Preempted(Exception):
    """Raised once the state is on disk; the process then ends with `EXIT_STATUS`."""


class Preemption:
    """While entered, notes a request to stop instead of dying of it.

    Processes of one job may get the signal at different steps: they stop together once any of them
    was asked, which the trainer finds out with its collectives. A second SIGINT ends at once; so
    does SIGKILL, and neither loses more than the steps since the last state.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._interrupted = False
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    @property
    def requested(self) -> bool:
        """Whether this process was asked to stop."""
        return self.received is not None

    def __enter__(self) -> Self:
        """Handle the signals; only the main thread of a process can."""
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Handle them as before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._interrupted |= number == signal.SIGINT
        if self.received is None:
            self.received = signal.Signals(number)
            logger.warning(
                "%s: stopping after this step, once its state is saved", self.received.name
            )
