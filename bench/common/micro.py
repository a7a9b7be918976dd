"""The micro-batch that the benchmarks share: a model's size, and a sample for it."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch
from gc25d.dataset.clips import Dropped
from gc25d.model.config import PATCH, WanConfig
from gc25d.model.text import cut_prompts
from gc25d.model.zoo import SIZES
from gc25d.train.engine import choose_kernels_by_rule

BLOCK = 16  # pixels a side of a patch of equal semantic ids
TIMESTEP = 500.6
KNOWN_IDS = (*range(7), *range(10, 22), 255)


@dataclass(frozen=True)
class Size:
    """A model and the latents of one sample."""

    config: WanConfig
    frames: int
    """Latent frames."""
    height: int
    """Latent cells."""
    width: int
    """Latent cells."""
    text_rows: int
    """Rows of a prompt in the text table."""
    text_lengths: tuple[int, ...]
    """Real tokens of a micro-batch's distinct prompts."""
    other_lengths: tuple[int, ...]
    """Of another micro-batch, which pads to another number of rows."""

    @property
    def tokens(self) -> int:
        """Tokens of the sample."""
        return self.frames * (self.height // PATCH[1]) * (self.width // PATCH[2])

    @property
    def all_distinct(self) -> tuple[int, ...]:
        """Lengths of as many full-length prompts as there are frames."""
        return (self.text_rows,) * self.frames

    def describe(self) -> dict[str, Any]:
        """For the report."""
        return {**dataclasses.asdict(self), "tokens": self.tokens}


def chosen_size(*, tiny: bool, layers: int | None = None) -> Size:
    """81×480×832 for the 5B model, or a size that takes a CPU a moment."""
    if tiny:
        config = WanConfig(48, 80, 2, 2, text_dim=20, cond_dim=16, freq_dim=32)
        size = Size(config, 3, 4, 6, 24, (7, 3), (20, 3))
    else:
        lengths = (64, 51, 38, 22, 9), (40, 33, 20, 8)
        size = Size(SIZES["5b"], 21, 30, 52, 512, *lengths)
    layers = layers or size.config.num_layers
    config = dataclasses.replace(size.config, vocab="parts", num_layers=layers)
    return dataclasses.replace(size, config=config)


def micro_batch(size: Size, lengths: tuple[int, ...], device: torch.device, seed: int = 0) -> Batch:
    """One sample on `device`: noise latents, each prompt on a run of frames, blocky ids."""
    generator = torch.Generator().manual_seed(seed)
    config, frames = size.config, size.frames
    latent_shape = (1, config.in_channels, frames, size.height, size.width)
    prompts = torch.randn(len(lengths), size.text_rows, config.text_dim, generator=generator)
    for prompt, length in zip(prompts, lengths, strict=True):
        prompt[length:] = 0
    batch = Batch(
        latents=torch.randn(latent_shape, generator=generator),
        prompts=prompts,
        prompt_lengths=torch.tensor(lengths),
        context_ids=(torch.arange(frames) * len(lengths) // frames)[None],
        sem_ids=_blocky_ids(size, generator),
        clip_ids=["bench"],
        epochs=[0],
        indices=[0],
        dropped=[Dropped(text=False, cond=False, mask=0.0)],
    )
    return batch.to(device, torch.bfloat16)


def _blocky_ids(size: Size, generator: torch.Generator) -> Tensor:
    """Ids uint8 [1, T, H, W], equal in squares of `BLOCK` pixels, which are latent cells."""
    shape = (1, 4 * (size.frames - 1) + 1, size.height, size.width)
    known = torch.tensor(KNOWN_IDS, dtype=torch.uint8)
    classes = torch.randint(len(KNOWN_IDS), shape, generator=generator)
    return known[classes].repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)


def fill_model(model: nn.Module, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
    """Give a model built on the meta device seeded weights, drawn where it will run.

    Matrices get a standard deviation of 1/√fan_in, vectors 0.1 around 1 (norm weights) or 0, so
    that no layer is neutral. Buffers are left undefined.
    """
    nn.Module.to(model, dtype).to_empty(device=device)  # diffusers' own `to` warns of bf16 norms
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            matrix = parameter.ndim >= 2 and not name.endswith(("modulation", "table"))
            std = parameter[0].numel() ** -0.5 if matrix else 0.1
            parameter.normal_(std=std, generator=generator)
            if parameter.ndim == 1 and "norm" in name and name.endswith("weight"):
                parameter.add_(1)


def per_frame(batch: Batch) -> Tensor:
    """Timesteps [1, F] of image-to-video: 0 for the clean first frame."""
    frames = batch.latents.shape[2]
    timestep = torch.full((1, frames), TIMESTEP, device=batch.latents.device)
    timestep[:, 0] = 0
    return timestep


def key_rows(batch: Batch) -> int:
    """Rows of each prompt that our model projects and attends to."""
    return cut_prompts(batch.prompts, batch.prompt_lengths).shape[1]


def choose_kernels(*, deterministic: bool) -> None:
    """Any kernels, or only those whose results repeat bit for bit, as training chooses them."""
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False
    choose_kernels_by_rule(deterministic)
