import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

from gc25d import devices
from gc25d.devices import claimed, claimed_device, shared, shared_device
from gc25d.errors import UserError
from gc25d.gpus import Gpu

GPUS = ("GPU-aa", "GPU-bb", "GPU-cc")


def TWO(index, place):
    return place < 2


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
    holder = "import time; from pathlib import Path; from gc25d.devices import claimed\n"
    holder += "with claimed(['GPU-aa'], Path({!r}), 0): print('held', flush=True); time.sleep({})"
    code = holder.format(str(tmp_path), 0.3)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="by other jobs"), claimed(GPUS[:1], tmp_path, 0):
            pass
        with claimed(GPUS[:1], tmp_path, 20) as index:
            assert index == 0


def test_a_killed_job_frees_its_gpu(tmp_path):
    code = "import time; from pathlib import Path; from gc25d.devices import claimed\n"
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


def test_sharing_jobs_spread_and_then_fill_what_fits(tmp_path):
    with ExitStack() as first, ExitStack() as rest:
        assert first.enter_context(shared(GPUS, tmp_path, 0, TWO)) == 0
        taken = [rest.enter_context(shared(GPUS, tmp_path, 0, TWO)) for _ in range(5)]
        assert taken == [1, 2, 0, 1, 2]
        with pytest.raises(UserError, match="all 3 visible GPUs are claimed"):
            rest.enter_context(shared(GPUS, tmp_path, 0.1, TWO))
        first.close()
        assert rest.enter_context(shared(GPUS, tmp_path, 0, TWO)) == 0


def test_a_shared_gpu_is_nobodys_alone_and_the_other_way_round(tmp_path):
    """Whichever of the sharing jobs is left: the first one to come may have ended."""
    with ExitStack() as first, ExitStack() as second, ExitStack() as alone:
        first.enter_context(shared(GPUS[:1], tmp_path, 0, TWO))
        second.enter_context(shared(GPUS[:1], tmp_path, 0, TWO))
        first.close()
        with pytest.raises(UserError), claimed(GPUS[:1], tmp_path, 0.1):
            pass
        assert alone.enter_context(claimed(GPUS[:2], tmp_path, 0)) == 1
        second.close()
        with (
            claimed(GPUS[:1], tmp_path, 0),
            pytest.raises(UserError),
            shared(GPUS[:2], tmp_path, 0.1, TWO),
        ):
            pass


def test_nobody_joins_a_gpu_that_another_waits_to_have_alone(tmp_path):
    """Else sharing jobs, each followed by the next, would keep it waiting for ever."""
    with ExitStack() as sharing, ThreadPoolExecutor(1) as pool:
        sharing.enter_context(shared(GPUS[:1], tmp_path, 0, TWO))

        def alone():
            with claimed(GPUS[:1], tmp_path, 20):
                return True

        waiting = pool.submit(alone)
        time.sleep(0.4)
        with pytest.raises(UserError), shared(GPUS[:1], tmp_path, 0.3, TWO):
            pass
        assert not waiting.done()
        sharing.close()
        assert waiting.result(timeout=10)
    with shared(GPUS[:1], tmp_path, 5, TWO) as index:
        assert index == 0


def test_a_gpu_that_somebody_has_alone_is_not_looked_at(tmp_path):
    """How much of its memory is free says nothing then."""
    asked = []
    with claimed(GPUS[:1], tmp_path, 0):
        fits = lambda index, place: asked.append(index) or True  # noqa: E731
        with shared(GPUS[:2], tmp_path, 0, fits) as index:
            assert index == 1
    assert set(asked) == {1}


def test_whoever_shares_waits_until_a_gpu_is_nobodys_alone(tmp_path):
    with ExitStack() as alone, ThreadPoolExecutor(1) as pool:
        alone.enter_context(claimed(GPUS[:1], tmp_path, 0))

        def job():
            with shared(GPUS[:1], tmp_path, 20, TWO) as index:
                return index

        waiting = pool.submit(job)
        time.sleep(0.3)
        assert not waiting.done()
        alone.close()
        assert waiting.result(timeout=10) == 0


def test_a_killed_job_gives_its_place_back(tmp_path):
    code = "import time; from pathlib import Path; from gc25d.devices import shared\n"
    code += (
        f"with shared(['GPU-aa'], Path({str(tmp_path)!r}), 0, lambda index, place: not place):\n"
    )
    code += "    print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UserError), claimed(GPUS[:1], tmp_path, 0):
            pass
        process.kill()
        process.wait()
        with claimed(GPUS[:1], tmp_path, 5) as index:
            assert index == 0


def test_many_jobs_of_both_kinds(tmp_path):
    """On two GPUs: at most two share one, and nobody beside whoever has it alone."""
    sharing, alone, clashes = [0, 0], [0, 0], []

    def look(index):
        clashes.append(sharing[index] > 2 or alone[index] > 1 or (sharing[index] and alone[index]))

    def share(number):
        with shared(GPUS[:2], tmp_path, 30, TWO) as index:
            sharing[index] += 1
            look(index)
            time.sleep(0.02)
            look(index)
            sharing[index] -= 1

    def take(number):
        with claimed(GPUS[:2], tmp_path, 30) as index:
            alone[index] += 1
            look(index)
            time.sleep(0.02)
            look(index)
            alone[index] -= 1

    with ThreadPoolExecutor(9) as pool:
        for done in [pool.submit((share, share, take)[i % 3], i) for i in range(18)]:
            done.result()
    assert not any(clashes)
    assert len(clashes) == 36


def test_without_a_gpu_it_is_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with claimed_device(tmp_path / "locks") as device:
        assert device == "cpu"
    with shared_device(1, tmp_path / "locks") as device:
        assert device == "cpu"
    assert not (tmp_path / "locks").exists()


@pytest.fixture
def current(monkeypatch):
    """Two pretended GPUs of 25 bytes, 11 of them free; lists what is made the current device.

    All else that torch would say of GPUs opens a context first, and fails here.
    """

    def opens_a_context(*_):
        raise AssertionError("a CUDA context was opened")

    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", opens_a_context)
    monkeypatch.setattr(torch.cuda, "device", lambda index: chosen.append(index) or ExitStack())
    monkeypatch.setattr(devices, "visible_gpus", lambda: [Gpu(s, 25) for s in GPUS[:2]])
    monkeypatch.setattr(devices, "free_memory", lambda gpu: 11)
    return chosen


def test_devices_are_told_apart_by_serial_number(tmp_path, current):
    with claimed_device(tmp_path) as one, claimed_device(tmp_path) as other:
        assert (one, other) == ("cuda:0", "cuda:1")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["GPU-aa.lock", "GPU-bb.lock"]
    assert current == [0, 1]


def test_jobs_that_wait_have_no_context(tmp_path, current):
    """The device is made current, which opens one later, once a place is held."""
    with claimed_device(tmp_path), claimed_device(tmp_path):
        with pytest.raises(UserError, match="all 2 visible GPUs"), claimed_device(tmp_path, 0.3):
            pass
        with pytest.raises(UserError, match="all 2 visible GPUs"), shared_device(1, tmp_path, 0.3):
            pass
    assert current == [0, 1]


def test_whoever_shares_has_room_in_all_and_in_what_is_free(tmp_path, current, monkeypatch):
    with claimed_device(tmp_path) as one, shared_device(10, tmp_path) as other:
        assert (one, other) == ("cuda:0", "cuda:1")
        with shared_device(10, tmp_path) as beside:  # two of 10 fit into 25
            assert beside == "cuda:1"
            with pytest.raises(UserError), shared_device(10, tmp_path, 0.1):  # not three
                pass
        with pytest.raises(UserError), shared_device(12, tmp_path, 0.1):  # others hold the rest
            pass
        monkeypatch.setattr(devices, "free_memory", lambda gpu: None)
        with shared_device(12, tmp_path) as beside:  # nobody knows of others
            assert beside == "cuda:1"
        with pytest.raises(UserError), shared_device(13, tmp_path, 0.1):
            pass
    assert current == [0, 1, 1, 1]
