"""What training methods, sampling and the gradient check know of a model."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from gc25d.errors import UserError
from gc25d.model.config import Vocab
from gc25d.model.semantic import SemanticCondition
from gc25d.shapes import ContextIds, Latents, Prompts, Tokens

LATENT_PIXELS = 16  # pixels a side of a latent cell
LATENT_FRAMES = 4  # video frames of a latent frame after the first
PATCH_SIDE = 2  # latent cells a side of a token


class ModelConfig(Protocol):
    """What every model's configuration says."""

    @property
    def in_channels(self) -> int:
        """Latent channels read."""
        ...

    @property
    def text_dim(self) -> int:
        """Width of a prompt's token embedding."""
        ...

    @property
    def vocab(self) -> Vocab | None:
        """Semantic vocabulary, None without a semantic condition."""
        ...


@dataclass(frozen=True)
class ModelOutput:
    """What a forward pass returns."""

    prediction: Latents
    """Predicted velocity, shaped as the latents."""
    stats: Mapping[str, Tensor]
    """`x_rms` and `sem_rms`: rms of the patch-embedded and of the condition's tokens, detached."""


class VideoModel(Protocol):
    """A video diffusion transformer; every model of the zoo is one."""

    @property
    def config(self) -> ModelConfig:
        """Shape of the model."""
        ...

    @property
    def blocks(self) -> nn.ModuleList:
        """Its first transformer blocks; block 0 is the last to receive gradients."""
        ...

    def __call__(
        self,
        latents: Latents,
        timestep: Float[Tensor, "B F"],
        prompts: Prompts,
        prompt_lengths: Int[Tensor, " P"],
        context_ids: ContextIds,
        sem_ids: UInt8[Tensor, "B T H W"] | None = None,
    ) -> ModelOutput:
        """Predict the velocity ε − x0 of noisy latents.

        A model that takes actions (dataset/actions.py) has a further argument `actions`.

        Args:
            latents: [B, C, F, h, w], h and w even.
            timestep: float32 [B, F] in 0..1000, one a latent frame; 0 for a clean frame.
            prompts: distinct prompts [P, L, text_dim]; rows from a prompt's length on are zero.
            prompt_lengths: int64 [P], tokens of each prompt.
            context_ids: int64 [B, F], each frame's prompt as an index into `prompts`.
            sem_ids: uint8 [B, T, H, W]; None adds nothing.
        """
        ...


def check_inputs(
    config: ModelConfig,
    latents: Tensor,
    prompts: Tensor,
    sem_ids: Tensor | None,
    first_frame: int = 0,
) -> None:
    """Refuse sizes that do not fit each other or the model.

    `first_frame` is the position of the first of these latent frames in its video: only frame 0
    is a single video frame.

    Raises:
        UserError: names the size found and the one expected.
    """
    channels, frames, height, width = latents.shape[1:]
    if channels != config.in_channels:
        raise UserError(
            f"latents have {channels} channels, the model reads {config.in_channels}: "
            "build the model for the data set's codec"
        )
    if height % PATCH_SIDE or width % PATCH_SIDE:
        raise UserError(
            f"latents are {height} x {width}, expected even sides: "
            "frame sides must be multiples of 32 pixels"
        )
    if prompts.shape[2] != config.text_dim:
        raise UserError(
            f"prompts are {prompts.shape[2]} wide, the model expects {config.text_dim}: "
            "build the model with the data set's text width"
        )
    shown = LATENT_FRAMES * frames if first_frame else LATENT_FRAMES * (frames - 1) + 1
    expected = (shown, LATENT_PIXELS * height, LATENT_PIXELS * width)
    if sem_ids is not None and tuple(sem_ids.shape[1:]) != expected:
        raise UserError(
            f"sem_ids are {tuple(sem_ids.shape[1:])}, latents {tuple(latents.shape[2:])} "
            f"expect (frames, height, width) {expected}: rebuild the clip"
        )


def first_prompts(
    prompts: Prompts, lengths: Int[Tensor, " P"], context_ids: ContextIds
) -> tuple[Prompts, Int[Tensor, " B"]]:
    """The prompt of each sample's first latent frame and its length, on the prompts' device.

    For models that take one prompt a sample. A prompt without tokens counts as one zero row, as an
    attention mask must not be empty.
    """
    chosen = context_ids[:, 0].to(prompts.device)
    counts = lengths.to(prompts.device, non_blocking=True).clamp_min(1)
    return prompts.index_select(0, chosen), counts.index_select(0, chosen)


@contextmanager
def condition_added(
    embedder: nn.Module, condition: SemanticCondition | None, sem_ids: Tensor | None
) -> Iterator[dict[str, Tensor]]:
    """Within it, what `embedder` returns gains the semantic condition of its tokens.

    For models of another library, whose forward pass is called whole. Yields the stats of
    `ModelOutput`, complete once the embedder was called.
    """
    stats: dict[str, Tensor] = {}
    added = None if condition is None or sem_ids is None else condition(sem_ids)
    handle = embedder.register_forward_hook(_adder(added, stats))
    try:
        yield stats
    finally:
        handle.remove()


def _adder(
    added: Tokens | None, stats: dict[str, Tensor]
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    def add(_: nn.Module, __: tuple[Tensor, ...], tokens: Tensor) -> Tensor:
        stats["x_rms"] = rms(tokens)
        stats["sem_rms"] = torch.zeros_like(stats["x_rms"]) if added is None else rms(added)
        return tokens if added is None else tokens + added.reshape(tokens.shape)

    return add


def rms(x: Tensor) -> Tensor:
    """Root of the mean square, float32, detached."""
    norm: Tensor = torch.linalg.vector_norm(x.detach(), dtype=torch.float32)
    return norm / math.sqrt(x.numel())
