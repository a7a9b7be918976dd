"""Gradients that processes hold in parts give the norm of one process that holds them whole."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gc25d.methods.finetune import FinetuneMethod
from gc25d.model.zoo import build_model, wan_config
from gc25d.regression.gradnorm import block_zero, grad_norm
from gc25d.regression.synthetic import BatchShape, synthetic_batch
from gc25d.regression.weights import randomise

SHAPE = BatchShape(batch=2, frames=2, height=4, width=4, text_dim=16, text_len=8)

COMMON = """
import dataclasses
import os
import sys
from datetime import timedelta

import torch
from torch import distributed

from gc25d.dataset.batch import Batch
from gc25d.methods.finetune import FinetuneMethod
from gc25d.model.zoo import build_model, wan_config
from gc25d.regression.gradnorm import block_zero, grad_norm
from gc25d.regression.synthetic import BatchShape, synthetic_batch
from gc25d.regression.weights import randomise

torch.set_num_threads(1)
shape = BatchShape(batch=2, frames=2, height=4, width=4, text_dim=16, text_len=8)
model = build_model(wan_config("tiny", "parts", 16), 0)
randomise(model, 1)
rank = int(os.environ["RANK"])

def part(batch: Batch) -> Batch:
    '''The sample of this process.'''
    own = slice(rank, rank + 1)
    return dataclasses.replace(
        batch,
        latents=batch.latents[own],
        context_ids=batch.context_ids[own],
        sem_ids=batch.sem_ids[own],
        clip_ids=batch.clip_ids[own],
        epochs=batch.epochs[own],
        indices=batch.indices[own],
        dropped=batch.dropped[own],
    )
"""

FSDP2 = (
    COMMON
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

distributed.init_process_group("gloo", timeout=timedelta(minutes=2))
mesh = init_device_mesh("cpu", (2,))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
method = FinetuneMethod(model, seed=3)
losses, outputs, _ = method.single_train_step(part(synthetic_batch(shape, 2)), 0)
method.backward(losses, outputs, 1)
gradient = model.blocks[0].self_attn.q.weight.grad
assert gradient.to_local().shape == (96, 192)
print("norm", grad_norm(block_zero(model)))
distributed.destroy_process_group()
"""
)

ZERO2 = (
    COMMON
    + """
import warnings
warnings.simplefilter("ignore")
import deepspeed

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
config = {
    "train_micro_batch_size_per_gpu": 1,
    "train_batch_size": 2,
    "zero_optimization": {"stage": 2, "overlap_comm": False},
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": False},
}
method = FinetuneMethod(model, seed=3)
engine, optimizer, _, _ = deepspeed.initialize(
    model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config,
    dist_init_required=True,
)
method.replace_role("student", engine, optimizer)
method.run_backward = engine.backward
losses, outputs, _ = method.single_train_step(part(synthetic_batch(shape, 2)), 0)
method.backward(losses, outputs, 1)
assert all(p.grad is None for p in block_zero(engine))
print("norm", grad_norm(block_zero(engine)))
"""
)


def whole_norm() -> float:
    model = build_model(wan_config("tiny", "parts", 16), 0)
    randomise(model, 1)
    method = FinetuneMethod(model, seed=3)
    losses, outputs, _ = method.single_train_step(synthetic_batch(SHAPE, 2), 0)
    method.backward(losses, outputs, 1)
    return grad_norm(block_zero(model))


def norms_of_two(code: str, tmp_path: Path, environment: dict[str, str]) -> list[float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "rank.py"
    script.write_text(code)
    shared = {
        **environment,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=240) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said[0][1][-2000:]
    lines = [out.splitlines() for out, _ in said]
    return [float(line.split()[1]) for text in lines for line in text if line.startswith("norm ")]


@pytest.mark.slow
@pytest.mark.parametrize("code", [FSDP2, ZERO2], ids=["fsdp2", "zero2"])
def test_two_processes_give_the_norm_of_one(code, tmp_path):
    """Each process has one of the two samples; gradients are averaged over them."""
    found = norms_of_two(code, tmp_path, dict(os.environ))
    expected = whole_norm()
    assert torch.isfinite(torch.tensor(expected))
    assert found == pytest.approx([expected, expected], rel=1e-5)
