import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from gc25d.devices_claim import claimed, claimed_device
from gc25d.errors import UserError

GPUS = ("GPU-aa", "GPU-bb", "GPU-cc")


def test_jobs_get_distinct_gpus_and_freed_ones_are_given_again(tmp_path):
    with ExitStack() as first, ExitStack() as rest:
        assert first.enter_context(claimed(GPUS, tmp_path, 0)) == 0
        assert [rest.enter_context(claimed(GPUS, tmp_path, 0)) for _ in range(2)] == [1, 2]
        with pytest.raises(UserError, match="all 3 visible GPUs are claimed by other jobs"):
            rest.enter_context(claimed(GPUS, tmp_path, 0.1))
        first.close()
        assert rest.enter_context(claimed(GPUS, tmp_path, 0)) == 0


def test_the_same_gpu_under_another_number_is_known(tmp_path):
    """CUDA_VISIBLE_DEVICES renumbers: the second job sees two of them in another order."""
    with claimed(GPUS, tmp_path, 0) as one, claimed(("GPU-aa", "GPU-cc"), tmp_path, 0) as other:
        assert (one, other) == (0, 1)


def test_a_job_waits_until_a_gpu_is_freed(tmp_path):
    holder = "import time; from pathlib import Path; from gc25d.devices_claim import claimed\n"
    holder += "with claimed(['GPU-aa'], Path({!r}), 0): print('held', flush=True); time.sleep({})"
    code = holder.format(str(tmp_path), 0.3)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="by other jobs"), claimed(GPUS[:1], tmp_path, 0):
            pass
        with claimed(GPUS[:1], tmp_path, 20) as index:
            assert index == 0


def test_a_killed_job_frees_its_gpu(tmp_path):
    code = "import time; from pathlib import Path; from gc25d.devices_claim import claimed\n"
    code += f"with claimed(['GPU-aa'], Path({str(tmp_path)!r}), 0):\n"
    code += "    print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        process.kill()
        process.wait()
        with claimed(GPUS[:1], tmp_path, 5) as index:
            assert index == 0


def test_many_jobs_at_once(tmp_path):
    """Nine jobs on three GPUs: all finish, and no GPU is ever used by two at once."""
    busy, clashes = set(), []

    def job():
        with claimed(GPUS, tmp_path, 30) as index:
            clashes.append(index in busy)
            busy.add(index)
            time.sleep(0.02)
            busy.remove(index)

    with ThreadPoolExecutor(9) as pool:
        for done in [pool.submit(job) for _ in range(9)]:
            done.result()
    assert clashes == [False] * 9


def test_without_a_gpu_it_is_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with claimed_device(tmp_path / "locks") as device:
        assert device == "cpu"
    assert not (tmp_path / "locks").exists()


def test_devices_are_told_apart_by_serial_number(tmp_path, monkeypatch):
    """Two pretended GPUs; the current device is recorded instead of set."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=GPUS[index])
    )
    monkeypatch.setattr(torch.cuda, "device", lambda index: current.append(index) or ExitStack())
    with claimed_device(tmp_path) as one, claimed_device(tmp_path) as other:
        assert (one, other) == ("cuda:0", "cuda:1")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["GPU-aa.lock", "GPU-bb.lock"]
        with pytest.raises(UserError, match="all 2 visible GPUs"), claimed_device(tmp_path, 0):
            pass
    assert current == [0, 1]
