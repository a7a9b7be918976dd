"""The seeded synthetic input of each (model, method) cell: model, batch and method, all small.

A cell's seed comes from its own name, so a new cell changes no other. Everything is drawn on the
CPU and then moved: every device measures the same numbers.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch
from gc25d.dataset.clips import Dropped
from gc25d.dataset.draws import torch_seed
from gc25d.methods.base import TrainingMethod
from gc25d.methods.finetune import FinetuneMethod
from gc25d.model.zoo import build_model, wan_config
from gc25d.records import digest_json

CHANNELS = 48
KNOWN_IDS = (0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 255)
PRECISION = {"cpu": torch.float32, "cuda": torch.bfloat16}
"""Arithmetic of the measured pass: what trainings on that kind of device use."""

PROMPT_STD = 3.0
GAINS = {
    "gc_sem_cond.proj_in.weight": 5.0,
    "gc_sem_cond.proj_mid.weight": 3.0,
    "gc_sem_cond.proj_out.weight": 3.0,
    "cross_attn.o.weight": 3.0,
}
"""Louder than the other weights, so that losing the condition or the text moves the norm by more
than any sensible tolerance (at equal loudness it moved by one or two percent)."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a fixture: B samples of F latent frames of h × w cells, P prompts of L tokens."""

    batch: int = 2
    frames: int = 3
    height: int = 6
    width: int = 10
    prompts: int = 3
    text_len: int = 16
    text_dim: int = 32


@dataclass(frozen=True)
class Cell:
    """One (model, method) pair. `rtol` None takes the configured tolerance."""

    model: str
    method: str
    build: Callable[[nn.Module, int], TrainingMethod]
    size: str = "tiny"
    shape: Shape = Shape()
    rtol: float | None = None

    @property
    def name(self) -> str:
        """`<model>/<method>`, the key in `refs/<DEVICE>.json`."""
        return f"{self.model}/{self.method}"

    @property
    def seed(self) -> int:
        """A function of the cell's name alone."""
        return torch_seed(0, f"gradnorm {self.name}")


@dataclass(frozen=True)
class Fixture:
    """A cell made ready to measure, and the digest of what it is made of."""

    transformer: nn.Module
    method: TrainingMethod
    batch: Batch
    precision: torch.dtype
    digest: str


def _finetune(model: nn.Module, seed: int) -> TrainingMethod:
    return FinetuneMethod(model, seed=seed)


CELLS: tuple[Cell, ...] = (Cell("wan", "finetune", _finetune),)
"""Every pair that can be trained."""


def build_fixture(cell: Cell, device: torch.device) -> Fixture:
    """Model, method and batch of a cell on `device`."""
    shape = cell.shape
    config = wan_config(cell.size, "parts", shape.text_dim, shape.text_len)
    transformer = build_model(config, cell.seed)
    randomise(transformer, torch_seed(cell.seed, "weights"))
    transformer.to(device)
    precision = PRECISION[device.type]
    return Fixture(
        transformer=transformer,
        method=cell.build(transformer, cell.seed),
        batch=synthetic_batch(shape, torch_seed(cell.seed, "batch")).to(device, torch.float32),
        precision=precision,
        digest=_digest(cell, transformer, precision),
    )


def randomise(model: nn.Module, seed: int) -> None:
    """Overwrite every parameter with seeded noise of a healthy size, in the order of their names.

    A fresh model has zero output layers, through which no gradient reaches block 0. Matrices get
    a standard deviation of 1/√fan_in (times `GAINS`), vectors 0.1 around 1 (norm weights) or 0.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2 and not name.endswith("modulation"):
                parameter.copy_(_gain(name) * noise / parameter[0].numel() ** 0.5)
            else:
                centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
                parameter.copy_(centre + 0.1 * noise)


def _gain(name: str) -> float:
    return next((gain for ending, gain in GAINS.items() if name.endswith(ending)), 1.0)


def synthetic_batch(shape: Shape, seed: int) -> Batch:
    """A seeded batch on the CPU, float32: noise latents, prompts of several lengths, blocky ids."""
    generator = torch.Generator().manual_seed(seed)

    def whole(high: int, *size: int) -> Tensor:
        return torch.randint(high, size, generator=generator)

    lengths = 1 + whole(shape.text_len, shape.prompts)
    prompts = torch.randn(shape.prompts, shape.text_len, shape.text_dim, generator=generator)
    real = torch.arange(shape.text_len) < lengths[:, None]
    nothing = Dropped(text=False, cond=False, mask=0.0)
    return Batch(
        latents=torch.randn(
            (shape.batch, CHANNELS, shape.frames, shape.height, shape.width), generator=generator
        ),
        prompts=PROMPT_STD * prompts * real[..., None],
        prompt_lengths=lengths,
        context_ids=whole(shape.prompts, shape.batch, shape.frames),
        sem_ids=_blocky_ids(shape, whole),
        clip_ids=[f"synthetic-{i}" for i in range(shape.batch)],
        epochs=[0] * shape.batch,
        indices=list(range(shape.batch)),
        dropped=[nothing] * shape.batch,
    )


def _blocky_ids(shape: Shape, whole: Callable[..., Tensor]) -> Tensor:
    """Ids uint8 [B, T, H, W] in blocks of 8 × 8 pixels, every class of `parts` likely there."""
    frames = 4 * (shape.frames - 1) + 1
    classes = whole(len(KNOWN_IDS), shape.batch, frames, 2 * shape.height, 2 * shape.width)
    blocks = torch.tensor(KNOWN_IDS, dtype=torch.uint8)[classes]
    return blocks.repeat_interleave(8, 2).repeat_interleave(8, 3)


def _digest(cell: Cell, transformer: nn.Module, precision: torch.dtype) -> str:
    return digest_json(
        {
            "cell": cell.name,
            "size": cell.size,
            "shape": asdict(cell.shape),
            "seed": cell.seed,
            "precision": str(precision),
            "prompt_std": PROMPT_STD,
            "gains": GAINS,
            "parameters": parameter_shapes(transformer),
        }
    )


def parameter_shapes(model: nn.Module) -> dict[str, list[int]]:
    """Shape of each trainable parameter, by name."""
    return {n: list(p.shape) for n, p in model.named_parameters() if p.requires_grad}
