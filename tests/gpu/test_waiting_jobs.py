"""GPUs as the driver lists them are torch's own, and a job that waits for one has no context."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gc25d.devices import claimed
from gc25d.gpus import Gpu, visible_gpus

pytestmark = pytest.mark.gpu

# What we are told comes first: torch opens a context to answer.
LISTED = """
import json, torch
from gc25d.gpus import free_memory, visible_gpus
ours = [(gpu.serial, gpu.total_memory, free_memory(gpu)) for gpu in visible_gpus()]
assert not torch.cuda.is_initialized()
own = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
free = [torch.cuda.mem_get_info(i)[0] for i in range(len(own))]
theirs = [(str(p.uuid), p.total_memory, f) for p, f in zip(own, free, strict=True)]
print(json.dumps([ours, theirs]))
"""
WAITING = """
import ctypes, sys, threading, torch
from pathlib import Path
from gc25d.devices import claimed_device, shared_device
from gc25d.gpus import free_memory, visible_gpus

def contexts():
    driver, flags, active = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int()
    found = 0
    for index, gpu in enumerate(visible_gpus()):
        free_memory(gpu)
        device = ctypes.c_int()
        assert driver.cuDeviceGet(ctypes.byref(device), index) == 0
        state = (ctypes.byref(flags), ctypes.byref(active))
        assert driver.cuDevicePrimaryCtxGetState(device, *state) == 0
        found += active.value
    return found

def job():
    locks = Path(sys.argv[2])
    with claimed_device(locks) if sys.argv[1] == "alone" else shared_device(1, locks) as device:
        torch.zeros(1, device=device)
        print("works", contexts(), flush=True)
        sys.stdin.readline()

worker = threading.Thread(target=job)
worker.start()
worker.join(2)
print("waits", contexts(), flush=True)
worker.join()
"""


def child(program: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )


def listed(**variables: str) -> list[list[list[Any]]]:
    """[serial number, bytes, free bytes] of each visible GPU: ours, torch's."""
    said, _ = child(LISTED, **variables).communicate(timeout=120)
    return json.loads(said)


def computing() -> set[int]:
    """The processes that nvidia-smi names; in a container perhaps by numbers from outside."""
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {int(line) for line in said.split() if line.isdecimal()}


@contextlib.contextmanager
def all_held(gpus: list[Gpu], locks: Path) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        for gpu in gpus:
            held.enter_context(claimed([gpu.serial], locks, 0))
        yield


def test_gpus_and_their_memory_are_what_torch_says() -> None:
    ours, theirs = listed()
    assert ours
    assert [gpu[:2] for gpu in ours] == [gpu[:2] for gpu in theirs]
    for (_, total, free), (_, _, expected) in zip(ours, theirs, strict=True):
        assert free == pytest.approx(expected, abs=total / 10)  # other tests may run beside


def test_what_is_visible_has_torchs_numbers() -> None:
    serials = [f"GPU-{gpu.serial}" for gpu in visible_gpus()]
    for value, expected in {
        ",".join(reversed(serials)): serials[::-1],
        serials[-1][:12]: serials[-1:],
        "0": None,
    }.items():
        ours, theirs = listed(CUDA_VISIBLE_DEVICES=value)
        assert [gpu[:2] for gpu in ours] == [gpu[:2] for gpu in theirs]
        assert expected in (None, [f"GPU-{serial}" for serial, *_ in ours])


@pytest.mark.parametrize("way", ["alone", "shared"])
def test_a_job_that_waits_has_no_context(way: str, tmp_path: Path) -> None:
    with all_held(visible_gpus(), tmp_path):
        job = child(WAITING, way, str(tmp_path))
        assert job.stdin is not None
        assert job.stdout is not None
        assert job.stdout.readline() == "waits 0\n"
        assert job.pid not in computing()
    assert job.stdout.readline() == "works 1\n"
    said, _ = job.communicate("\n", timeout=60)
    assert (said, job.returncode) == ("", 0)
