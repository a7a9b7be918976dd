import json
import sys

import pytest
import torch

from gc25d.methods.finetune import FinetuneMethod
from gc25d.model.wan.transformer import WanModel


@pytest.mark.slow
def test_two_processes_step_save_and_load(monkeypatch, tmp_path):
    """The script itself refuses a loaded state that is not the saved one."""
    pytest.importorskip("deepspeed")
    from bench.training import zero2_step

    command = ["zero2_step.py", "--device", "cpu", "--tiny", "--processes", "2", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path)])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    zero2_step.main()
    found = json.loads((tmp_path / "zero2-step-CPU-x2.json").read_text())
    assert found["processes"] == 2
    taken = found["seconds"]
    assert 0 < taken["step"] < taken["first step"]
    assert 0 < taken["best by itself"] <= taken["a step by itself"]
    assert 0 < taken["stall of a save"] < taken["until whole"]
    assert {"first step", "first step, warm cache", "load", "step while writing"} < set(taken)


def test_a_steps_samples_weigh_one_over_all_processes():
    from bench.common.micro import chosen_size
    from bench.training import zero2_step

    class Second:
        rank, world_size, device = 1, 4, torch.device("cpu")

    size = chosen_size(tiny=True)
    feed = zero2_step.samples(size, Second(), FinetuneMethod(WanModel(size.config), seed=0))
    parts = [next(feed) for _ in range(4)]
    assert [part.share for part in parts] == [1 / 8] * 4
    assert [part.last for part in parts] == [False, True, False, True]
    assert not torch.equal(parts[0].batch.latents, parts[1].batch.latents)
    assert all(part.batch.draws is not None for part in parts)
