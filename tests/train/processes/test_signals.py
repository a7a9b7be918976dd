"""Requests to stop: noted, obeyed after the step, and a second one from a terminal at once."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gc25d.train.processes.signals import Preemption

LOOP = """
import sys, time
from gc25d.train.processes.signals import EXIT_STATUS, Preemption
with Preemption() as preemption:
    print("ready", flush=True)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        time.sleep(0.01)
        if preemption.requested and "stubborn" not in sys.argv:
            print("saved", preemption.received.name, flush=True)
            sys.exit(EXIT_STATUS)
        if preemption.requested:
            print("noted", flush=True)
"""
# As a compiler of torch's: started by the trainer, at work when the signal comes.
WITH_A_HELPER = """
import subprocess, sys
from gc25d.train.processes.signals import Preemption
work = "import time; print('ready', flush=True); time.sleep(0.5); print('worked', flush=True)"
with Preemption() as preemption:
    status = subprocess.run([sys.executable, "-c", work]).returncode
    print(status, preemption.received.name, flush=True)
"""
WAITS_IN_C = """
import ctypes
from gc25d.train.processes.signals import Preemption
with Preemption():
    print("ready", flush=True)
    ctypes.CDLL(None).sem_wait(ctypes.create_string_buffer(64))
"""


def started(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def trainer(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = started(*getattr(request, "param", ()))
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP"])
def test_a_request_lets_the_step_finish_and_has_a_status_of_its_own(
    trainer: subprocess.Popen[str], name: str
) -> None:
    trainer.send_signal(signal.Signals[name])
    said, _ = trainer.communicate(timeout=20)
    assert said == f"saved {name}\n"
    assert trainer.returncode == 75


@pytest.mark.parametrize("trainer", [("stubborn",)], indirect=True)
def test_only_a_second_interrupt_ends_at_once(trainer: subprocess.Popen[str]) -> None:
    assert trainer.stdout is not None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        trainer.send_signal(number)
        assert trainer.stdout.readline() == "noted\n"
        time.sleep(0.05)
    assert trainer.poll() is None
    trainer.send_signal(signal.SIGINT)
    trainer.communicate(timeout=20)
    assert trainer.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP"])
def test_a_signal_to_all_processes_leaves_helpers_at_work(name: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_A_HELPER],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.Signals[name])
    said, _ = process.communicate(timeout=20)
    assert said == f"worked\n0 {name}\n"


def test_a_closed_terminal_is_a_request() -> None:
    """The kernel sends SIGHUP to all that work in the foreground of a terminal that goes."""
    terminal, inside = pty.openpty()
    of_the_terminal = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{LOOP}"
    process = subprocess.Popen(
        [sys.executable, "-c", of_the_terminal],
        stdin=inside,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    os.close(inside)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.close(terminal)
    said, _ = process.communicate(timeout=20)
    assert (said, process.returncode) == ("saved SIGHUP\n", 75)


def test_under_nohup_a_closed_terminal_is_none() -> None:
    ignoring = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{LOOP}"
    process = subprocess.Popen([sys.executable, "-c", ignoring], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=20)
    assert said == "saved SIGTERM\n"


def test_requests_are_heard_while_the_main_thread_is_inside_a_library() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS_IN_C],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("SIGINT: stopping after this step")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT


def test_outside_signals_are_handled_as_before() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with Preemption() as preemption:
        assert not preemption.requested
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 20
        while not preemption.requested and time.monotonic() < deadline:
            time.sleep(0.01)
        assert preemption.received is signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) is before
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
