"""Run by two processes (test_fsdp.py): a method whose networks FSDP2 shards, on gloo, with DCP.

Arguments: rank, file of the store, folder of the checkpoint. Prints what it found as JSON.
"""

import json
import sys
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import FileStore, destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gc25d.methods.base import LossMap, Metrics, Outputs, TrainingMethod
from gc25d.methods.roles import OptimizerConfig, trainable_role
from gc25d.regression.gradnorm import grad_norm

CONFIG = OptimizerConfig(lr=0.1, cond_lr=0.1, weight_decay=0.0, warmup_steps=0)


class Pair(TrainingMethod):
    """A student that learns at even iterations and a critic that always does; mean squares."""

    loss_roles: ClassVar[dict[str, str]] = {"generator_loss": "student", "critic_loss": "critic"}

    def stepping_roles(self, iteration: int) -> tuple[str, ...]:
        return ("critic",) if iteration % 2 else ("student", "critic")

    def single_train_step(
        self, batch: torch.Tensor, iteration: int
    ) -> tuple[LossMap, Outputs, Metrics]:
        names = {"student": "generator_loss", "critic": "critic_loss"}
        roles = self.stepping_roles(iteration)
        return {names[r]: self.roles[r](batch).square().mean() for r in roles}, {}, {}


def pair(seed: int, *, sharded: bool) -> Pair:
    """Two networks of the same weights for a seed, cut in two by rows or whole."""
    torch.manual_seed(seed)
    models = {
        name: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)) for name in ("student", "critic")
    }
    if sharded:
        mesh = init_device_mesh("cpu", (2,))
        for model in models.values():
            fully_shard(model, mesh=mesh)
    return Pair(0, {name: trainable_role(model, CONFIG) for name, model in models.items()})


def step(method: Pair, iteration: int, inputs: list[torch.Tensor]) -> list[bool]:
    """As the trainer's loop; whether the critic's gradients were there after each micro-batch."""
    method.optimizers_zero_grad(iteration)
    reduced = []
    for number, batch in enumerate(inputs):
        last = number == len(inputs) - 1
        method.set_is_last_backward(last, iteration)
        method.set_requires_gradient_sync(last, iteration)
        losses, outputs, _ = method.single_train_step(batch, iteration)
        method.backward(losses, outputs, len(inputs))
        reduced.append(all(p.grad is not None for p in method.roles["critic"].parameters()))
    return reduced


def norms(method: Pair, iteration: int) -> list[float]:
    return [grad_norm(p) for p in method.get_grad_clip_targets(iteration).values()]


def weights(method: Pair) -> list[float]:
    """All of them, gathered."""
    parameters = [p for model in method.roles.values() for p in model.parameters()]
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parameters]
    return torch.cat([w.detach().flatten() for w in whole]).tolist()


def main(rank: int, folder: Path) -> dict[str, object]:
    """Both processes see all inputs, so that their mean is that of one process."""
    draw = torch.Generator().manual_seed(5)
    inputs = [[torch.randn(3, 4, generator=draw) for _ in range(3)] for _ in range(4)]
    method, alone = pair(1, sharded=True), pair(1, sharded=False)
    reduced, found, expected = [], [], []
    for iteration in range(2):
        reduced.append(step(method, iteration, inputs[iteration]))
        step(alone, iteration, inputs[iteration])
        found += norms(method, iteration)
        expected += norms(alone, iteration)
        method.optimizers_schedulers_step(iteration)
        alone.optimizers_schedulers_step(iteration)
    dcp.save(method.checkpoint_state(), checkpoint_id=folder)
    resumed = pair(9, sharded=True)
    resumed.seed_optimizer_state_for_resume()
    dcp.load(resumed.checkpoint_state(), checkpoint_id=folder)
    ways = []
    for iteration in range(2, 4):
        for way in (method, resumed, alone):
            step(way, iteration, inputs[iteration])
            way.optimizers_schedulers_step(iteration)
        ways.append([weights(way) for way in (method, resumed, alone)])
    return {"reduced": reduced, "norms": [found, expected], "weights": ways}


if __name__ == "__main__":
    rank = int(sys.argv[1])
    torch.set_num_threads(1)
    init_process_group("gloo", store=FileStore(sys.argv[2], 2), rank=rank, world_size=2)
    print(json.dumps(main(rank, Path(sys.argv[3]))))
    destroy_process_group()
