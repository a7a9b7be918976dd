"""What defines a Wan transformer: widths, depth, text shape and semantic vocabulary."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Vocab: TypeAlias = Literal["parts", "ids"]
VOCABS: tuple[Vocab, ...] = ("parts", "ids")

PATCH = (1, 2, 2)  # latent frames, rows and columns of a token
CELL = 4  # pixels a side of a semantic cell
TOKEN_FRAMES = 4  # video frames of a token
TOKEN_CELLS = 8  # semantic cells a side of a token: 2 latent cells of 16 pixels
CELLS_PER_TOKEN = TOKEN_FRAMES * TOKEN_CELLS * TOKEN_CELLS


@dataclass(frozen=True)
class WanConfig:
    """Shape of a model; two equal configurations have the same parameters."""

    dim: int
    """Width of a token."""
    ffn_dim: int
    """Hidden width of the feed-forward layers."""
    num_heads: int
    """Attention heads; `dim / num_heads` must be even."""
    num_layers: int
    """Transformer blocks."""
    text_dim: int = 4096
    """Width of a prompt's token embedding."""
    text_len: int = 512
    """Tokens of a padded prompt, L, for the record: no parameter and no result depends on it."""
    vocab: Vocab | None = None
    """Semantic vocabulary; None builds no semantic condition."""
    cond_dim: int = 1024
    """Hidden width of the semantic condition."""
    in_channels: int = 48
    """Latent channels read."""
    out_channels: int = 48
    """Latent channels predicted."""
    freq_dim: int = 256
    """Width of the sinusoidal timestep embedding."""
    eps: float = 1e-6
    """Added to variances in every norm."""

    @property
    def head_dim(self) -> int:
        """Width of an attention head, d."""
        return self.dim // self.num_heads
