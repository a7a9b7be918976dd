"""The block-causal Wan transformer: a frame sees its own chunk of latent frames and those before.

Latent frame f belongs to chunk ⌊f / chunk_frames⌋; the last chunk of a video may be shorter. The
clean first frame of an image-to-video sample is part of chunk 0, whose other frames see it and
are seen by it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from gc25d.model.attention import attend, flex_kernel
from gc25d.model.config import PATCH, WanConfig
from gc25d.model.interface import ModelOutput
from gc25d.model.text import TextContext
from gc25d.model.wan.blocks import View
from gc25d.model.wan.kv_cache import KvCache
from gc25d.model.wan.transformer import WanModel
from gc25d.shapes import ContextIds, Latents, Prompts, Tokens

_FLEX_CAPABILITY = (8, 0)  # compute capability from which flex attention has bfloat16 kernels


@dataclass(frozen=True)
class ChunkLoop:
    """Attention chunk by chunk to all keys up to the chunk's end: exact, and without a mask."""

    chunk_tokens: int

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, N, heads, d] each, queries and keys rotated → [B, N, heads · d]."""
        parts = []
        for start in range(0, query.shape[1], self.chunk_tokens):
            end = start + self.chunk_tokens
            parts.append(attend(query[:, start:end], key[:, :end], value[:, :end]))
        return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class FlexCausal:
    """Attention under a block mask, in one kernel that skips what the mask hides."""

    mask: BlockMask
    kernel: Callable[..., Tensor]
    """`flex_attention`, compiled: uncompiled it computes all logits."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, N, heads, d] each, queries and keys rotated → [B, N, heads · d]."""
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        return self.kernel(query, key, value, block_mask=self.mask).transpose(1, 2).flatten(2)


def chunk_mask(tokens: int, chunk_tokens: int, device: torch.device) -> BlockMask:
    """The block mask that shows a token all tokens up to the end of its chunk.

    Made in inference mode, it can be used for training too.
    """

    def visible(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key // chunk_tokens <= query // chunk_tokens

    with torch.inference_mode(False):
        return create_block_mask(visible, None, None, tokens, tokens, device=device)


def causal_view(tokens: int, chunk_tokens: int, device: torch.device) -> View:
    """The fastest exact view on `device`: flex attention on a GPU that has it, or the loop."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FLEX_CAPABILITY:
        return FlexCausal(chunk_mask(tokens, chunk_tokens, device), flex_kernel())
    return ChunkLoop(chunk_tokens)


class CausalWanModel(WanModel):
    """`WanModel`'s parameters, names and call with block-causal self-attention."""

    attention_kind = "block_causal"

    def __init__(self, config: WanConfig, chunk_frames: int) -> None:
        """Build the model.

        Args:
            config: as for `WanModel`.
            chunk_frames: latent frames of a chunk, ≥ 1. From a video's length on, the model
                computes what `WanModel` does.
        """
        super().__init__(config)
        if chunk_frames < 1:
            raise ValueError(f"a chunk of {chunk_frames} latent frames")
        self.chunk_frames = chunk_frames
        self._views: dict[tuple[int, int, torch.device], View] = {}

    def run_blocks(
        self,
        tokens: Tokens,
        modulation: Tensor,
        text: TextContext,
        grid: tuple[int, int, int],
        first_frame: int = 0,
        views: Sequence[View] | None = None,
    ) -> Tokens:
        """Tokens through all blocks, each seeing its chunk and the past unless `views` say else."""
        if views is None and grid[0] > self.chunk_frames:
            view = self._view(tokens.shape[1], grid[1] * grid[2], tokens.device)
            views = [view] * len(self.blocks)
        return super().run_blocks(tokens, modulation, text, grid, first_frame, views)

    def new_cache(
        self,
        batch: int,
        size: Sequence[int],
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> KvCache:
        """An empty cache for `forward_chunk`.

        Args:
            batch: videos B.
            size: latent frames, rows and columns of a whole video (F, h, w).
            device: by default the weights'.
            dtype: of keys and values; by default autocast's, or else the weights'.
        """
        frame_tokens = (size[1] // PATCH[1]) * (size[2] // PATCH[2])
        head = (self.config.num_heads, self.config.head_dim)
        shape = (batch, size[0], frame_tokens, *head)
        return KvCache(len(self.blocks), shape, *self.cache_kind(device, dtype))

    def cache_kind(
        self, device: torch.device | None, dtype: torch.dtype | None
    ) -> tuple[torch.device, torch.dtype]:
        """Where a cache lies and its type, by default the weights' and autocast's."""
        weight = self.patch_embedding.weight
        device = device or weight.device
        if dtype is None:
            mixed = torch.is_autocast_enabled(device.type)
            dtype = torch.get_autocast_dtype(device.type) if mixed else weight.dtype
        return device, dtype

    def forward_chunk(
        self,
        latents: Latents,
        timestep: Float[Tensor, "B F"],
        prompts: Prompts,
        prompt_lengths: Int[Tensor, " P"],
        context_ids: ContextIds,
        sem_ids: UInt8[Tensor, "B T H W"] | None,
        cache: KvCache,
        *,
        write: bool,
    ) -> ModelOutput:
        """Predict the velocity of the chunk that follows the frames in `cache`.

        With what `forward` would have computed of the past in the cache, the result is `forward`'s
        for these frames. Gradients reach the weights through this chunk alone.

        Args:
            latents: the chunk [B, 48, f, h, w], f = chunk_frames, or fewer at a video's end.
            timestep: float32 [B, f].
            prompts: as for `forward`, like `prompt_lengths`.
            prompt_lengths: int64 [P].
            context_ids: int64 [B, f].
            sem_ids: uint8 [B, T, H, W] of these frames (`video_frames`): T = 4f, and 4f − 3 where
                frame 0 is among them; None adds nothing.
            cache: what `new_cache` gave.
            write: append these frames to the cache. A roll-out does so once a chunk is clean, in
                one more pass at timestep 0.

        Raises:
            UserError: sizes that do not fit each other or the model.
            ValueError: frames that are no whole chunk after the cached ones, or too many.
        """
        self.check_sizes(latents, prompts, sem_ids, cache.frames)
        text = self.embed_text(prompts, prompt_lengths, context_ids)
        return self.predict_chunk(latents, timestep, text, sem_ids, cache, write=write)

    def predict_chunk(
        self,
        latents: Latents,
        timestep: Float[Tensor, "B F"],
        text: TextContext,
        sem_ids: UInt8[Tensor, "B T H W"] | None,
        cache: KvCache,
        *,
        write: bool,
    ) -> ModelOutput:
        """`forward_chunk` with projected prompts."""
        self._check_chunk(latents.shape[2], cache)
        views = cache.views()
        output = self.predict(latents, timestep, text, sem_ids, cache.frames, views)
        if write:
            cache.append(views)
        return output

    def _view(self, tokens: int, frame_tokens: int, device: torch.device) -> View:
        """The view of a grid, made once: building a block mask takes as long as a block."""
        key = (tokens, frame_tokens, device)
        if key not in self._views:
            self._views[key] = causal_view(tokens, self.chunk_frames * frame_tokens, device)
        return self._views[key]

    def _check_chunk(self, frames: int, cache: KvCache) -> None:
        if cache.frames % self.chunk_frames or frames > self.chunk_frames:
            raise ValueError(
                f"latent frames {cache.frames} to {cache.frames + frames - 1} are not within one "
                f"chunk of {self.chunk_frames}, from its first frame on"
            )
        if cache.frames + frames > cache.capacity:
            raise ValueError(f"the cache has room for {cache.capacity} latent frames")
