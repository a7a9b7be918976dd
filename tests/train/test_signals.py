"""Requests to stop: noted, obeyed after the step, and a second one from a terminal at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gc25d.train.signals import Preemption

LOOP = """
import sys, time
from gc25d.train.signals import EXIT_STATUS, Preemption
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


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
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
    assert trainer.returncode == -signal.SIGINT


def test_outside_signals_are_handled_as_before() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with Preemption() as preemption:
        assert not preemption.requested
        os.kill(os.getpid(), signal.SIGUSR1)
        assert preemption.requested
        assert preemption.received is signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) is before
