"""Start the processes of a training job, one a GPU, on one node or on several; imports no torch.

The trainer's parent starts this node's processes itself. On several nodes it runs `srun`, which
starts one launcher a node (gc25d.steps.train_node), and that one its processes. What a process
ends with is passed on as it is (a stop on request has a status of its own), requests to stop reach
every process, and one that dies takes the others along.
"""

import contextlib
import ctypes
import functools
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import FrameType

from gc25d.environment import STARTED_BY, cleaned, launched
from gc25d.errors import UserError
from gc25d.train.processes.signals import EXIT_STATUS, heard

logger = logging.getLogger(__name__)

GRACE_S = 20.0
_POLL_S = 0.1
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True)
class Layout:
    """Processes of a job."""

    nodes: int
    processes_per_node: int
    gpu: bool
    cpus_per_node: int = 0
    """What a node's launcher asks SLURM for, which gives a job step one by default; 0: nothing."""

    @property
    def world_size(self) -> int:
        """All processes."""
        return self.nodes * self.processes_per_node


@dataclass(frozen=True)
class Meeting:
    """Where the processes of a job find each other."""

    address: str
    port: int


@dataclass(frozen=True)
class Place:
    """A process's place among those of its job."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1


def own_place() -> Place | None:
    """Where the launcher has put this process; None for one that it did not start."""
    if not launched(os.environ, os.getppid()):
        return None
    return Place(**{field.name: int(os.environ[field.name.upper()]) for field in fields(Place)})


def run_processes(
    command: Sequence[str],
    layout: Layout,
    node: int = 0,
    meeting: Meeting | None = None,
    grace_s: float = GRACE_S,
) -> int:
    """Run a node's processes to their end.

    Args:
        command: what each of them runs.
        layout: of the whole job.
        node: number of this node.
        meeting: by default this host and a free port, which suits one node.
        grace_s: how long processes may live on after one of them failed, seconds.

    Returns:
        0, or the status of the first that failed (128 + the signal that killed it).
    """
    meeting = meeting or Meeting("127.0.0.1", free_port())
    first = node * layout.processes_per_node
    processes = [
        subprocess.Popen(
            command,
            env=_environment(layout, meeting, first + local, local),
            preexec_fn=_end_with_this(),
        )
        for local in range(layout.processes_per_node)
    ]
    with _forwarding(processes):
        return _wait(processes, first, grace_s)


def run_nodes(command: Sequence[str], layout: Layout) -> int:
    """Run a launcher on every node of this SLURM job; returns the status of the first to fail.

    Args:
        command: of a node's launcher, which is given `--node`, `--address` and `--port` too.
        layout: the nodes.

    Raises:
        UserError: this is no SLURM job: there is no `srun`.
    """
    try:
        step = subprocess.Popen(
            srun_command(command, layout, free_port()), preexec_fn=_end_with_this()
        )
    except FileNotFoundError:
        raise UserError(
            f"hardware.nodes is {layout.nodes} and there is no srun here: submit with "
            "--profile profiles/slurm, or set hardware.nodes to 1"
        ) from None
    with _forwarding([step]):
        return _status(step.wait())


def srun_command(command: Sequence[str], layout: Layout, port: int) -> list[str]:
    """The job step: one task a node; the first node of the list is where processes meet.

    SLURM's variables exist only inside the tasks: Snakemake's executor removes them outside.
    """
    head = 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1'
    inside = (
        f'exec {shlex.join(command)} --node "$SLURM_NODEID" --address "$({head})" --port {port}'
    )
    cpus = [f"--cpus-per-task={layout.cpus_per_node}"] if layout.cpus_per_node else []
    return [
        *("srun", f"--nodes={layout.nodes}", f"--ntasks={layout.nodes}", "--ntasks-per-node=1"),
        *(*cpus, "--kill-on-bad-exit=1", "bash", "-c", inside),
    ]


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def rank_command(arguments: Sequence[str]) -> list[str]:
    """What each process of a job runs, with the arguments of gc25d.steps.train."""
    return [sys.executable, "-m", "gc25d.steps.train_rank", *arguments]


def node_command(arguments: Sequence[str]) -> list[str]:
    """What each node's launcher runs, with the arguments of gc25d.steps.train."""
    return [sys.executable, "-m", "gc25d.steps.train_node", *arguments]


def _end_with_this() -> Callable[[], None]:
    """What a process runs first to be killed when this one ends, however it does.

    A killed launcher must not leave processes that still write to the run, not even those that were
    just starting.
    """
    return functools.partial(_end_with, os.getpid())


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os.kill(os.getpid(), signal.SIGKILL)


def _environment(layout: Layout, meeting: Meeting, rank: int, local: int) -> Mapping[str, str]:
    """This process's, cleaned, and what torch.distributed and accelerate read of a place."""
    place = {
        STARTED_BY: os.getpid(),
        "RANK": rank,
        "LOCAL_RANK": local,
        "WORLD_SIZE": layout.world_size,
        "LOCAL_WORLD_SIZE": layout.processes_per_node,
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": meeting.port,
    }
    device = {} if layout.gpu else {"DS_ACCELERATOR": "cpu"}
    # Every process compiles with helpers of its own: together no more than there are cores.
    helpers = max(1, (os.cpu_count() or 1) // layout.processes_per_node)
    compiler = {"TORCHINDUCTOR_COMPILE_THREADS": str(helpers)}
    placed = {name: str(value) for name, value in place.items()}
    return {**compiler, **cleaned(os.environ, os.getppid()), **placed, **device}


def _wait(processes: Sequence[subprocess.Popen[bytes]], first: int, grace_s: float) -> int:
    """Wait for all; once one has failed the others get a moment, then are killed."""
    status, deadline = 0, None
    while None in (codes := [process.poll() for process in processes]):
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None and deadline is None:
            status, deadline = _status(codes[failed] or 0), time.monotonic() + grace_s
            level = logging.INFO if status == EXIT_STATUS else logging.WARNING  # stopped on request
            logger.log(level, "process %d ended with status %d", first + failed, status)
        if deadline is not None and time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(_POLL_S)
    return status or next((_status(code) for code in codes if code), 0)


def _status(code: int) -> int:
    """A status as shells tell it: 128 + the number of the signal that killed the process."""
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _forwarding(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass requests to stop on, and wait for their effect instead of dying of them.

    An interrupt and SIGHUP go on as SIGTERM: a terminal has sent them to every process already, and
    a second interrupt ends a process without saving.
    """

    def forward(number: int, frame: FrameType | None) -> None:
        from_terminal = number in (signal.SIGINT, signal.SIGHUP)
        sent = signal.SIGTERM if from_terminal else signal.Signals(number)
        for process in processes:
            if process.poll() is None:
                process.send_signal(sent)

    before = {number: signal.signal(number, forward) for number in heard()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
