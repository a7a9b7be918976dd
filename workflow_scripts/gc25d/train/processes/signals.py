"""Being asked to stop: finish the optimizer step, save, and leave with a status that says so.

SIGTERM and SIGUSR1 come from a scheduler that takes the node back or ends the time limit, SIGINT
from a terminal, SIGHUP from one that is closed. The status is that of sysexits.h's EX_TEMPFAIL,
"try again later": Snakemake's `retries`, a requeue by SLURM or the same command goes on from the
state that was saved.
"""

import logging
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Self

logger = logging.getLogger(__name__)

EXIT_STATUS = 75
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
_LISTENING_S = 0.2


def heard() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to stop; not SIGHUP where `nohup` has it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return tuple(n for n in SIGNALS if n != signal.SIGHUP or not ignored)


class Preempted(Exception):
    """Raised once the state is on disk; the process then ends with `EXIT_STATUS`."""


class Preemption:
    """While entered, notes a request to stop instead of dying of it.

    Processes of one job may get the signal at different steps: they stop together once any of them
    was asked, which the trainer finds out with its collectives. A second SIGINT ends at once; so
    does SIGKILL, and neither loses more than the steps since the last state.

    Schedulers and terminals signal all processes of a job, those too that this one started: torch's
    compilers, which die of it and are then waited for without end. Therefore a thread takes the
    signals, and all others block them: what they start inherits that and finishes its work.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._interrupted = False
        self._heard = heard()
        self._before: dict[signal.Signals, signal._HANDLER] = {}
        self._blocked: set[int] = set()
        self._left = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="requests-to-stop", daemon=True)

    @property
    def requested(self) -> bool:
        """Whether this process was asked to stop."""
        return self.received is not None

    def __enter__(self) -> Self:
        """Handle the signals; only the main thread of a process can, and only once."""
        # Handlers too: threads from before do not block the signals.
        self._before = {number: signal.signal(number, self._handle) for number in self._heard}
        self._blocked = {*signal.pthread_sigmask(signal.SIG_BLOCK, self._heard)}
        self._listener.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Handle them as before."""
        self._left.set()
        self._listener.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _listen(self) -> None:
        while not self._left.is_set():
            taken = signal.sigtimedwait(self._heard, _LISTENING_S)
            if taken is not None:
                self._handle(taken.si_signo, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            os._exit(128 + number)  # whatever the main thread waits for
        self._interrupted |= number == signal.SIGINT
        if self.received is None:
            self.received = signal.Signals(number)
            logger.warning(
                "%s: stopping after this step, once its state is saved", self.received.name
            )
