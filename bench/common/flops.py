"""Floating-point operations of a micro-batch, by formula, and the shortest time they can take.

A product of [m, k] and [k, n] is 2·m·k·n operations. The backward pass of a linear layer is two
products of that size, or one where the layer reads data. Attention of N tokens over M keys is two
products, 4·N·M·dim over all heads; its backward pass is five of them, the scores being computed
once more. Norms, modulation, softmax and copies are not counted.
"""

from dataclasses import dataclass
from typing import NamedTuple

from gc25d.model.config import CELLS_PER_TOKEN, PATCH, WanConfig
from gc25d.model.semantic import class_count

TERA = 1e12
_ATTENTION_BACKWARD = 2.5  # products of the backward pass over those of the forward pass


@dataclass(frozen=True)
class Ceilings:
    """What the device reaches on the parts alone, operations a second."""

    matmul: float
    attention_forward: float
    attention_training: float
    """Forward and backward pass together."""


@dataclass(frozen=True)
class Work:
    """Operations of one pass over a sample."""

    matmul_forward: float
    matmul_backward: float
    attention_forward: float

    @property
    def training(self) -> float:
        """Forward and backward pass."""
        attention = self.attention_forward * (1 + _ATTENTION_BACKWARD)
        return self.matmul_forward + self.matmul_backward + attention

    @property
    def sampling(self) -> float:
        """Forward pass."""
        return self.matmul_forward + self.attention_forward

    def training_floor(self, ceilings: Ceilings) -> float:
        """Seconds at the ceilings, forward and backward pass."""
        matmul = (self.matmul_forward + self.matmul_backward) / ceilings.matmul
        attention = self.attention_forward * (1 + _ATTENTION_BACKWARD)
        return matmul + attention / ceilings.attention_training

    def sampling_floor(self, ceilings: Ceilings) -> float:
        """Seconds at the ceilings, forward pass."""
        attention = self.attention_forward / ceilings.attention_forward
        return self.matmul_forward / ceilings.matmul + attention


class Layer(NamedTuple):
    """A linear layer applied to `rows` vectors."""

    rows: int
    inputs: int
    outputs: int
    reads_data: bool = False
    """Nothing that is trained comes before it."""

    @property
    def forward(self) -> float:
        """Operations of its forward pass."""
        return 2.0 * self.rows * self.inputs * self.outputs

    @property
    def backward(self) -> float:
        """Operations of its backward pass."""
        return self.forward * (1 if self.reads_data else 2)


def model_work(
    config: WanConfig, tokens: int, prompts: int, key_rows: int, timesteps: int, *, condition: bool
) -> Work:
    """Operations of one sample.

    Args:
        config: of the model.
        tokens: of the sample, N.
        prompts: distinct prompts that are projected.
        key_rows: rows of each prompt, which are also the keys of a token's cross-attention.
        timesteps: timesteps that are embedded.
        condition: whether the semantic condition is computed.
    """
    layers = outer_layers(config, tokens, prompts * key_rows, timesteps)
    layers += block_layers(config, tokens, prompts * key_rows) * config.num_layers
    if condition and config.vocab is not None:
        layers += condition_layers(config, tokens, CELLS_PER_TOKEN * class_count(config.vocab))
    return Work(
        matmul_forward=sum(layer.forward for layer in layers),
        matmul_backward=sum(layer.backward for layer in layers),
        attention_forward=config.num_layers * 4.0 * tokens * (tokens + key_rows) * config.dim,
    )


def block_layers(config: WanConfig, tokens: int, text_rows: int) -> list[Layer]:
    """A block: q, k, v, o of the tokens, q and o of cross-attention, k and v of the text, ffn."""
    dim, ffn = config.dim, config.ffn_dim
    square, text = Layer(tokens, dim, dim), Layer(text_rows, dim, dim)
    return [square] * 6 + [text] * 2 + [Layer(tokens, dim, ffn), Layer(tokens, ffn, dim)]


def outer_layers(config: WanConfig, tokens: int, text_rows: int, timesteps: int) -> list[Layer]:
    """Patch, text and time embedding, and the head."""
    dim, patch = config.dim, PATCH[0] * PATCH[1] * PATCH[2]
    return [
        Layer(tokens, patch * config.in_channels, dim, reads_data=True),
        Layer(text_rows, config.text_dim, dim, reads_data=True),
        Layer(text_rows, dim, dim),
        Layer(timesteps, config.freq_dim, dim, reads_data=True),
        Layer(timesteps, dim, dim),
        Layer(timesteps, dim, 6 * dim),
        Layer(tokens, dim, patch * config.out_channels),
    ]


def condition_layers(config: WanConfig, tokens: int, occupancy: int) -> list[Layer]:
    """The semantic condition."""
    hidden = config.cond_dim
    return [
        Layer(tokens, occupancy, hidden, reads_data=True),
        Layer(tokens, hidden, hidden),
        Layer(tokens, hidden, config.dim),
    ]
