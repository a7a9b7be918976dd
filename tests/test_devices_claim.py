import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from gc25d.devices_claim import claimed, claimed_device, reserved, reserved_device
from gc25d.errors import UserError

GPUS = ("GPU-aa", "GPU-bb", "GPU-cc")


def ROOM(index):
    return True


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


def test_one_job_a_gpu_makes_ready_behind_the_one_that_works(tmp_path):
    with ExitStack() as working, ExitStack() as others:
        index, claim = working.enter_context(reserved(GPUS[:2], tmp_path, 0, ROOM))
        claim()  # nothing to wait for
        assert index == 0
        # A free GPU is taken before a place behind somebody.
        assert others.enter_context(reserved(GPUS[:2], tmp_path, 0, ROOM))[0] == 1
        behind, turn = others.enter_context(reserved(GPUS[:2], tmp_path, 5, ROOM))
        assert behind == 0
        assert others.enter_context(reserved(GPUS[:2], tmp_path, 0, ROOM))[0] == 1
        with pytest.raises(UserError, match="all 2 visible GPUs are claimed"):
            others.enter_context(reserved(GPUS[:2], tmp_path, 0.1, ROOM))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(turn)
            time.sleep(0.2)
            assert not waiting.done()
            working.close()
            waiting.result(timeout=5)
        # It works now, and the place behind it is free again.
        with pytest.raises(UserError), claimed(GPUS[:1], tmp_path, 0):
            pass
        assert others.enter_context(reserved(GPUS[:2], tmp_path, 0, ROOM))[0] == 0


def test_whoever_waits_goes_before_whoever_comes(tmp_path):
    """A free GPU that a job is making ready for is not taken from under it."""
    with ExitStack() as first, ExitStack() as rest:
        first.enter_context(reserved(GPUS[:1], tmp_path, 0, ROOM))
        _, turn = rest.enter_context(reserved(GPUS[:1], tmp_path, 0, ROOM))
        first.close()
        with pytest.raises(UserError), reserved(GPUS[:1], tmp_path, 0.1, ROOM):
            pass
        turn()
        turn()  # once more changes nothing


def test_nobody_waits_behind_another_kind_of_job_or_where_there_is_no_room(tmp_path):
    """An evaluation may take an hour: whichever GPU gets free first is taken instead."""
    with ExitStack() as evaluation, ExitStack() as prep, ExitStack() as rest:
        evaluation.enter_context(claimed(GPUS[:1], tmp_path, 0))
        assert prep.enter_context(reserved(GPUS[:2], tmp_path, 0, ROOM))[0] == 1
        with pytest.raises(UserError), reserved(GPUS[:2], tmp_path, 0.1, lambda index: index == 0):
            pass
        assert rest.enter_context(reserved(GPUS[:2], tmp_path, 0, ROOM))[0] == 1
        with pytest.raises(UserError), reserved(GPUS[:2], tmp_path, 0.1, ROOM):
            pass
        evaluation.close()
        assert rest.enter_context(reserved(GPUS[:2], tmp_path, 0, ROOM))[0] == 0


def test_many_jobs_make_ready_and_work(tmp_path):
    """Eight jobs on two GPUs: no GPU is worked on by two at once, and at most one waits ready."""
    working, ready, clashes = [0, 0], [0, 0], []

    def job():
        with reserved(GPUS[:2], tmp_path, 30, ROOM) as (index, claim):
            ready[index] += 1
            clashes.append(ready[index] > 2)
            time.sleep(0.01)
            claim()
            working[index] += 1
            clashes.append(working[index] > 1)
            time.sleep(0.02)
            working[index] -= 1
            ready[index] -= 1

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(job) for _ in range(8)]:
            done.result()
    assert clashes == [False] * 16


def test_without_a_gpu_it_is_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with claimed_device(tmp_path / "locks") as device:
        assert device == "cpu"
    with reserved_device(0, tmp_path / "locks") as place:
        place.claim()
        assert place.device == "cpu"
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
    with claimed_device(tmp_path) as one, reserved_device(0, tmp_path) as place:
        assert (one, place.device) == ("cuda:0", "cuda:1")
    assert current == [0, 1, 0, 1]
