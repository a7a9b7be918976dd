"""The training method of each cell, with the tiny teachers, critics and paths that it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch
from gc25d.dataset.draws import torch_seed
from gc25d.methods.base import TrainingMethod
from gc25d.methods.dfsft import DfsftMethod
from gc25d.methods.distill import DistillConfig
from gc25d.methods.dmd2 import Dmd2Method
from gc25d.methods.finetune import FinetuneMethod
from gc25d.methods.kd import KdMethod
from gc25d.methods.self_forcing import SelfForcingMethod
from gc25d.model.wan.causal import CausalWanModel
from gc25d.model.zoo import build_model, wan_config
from gc25d.regression.cells import CHUNK_FRAMES, Cell
from gc25d.regression.weights import randomise
from gc25d.sampling.euler import OdePlan, path_noise, solve
from gc25d.sampling.guidance import Guidance, NullPrompt

Builder = Callable[[Cell, nn.Module, Batch], TrainingMethod]


@dataclass(frozen=True)
class HeldPaths:
    """Paths in memory, rounded as the cache's files round them."""

    paths: Tensor
    """[B, K + 1, C, F, h, w], by the batch's indices."""

    def read(self, index: int) -> Tensor:
        """The path of clip `index`, bf16 [K + 1, C, F, h, w]."""
        return self.paths[index].to(torch.bfloat16)


def build_method(cell: Cell, student: nn.Module, batch: Batch) -> TrainingMethod:
    """The method of a cell on the CPU, with `student` as its first role."""
    return BUILDERS[cell.method](cell, student, batch)


def helper(cell: Cell, role: str) -> nn.Module:
    """A tiny `wan` model with weights of its own for a further role."""
    model = build_model(wan_config("tiny", "parts", cell.shape.text_dim), cell.seed)
    randomise(model, torch_seed(cell.seed, role))
    return model


def guidance(cell: Cell) -> Guidance:
    """Text and semantic guidance, with an empty prompt of one token."""
    shape, generator = cell.shape, torch.Generator().manual_seed(torch_seed(cell.seed, "null"))
    embedding = torch.zeros(shape.text_len, shape.text_dim)
    embedding[0] = torch.randn(shape.text_dim, generator=generator)
    scales = cell.arguments
    return Guidance(scales["cfg"], scales["sem_cfg"], NullPrompt(embedding, 1))


def _finetune(cell: Cell, student: nn.Module, _: Batch) -> TrainingMethod:
    return FinetuneMethod(student, seed=cell.seed)


def _dfsft(cell: Cell, student: nn.Module, _: Batch) -> TrainingMethod:
    return DfsftMethod(student, seed=cell.seed, **cell.arguments)


def _kd(cell: Cell, student: nn.Module, batch: Batch) -> TrainingMethod:
    given = cell.arguments
    plan = OdePlan(given["teacher_steps"], given["denoising_steps"], given["shift"])
    noise = path_noise(cell.seed, batch.indices, batch.latents.shape[1:])
    teacher = helper(cell, "teacher").eval()
    paths = solve(teacher, batch, noise, plan, guidance(cell))
    chunked = isinstance(student, CausalWanModel)
    return KdMethod(
        student,
        HeldPaths(paths),
        plan.student_timesteps,
        seed=cell.seed,
        chunk_frames=CHUNK_FRAMES if chunked else None,
    )


def _distill(cell: Cell, student: nn.Module, _: Batch) -> TrainingMethod:
    given = cell.arguments
    config = DistillConfig(given["denoising_steps"], given["shift"], guidance=guidance(cell))
    others: dict[str, Any] = {"seed": cell.seed, "config": config}
    teacher, critic = helper(cell, "teacher"), helper(cell, "critic")
    if cell.method == "self_forcing":
        return SelfForcingMethod(cast(CausalWanModel, student), teacher, critic, **others)
    return Dmd2Method(student, teacher, critic, **others)


BUILDERS: dict[str, Builder] = {
    "finetune": _finetune,
    "dfsft": _dfsft,
    "kd": _kd,
    "dmd2": _distill,
    "self_forcing": _distill,
}
"""Method → how its cells build it."""
