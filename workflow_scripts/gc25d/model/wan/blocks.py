"""The transformer block: modulated self-attention, per-frame cross-attention, feed-forward.

Norms, modulation and residual sums are float32; linear layers and attention run in the tokens'
dtype. Modulation belongs to a latent frame and reaches its tokens by broadcasting.
"""

from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gc25d.model.attention import attend
from gc25d.model.config import WanConfig
from gc25d.model.gpu import norms
from gc25d.model.rope import RopeTable, apply_rope
from gc25d.model.text import TextContext

_MODULATIONS = 6  # shift, scale, gate of self-attention, then of the feed-forward layers


class RmsNorm(nn.Module):
    """x · weight / √(mean(x²) + eps) over all heads together, in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] → the same shape and dtype."""
        weight = self.weight.float()
        return functional.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """Layer norm in float32 whatever the dtypes of input and weights."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] → the same shape and dtype."""
        weight, bias = self.weight.float(), self.bias.float()
        if norms.fits(x):
            return norms.norm_affine(x, weight, bias, self.eps)
        normed = functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps)
        return normed.to(x.dtype)


def by_frame(tokens: Tensor, frames: int) -> Tensor:
    """View [B, F·S, D] as [B, F, S, D]."""
    batch, count, dim = tokens.shape
    return tokens.reshape(batch, frames, count // frames, dim)


def modulate(tokens: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """norm(x)·(1 + scale) + shift in float32: tokens [B, F·S, D], shift and scale [B, F, D]."""
    if norms.fits(tokens):
        return norms.norm_modulate(tokens, shift, scale, eps)
    normed = functional.layer_norm(tokens.float(), tokens.shape[-1:], eps=eps)
    framed = by_frame(normed, shift.shape[1])
    modulated = torch.addcmul(shift.unsqueeze(2), framed, 1 + scale.unsqueeze(2))
    return modulated.flatten(1, 2).to(tokens.dtype)


def add_gated(tokens: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    """Sum x + update·gate in float32: tokens and update [B, F·S, D], gate [B, F, D]."""
    frames = gate.shape[1]
    framed, added = by_frame(tokens.float(), frames), by_frame(update.float(), frames)
    summed = torch.addcmul(framed, added, gate.unsqueeze(2))
    return summed.flatten(1, 2).to(tokens.dtype)


class Attention(nn.Module):
    """Projections shared by self- and cross-attention."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.head_shape = (config.num_heads, config.head_dim)
        self.q = nn.Linear(config.dim, config.dim)
        self.k = nn.Linear(config.dim, config.dim)
        self.v = nn.Linear(config.dim, config.dim)
        self.o = nn.Linear(config.dim, config.dim)
        self.norm_q = RmsNorm(config.dim, config.eps)
        self.norm_k = RmsNorm(config.dim, config.eps)

    def split_heads(self, x: Tensor) -> Tensor:
        """[..., D] → [..., heads, d]."""
        return x.reshape(*x.shape[:-1], *self.head_shape)


class View(Protocol):
    """What a token's self-attention sees, where that is not every token of its sample."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, N, heads, d] each, queries and keys rotated → [B, N, heads · d]."""
        ...


class SelfAttention(Attention):
    """Attention among all tokens of a sample, or those that `view` shows."""

    def forward(self, tokens: Tensor, rope: RopeTable, view: View | None = None) -> Tensor:
        """[B, N, D] → [B, N, D]."""
        query = self.turned(self.norm_q, self.q(tokens), rope)
        key = self.turned(self.norm_k, self.k(tokens), rope)
        value = self.split_heads(self.v(tokens))
        seen = attend(query, key, value) if view is None else view.attend(query, key, value)
        return cast(Tensor, self.o(seen))

    def turned(self, norm: RmsNorm, x: Tensor, rope: RopeTable) -> Tensor:
        """Queries or keys [B, N, D], normed and rotated → [B, N, heads, d]."""
        if norms.fits(x):
            return self.split_heads(norms.norm_rope(x, norm.weight, rope, norm.eps))
        return apply_rope(self.split_heads(norm(x)), rope)


class CrossAttention(Attention):
    """Attention of each frame's tokens to that frame's prompt."""

    def forward(self, tokens: Tensor, text: TextContext) -> Tensor:
        """[B, N, D] → [B, N, D]; keys and values are projected once for each distinct prompt."""
        frames = text.frames // tokens.shape[0]
        query = by_frame(self.norm_q(self.q(tokens)), frames).flatten(0, 1)
        key = text.of_frames(self.norm_k(self.k(text.tokens)))
        value = text.of_frames(self.v(text.tokens))
        query, key, value = (self.split_heads(part) for part in (query, key, value))
        update = attend(query, key, value, text.bias)
        return cast(Tensor, self.o(update.reshape(tokens.shape)))


class WanBlock(nn.Module):
    """One of the model's blocks, with Wan's parameter names."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.self_attn = SelfAttention(config)
        self.cross_attn = CrossAttention(config)
        self.norm3 = LayerNorm(config.dim, config.eps)
        self.ffn = nn.Sequential(
            nn.Linear(config.dim, config.ffn_dim),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.ffn_dim, config.dim),
        )
        self.modulation = nn.Parameter(torch.zeros(1, _MODULATIONS, config.dim))

    def forward(
        self,
        tokens: Tensor,
        modulation: Tensor,
        rope: RopeTable,
        text: TextContext,
        view: View | None = None,
    ) -> Tensor:
        """[B, N, D] → [B, N, D]; `modulation` is float32 [B, F, 6, D]."""
        own = self.modulation.float()
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = (own + modulation).unbind(2)
        update = self.self_attn(modulate(tokens, shift, scale, self.eps), rope, view)
        tokens = add_gated(tokens, update, gate)
        tokens = self.read_conditions(tokens, text, view)
        update = self.ffn(modulate(tokens, ffn_shift, ffn_scale, self.eps))
        return add_gated(tokens, update, ffn_gate)

    def read_conditions(self, tokens: Tensor, text: TextContext, view: View | None) -> Tensor:
        """Tokens [B, N, D] plus what they read of their frame's prompt."""
        return tokens + cast(Tensor, self.cross_attn(self.norm3(tokens), text))
