"""A cell made ready to measure: model, batch and method, seeded.

A cell's seed comes from its own name, so a new cell changes no other. Everything is drawn on the
CPU and then moved: every device measures the same numbers.
"""

from dataclasses import asdict, dataclass

import torch
from torch import nn

from gc25d.dataset.batch import Batch
from gc25d.dataset.draws import torch_seed
from gc25d.methods.base import TrainingMethod
from gc25d.methods.roles import STUDENT
from gc25d.model.start import starting_model
from gc25d.model.weights.names import CONDITION_PREFIX
from gc25d.model.zoo import AnyConfig, build_model, named_config
from gc25d.records import digest_json
from gc25d.regression.cells import CHUNK_FRAMES, Cell
from gc25d.regression.methods import build_method
from gc25d.regression.synthetic import synthetic_batch
from gc25d.regression.weights import gains_of, parameter_shapes, randomise
from gc25d.tensors import digest_tensors

PRECISION = {"cpu": torch.float32, "cuda": torch.bfloat16}
"""Arithmetic of the measured pass: what trainings on that kind of device use."""


@dataclass(frozen=True)
class Fixture:
    """What is measured, and the digest of what it is made of."""

    method: TrainingMethod
    batch: Batch
    precision: torch.dtype
    digest: str

    @property
    def transformer(self) -> nn.Module:
        """The student, whose block 0 is measured."""
        return self.method.roles[STUDENT]


def build_fixture(cell: Cell, device: torch.device) -> Fixture:
    """Model, method and batch of a cell on `device`.

    Raises:
        UserError: base weights are missing or do not fit.
    """
    student = build_student(cell, device)
    batch = synthetic_batch(cell.shape, torch_seed(cell.seed, "batch"))
    method = build_method(cell, student, batch)
    for model in method.roles.values():
        model.to(device)
    return Fixture(
        method=method,
        batch=batch.to(device, torch.float32),
        precision=PRECISION[device.type],
        digest=digest_of(cell, student, PRECISION[device.type]),
    )


def build_student(cell: Cell, device: torch.device) -> nn.Module:
    """The measured model, float32; one on base weights lies on `device` from the start."""
    config = student_config(cell)
    if not cell.weights:
        model = build_model(config, cell.seed)
        randomise(model, torch_seed(cell.seed, "weights"))
        return model
    model = starting_model(config, cell.seed, cell.weights, "", device)
    randomise(model, torch_seed(cell.seed, "weights"), CONDITION_PREFIX)
    freeze_all_but_block_zero(model)
    return model


def student_config(cell: Cell) -> AnyConfig:
    """The configuration of the measured model."""
    return named_config(cell.model, cell.size, "parts", cell.shape.text_dim, CHUNK_FRAMES)


def freeze_all_but_block_zero(model: nn.Module) -> None:
    """Block 0's gradients are all that is measured; others would take a large model's memory."""
    measured = {id(p) for p in model.get_submodule("blocks.0").parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in measured)


def digest_of(cell: Cell, student: nn.Module, precision: torch.dtype) -> str:
    """Digest of all that decides what is measured: sizes, seed, arguments, gains, base weights."""
    block = student.get_submodule("blocks.0").state_dict() if cell.weights else {}
    return digest_json(
        {
            "cell": cell.name,
            "shape": asdict(cell.shape),
            "seed": cell.seed,
            "arguments": cell.arguments,
            "config": asdict(student_config(cell)),
            "precision": str(precision),
            "gains": gains_of(student),
            "parameters": parameter_shapes(student),
            "base": digest_tensors(block),
        }
    )
