"""What the choice of recomputation is told of a method's networks."""

import pytest
import torch

from gc25d.methods.dmd2 import Dmd2Method
from gc25d.methods.finetune import FinetuneMethod
from gc25d.model.zoo import build_model, wan_config
from gc25d.settings.tree import Geometry
from gc25d.train import setup
from gc25d.train.engine import PlainEngine
from gc25d.train.pace import Pace

TOKENS = 3 * 2 * 4  # 9 frames of 64 x 128


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch):
    """Runs the choice for a method; returns the (tokens, bytes) that each network was told."""

    def run(method) -> list[tuple[int, int]]:
        found = []

        def spy(network, *, tokens, state_bytes, **_) -> None:
            found.append((tokens, state_bytes))

        monkeypatch.setattr(setup, "prepare_execution", spy)
        pace = Pace(micro_batch=2, save_every=1, validate_every=1, log_every=1, workers=0)
        engine = PlainEngine("fp32", 1, gpu=False)
        setup.choose_execution(method, engine, Geometry(frames=9, height=64, width=128), pace)
        return found

    return run


def test_all_networks_of_a_method_share_the_memory(told) -> None:
    student, teacher, critic = (build_model(wan_config("tiny", "parts", 8), 0) for _ in range(3))
    one = sum(p.numel() for p in student.parameters())
    assert told(FinetuneMethod(student, seed=0)) == [(2 * TOKENS, 16 * one)]
    method = Dmd2Method(student, teacher.to(torch.bfloat16), critic, seed=0)
    # Two graphs wait for their backward passes; masters, gradients and moments twice, bf16 once.
    assert told(method) == [(4 * TOKENS, 2 * 16 * one + 2 * one)] * 3
