"""Toy networks whose gradients are known by hand, and what trains them through an engine."""

import itertools
import math

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gc25d.dataset.batch import Batch
from gc25d.methods.base import TOTAL_LOSS, LossMap, Metrics, Outputs, TrainingMethod
from gc25d.methods.roles import STUDENT, TrainedRole
from gc25d.train.feed import MicroBatch
from gc25d.train.loop import Cadence, Segment
from gc25d.train.zero.engine import ZeroEngine

MICRO_BATCHES = 4
SHARE = 1 / (2 * MICRO_BATCHES)
ZERO = torch.zeros(())
METRICS = ("loss", "mse", "timestep", "sem_rms", "x_rms")


class Slope(nn.Module):
    """Weights [4]; the loss slope · weights[0] has the gradient (slope, 0, 0, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4]))

    def forward(self, slope: Tensor) -> Tensor:
        return (self.weights * torch.tensor([1.0, 0.0, 0.0, 0.0])).sum() * slope


class Twice(nn.Module):
    """One layer applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        with torch.no_grad():
            self.layer.weight.copy_(torch.linspace(-1, 1, 36).reshape(6, 6))
            self.layer.bias.copy_(torch.linspace(-1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x.to(self.layer.weight.dtype))).float().square().mean()


class Wide(nn.Sequential):
    """15 M weights; tensors smaller and larger than a bucket of 3 M."""

    def __init__(self) -> None:
        widths = [1024] * 8 + [4096, 1024]
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(widths)]
        super().__init__(*(module for layer in layers for module in (layer, nn.Tanh())))
        draw = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.03, generator=draw)

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self[0].weight
        return super().forward(x.to(weight.dtype)).float().square().mean()


class Weighed(nn.Module):
    """x · (1·w_0 + 2·w_1 + …): the gradient of the k-th weight of all is k · x, exactly.

    19 weights of the first two tensors go into one optimizer group, 7 of the third into another, so
    that tensors start in the middle of a group, and a process's part in the middle of a tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        shapes, numbers = {"a": (5,), "b": (2, 7), "c": (7,)}, iter(range(1, 27))
        for name, shape in shapes.items():
            setattr(
                self, name, nn.Parameter(torch.linspace(0.5, 1.5, math.prod(shape)).view(shape))
            )
            factors = torch.tensor([float(next(numbers)) for _ in range(math.prod(shape))])
            self.register_buffer(f"of_{name}", factors.view(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * sum((getattr(self, f"of_{name}") * getattr(self, name)).sum() for name in "abc")


class Toy(TrainingMethod):
    """A network whose output is its loss; a batch's latents are its input."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        optimizer = optimizer or SGD(model.parameters(), lr=1.0)
        scheduler = LambdaLR(optimizer, lambda step: 1.0)
        rates = tuple(scheduler.base_lrs)
        role = TrainedRole(model, optimizer=optimizer, scheduler=scheduler, configured_lrs=rates)
        super().__init__(0, {STUDENT: role})

    def single_train_step(self, batch: Batch, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        loss = self.roles[STUDENT](batch.latents)
        return {TOTAL_LOSS: loss}, {}, dict.fromkeys(METRICS, loss.detach().float())


def micro_batches(inputs: list[Tensor], rank: int) -> list[MicroBatch]:
    """One sample each."""
    dropped = [{"text": False, "cond": False, "mask": 0.0}]
    return [
        MicroBatch(
            0,
            0,
            SHARE,
            i == len(inputs) - 1,
            Batch(
                latents=x,
                prompts=ZERO,
                prompt_lengths=ZERO,
                context_ids=ZERO,
                sem_ids=ZERO,
                clip_ids=[f"clip-{rank}-{i}"],
                epochs=[0],
                indices=[i],
                dropped=dropped,
            ),
        )
        for i, x in enumerate(inputs)
    ]


def segment(method: TrainingMethod, engine: ZeroEngine, max_norm: float) -> Segment:
    return Segment(
        method,
        engine,
        validation=None,
        cadence=Cadence(1, 1, 1),
        grad_clip=max_norm,
        save=lambda step: None,
        asked_to_stop=lambda: engine.rank == 1,
    )
