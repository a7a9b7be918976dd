"""What defines a model of the zoo: widths, depth, text shape and semantic vocabulary."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Vocab: TypeAlias = Literal["parts", "ids"]
VOCABS: tuple[Vocab, ...] = ("parts", "ids")

PATCH = (1, 2, 2)  # latent frames, rows and columns of a token
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


@dataclass(frozen=True)
class CausalConfig(WanConfig):
    """A Wan transformer whose frames see their own chunk and those before."""

    chunk_frames: int = 3
    """Latent frames of a chunk; no parameter depends on it."""


@dataclass(frozen=True)
class MatrixGameConfig(CausalConfig):
    """A causal Wan transformer that also takes keyboard and mouse input."""

    keys: int = 6
    """Keys of the keyboard's multi-hot input, n."""
    action_blocks: int = 15
    """Blocks, from the first on, that have an action module."""
    action_dim: int = 1024
    """Width of the action attention; a multiple of 6 times its heads."""
    action_heads: int = 16
    """Heads of the action attention."""
    key_dim: int = 128
    """Width of one frame's embedded keys."""
    window: int = 3
    """Latent frames whose video frames' actions a latent frame sees: its own and those before."""


@dataclass(frozen=True)
class HunyuanConfig:
    """HunyuanVideo's image-to-video transformer, whose first frame is clean."""

    num_heads: int = 24
    """Attention heads."""
    head_dim: int = 128
    """Width of an attention head."""
    num_layers: int = 20
    """Blocks with a stream of its own for the text."""
    num_single_layers: int = 40
    """Blocks with one stream, after those."""
    num_refiner_layers: int = 2
    """Blocks that refine the prompt's tokens."""
    rope_dims: tuple[int, int, int] = (16, 56, 56)
    """Components of a head that encode frame, row and column; they add up to `head_dim`."""
    text_dim: int = 4096
    """Width of a prompt's token embedding."""
    vocab: Vocab | None = None
    """Semantic vocabulary; None builds no semantic condition."""
    cond_dim: int = 1024
    """Hidden width of the semantic condition."""
    in_channels: int = 48
    """Latent channels read and predicted."""
    guidance: float = 1.0
    """Embedded guidance scale that the model is always given."""

    @property
    def dim(self) -> int:
        """Width of a token."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True)
class CosmosConfig:
    """Cosmos-Predict2's video-to-world transformer."""

    num_heads: int = 16
    """Attention heads."""
    head_dim: int = 128
    """Width of an attention head."""
    num_layers: int = 28
    """Blocks."""
    adaln_dim: int = 256
    """Inner width of the modulations."""
    rope_scale: tuple[float, float, float] = (1.0, 3.0, 3.0)
    """Stretch of the rotary positions of frames, rows and columns."""
    text_dim: int = 1024
    """Width of a prompt's token embedding."""
    vocab: Vocab | None = None
    """Semantic vocabulary; None builds no semantic condition."""
    cond_dim: int = 1024
    """Hidden width of the semantic condition."""
    in_channels: int = 48
    """Latent channels read and predicted."""

    @property
    def dim(self) -> int:
        """Width of a token."""
        return self.num_heads * self.head_dim
