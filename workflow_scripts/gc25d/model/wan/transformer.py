"""The Wan2.2-TI2V diffusion transformer with per-frame timesteps and prompts (native names)."""

import functools
import math
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from gc25d.model.config import PATCH, WanConfig
from gc25d.model.interface import ModelOutput, check_inputs, rms
from gc25d.model.rope import rope_table
from gc25d.model.semantic import SemanticCondition
from gc25d.model.text import TextContext, cut_prompts, text_context
from gc25d.model.wan.block_call import block_call
from gc25d.model.wan.blocks import View, WanBlock, modulate
from gc25d.shapes import ContextIds, Latents, Prompts, Tokens

_PERIOD = 10000.0  # longest period of the timestep embedding, in units of 2π timesteps


class PatchEmbedding(nn.Conv3d):
    """Non-overlapping 1×2×2 patches → tokens: a convolution, computed as one matrix product."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__(config.in_channels, config.dim, kernel_size=PATCH, stride=PATCH)

    def forward(self, latents: Latents) -> Tokens:
        """[B, C, F, h, w] → [B, N, D]."""
        batch, channels, frames, height, width = latents.shape
        split = (batch, channels, frames, height // PATCH[1], PATCH[1], width // PATCH[2], PATCH[2])
        patches = latents.to(self.weight.dtype).reshape(split).permute(0, 2, 3, 5, 1, 4, 6)
        flat = patches.flatten(4).flatten(1, 3)
        return functional.linear(flat, self.weight.flatten(1), self.bias)


class Head(nn.Module):
    """Modulated norm and projection of tokens back to latent patches."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.channels = config.out_channels
        self.head = nn.Linear(config.dim, math.prod(PATCH) * config.out_channels)
        self.modulation = nn.Parameter(torch.zeros(1, 2, config.dim))

    def forward(self, tokens: Tokens, time: Tensor, grid: tuple[int, int, int]) -> Latents:
        """Tokens [B, N, D] of a (frames, rows, columns) grid, time [B, F, D] → [B, C, F, h, w]."""
        shift, scale = (self.modulation.float() + time.unsqueeze(2)).unbind(2)
        patches = self.head(modulate(tokens, shift, scale, self.eps))
        split = patches.reshape(tokens.shape[0], *grid, *PATCH[1:], self.channels)
        moved = split.permute(0, 6, 1, 2, 4, 3, 5)
        return cast(Tensor, moved.flatten(5, 6).flatten(3, 4))


class WanModel(nn.Module):
    """The transformer; `gc_sem_cond` exists when the configuration names a vocabulary."""

    supports_gradient_accumulation_no_sync = True  # every micro-batch uses every parameter

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.config = config
        self.recomputed: frozenset[int] = frozenset()  # blocks run again in the backward pass
        dim = config.dim
        self.patch_embedding = PatchEmbedding(config)
        self.text_embedding = nn.Sequential(
            nn.Linear(config.text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim)
        )
        self.time_embedding = nn.Sequential(
            nn.Linear(config.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim)
        )
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(WanBlock(config) for _ in range(config.num_layers))
        self.head = Head(config)
        self.gc_sem_cond = (
            SemanticCondition(config.vocab, config.cond_dim, dim) if config.vocab else None
        )

    def forward(
        self,
        latents: Latents,
        timestep: Float[Tensor, "B F"],
        prompts: Prompts,
        prompt_lengths: Int[Tensor, " P"],
        context_ids: ContextIds,
        sem_ids: UInt8[Tensor, "B T H W"] | None = None,
    ) -> ModelOutput:
        """Predict the velocity of noisy latents.

        Args:
            latents: [B, 48, F, h, w], h and w even.
            timestep: float32 [B, F] in 0..1000, one a latent frame; 0 for a clean frame.
            prompts: distinct prompts [P, L, text_dim]; rows from a prompt's length on are zero.
            prompt_lengths: int64 [P], tokens of each prompt. On the CPU they let the padding be
                cut; on another device the given rows are all projected.
            context_ids: int64 [B, F], each frame's prompt as an index into `prompts`.
            sem_ids: uint8 [B, T, H, W] with T = 4(F − 1) + 1, H = 16h, W = 16w; None adds nothing.

        Raises:
            UserError: sizes that do not fit each other or the model.
        """
        self.check_sizes(latents, prompts, sem_ids)
        text = self.embed_text(prompts, prompt_lengths, context_ids)
        return self.predict(latents, timestep, text, sem_ids)

    def predict(
        self,
        latents: Latents,
        timestep: Float[Tensor, "B F"],
        text: TextContext,
        sem_ids: UInt8[Tensor, "B T H W"] | None,
        first_frame: int = 0,
        views: Sequence[View] | None = None,
    ) -> ModelOutput:
        """The forward pass with projected prompts.

        Args:
            latents: [B, 48, F, h, w].
            timestep: float32 [B, F].
            text: `embed_text` of the prompts.
            sem_ids: uint8 [B, T, H, W] of these frames, or None.
            first_frame: position of the first of these latent frames in its video.
            views: what each block's self-attention sees; None shows all tokens to all.
        """
        grid = (latents.shape[2], latents.shape[3] // PATCH[1], latents.shape[4] // PATCH[2])
        tokens, stats = self.embed_tokens(latents, sem_ids)
        time, modulation = self.embed_time(timestep)
        tokens = self.run_blocks(tokens, modulation, text, grid, first_frame, views)
        return ModelOutput(self.head(tokens, time, grid), stats)

    def embed_tokens(
        self, latents: Latents, sem_ids: UInt8[Tensor, "B T H W"] | None
    ) -> tuple[Tokens, dict[str, Tensor]]:
        """Patches plus the semantic condition [B, N, D], and the stats of `ModelOutput`."""
        tokens = self.patch_embedding(latents)
        stats = {"x_rms": rms(tokens), "sem_rms": torch.zeros_like(tokens[0, 0, 0])}
        if self.gc_sem_cond is not None and sem_ids is not None:
            condition = self.gc_sem_cond(sem_ids)
            stats["sem_rms"] = rms(condition)
            tokens = tokens + condition
        return tokens, stats

    def run_blocks(
        self,
        tokens: Tokens,
        modulation: Tensor,
        text: TextContext,
        grid: tuple[int, int, int],
        first_frame: int = 0,
        views: Sequence[View] | None = None,
    ) -> Tokens:
        """Tokens [B, N, D] of a (frames, rows, columns) grid through all blocks."""
        rope = rope_table(grid, self.config.head_dim, tokens.device, first_frame)
        shown: Sequence[View | None] = views or [None] * len(self.blocks)
        for index, (block, view) in enumerate(zip(self.blocks, shown, strict=True)):
            call = block_call(block, tokens.device, again=index in self.recomputed)
            tokens = call(tokens, modulation, rope, text, view)
        return tokens

    def embed_time(self, timestep: Float[Tensor, "B F"]) -> tuple[Tensor, Tensor]:
        """Timesteps → float32 embedding [B, F, D] and block modulation [B, F, 6, D]."""
        with torch.autocast(timestep.device.type, enabled=False):
            waves = sinusoidal_embedding(timestep, self.config.freq_dim)
            hidden = functional.silu(_linear_fp32(waves, self.time_embedding[0]))
            time = _linear_fp32(hidden, self.time_embedding[2])
            modulation = _linear_fp32(functional.silu(time), self.time_projection[1])
            return time, modulation.reshape(*timestep.shape, 6, -1)

    def embed_text(self, prompts: Prompts, lengths: Tensor, context_ids: Tensor) -> TextContext:
        """Project the distinct prompts and the padding that stands for their empty rows."""
        cut = cut_prompts(prompts, lengths)
        tokens = self.text_embedding(cut.to(self.patch_embedding.weight.dtype))
        return text_context(tokens, lengths, context_ids, prompts.shape[1])

    def check_sizes(
        self, latents: Tensor, prompts: Tensor, sem_ids: Tensor | None, first_frame: int = 0
    ) -> None:
        """Refuse sizes that do not fit each other or the model, as `forward` says."""
        check_inputs(self.config, latents, prompts, sem_ids, first_frame)


def sinusoidal_embedding(timestep: Float[Tensor, "B F"], width: int) -> Float[Tensor, "B F D"]:
    """Cosines and sines of t · 10000^(−i / (width/2)), computed in float64, returned in float32."""
    angles = timestep.double().unsqueeze(-1) * _frequencies(width // 2, timestep.device)
    return torch.cat([angles.cos(), angles.sin()], dim=-1).float()


@functools.lru_cache(maxsize=32)  # made anew for every micro-batch otherwise
@torch.inference_mode(mode=False)
def _frequencies(count: int, device: torch.device) -> Float[Tensor, " half"]:
    steps = torch.arange(count, dtype=torch.float64, device=device)
    return _PERIOD ** (-steps / count)


def _linear_fp32(x: Tensor, layer: nn.Module) -> Tensor:
    layer = cast(nn.Linear, layer)
    return functional.linear(x, layer.weight.float(), layer.bias.float())
