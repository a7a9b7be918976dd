"""How much GPU memory a training step keeps for its backward pass, and what to recompute instead.

The formula counts what a compiled block saves for its backward pass in bfloat16, checked against
measured peaks (bench/model/microbatch.py writes both beside each other).
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from gc25d.errors import UserError
from gc25d.model.config import WanConfig

Recompute: TypeAlias = Literal["none", "half", "all"]
POLICIES: tuple[Recompute, ...] = ("none", "half", "all")
"""From the least recomputation to the most."""

_VALUE_BYTES = 2  # bfloat16
_KEPT_TOKENS = 22  # tensors of a token's width that a block keeps
_WORKING_TOKENS, _WORKING_HIDDEN = 6, 3  # those alive only while one block's gradient is computed
_EAGER = 1.2  # a block that is not compiled keeps some float32 intermediates too
_HEADROOM = 0.92  # share of the memory that is planned with: fragmentation, workspaces


def recomputed_blocks(policy: Recompute, layers: int) -> frozenset[int]:
    """Numbers of the blocks whose forward pass runs again in the backward pass.

    `half` takes every second one, so that at most one block's activations are alive twice.
    """
    step = {"none": 0, "half": 2, "all": 1}[policy]
    return frozenset(range(0, layers, step)) if step else frozenset()


def activation_bytes(
    config: WanConfig, tokens: int, policy: Recompute, *, compiled: bool = True
) -> int:
    """Bytes of activations at the peak of a step.

    Args:
        config: of the model.
        tokens: of a micro-batch, B·N.
        policy: what is recomputed.
        compiled: whether the blocks are compiled.
    """
    width = tokens * config.dim * _VALUE_BYTES
    hidden = tokens * config.ffn_dim * _VALUE_BYTES
    again = len(recomputed_blocks(policy, config.num_layers))
    kept = round((_KEPT_TOKENS * width + hidden) * (1 if compiled else _EAGER))
    working = _WORKING_TOKENS * width + _WORKING_HIDDEN * hidden + (kept if again else 0)
    return kept * (config.num_layers - again) + width * again + working


def choose_recompute(
    config: WanConfig, tokens: int, memory: int, state: int, *, compiled: bool = True
) -> Recompute:
    """The least recomputation that fits.

    Args:
        config: of the model.
        tokens: of a micro-batch, B·N.
        memory: bytes of the GPU.
        state: bytes that weights, gradients and optimizer take of it.
        compiled: whether the blocks are compiled.

    Raises:
        UserError: not even recomputing every block fits.
    """
    needs = needed_bytes(config, tokens, state, compiled=compiled)
    for policy in POLICIES:
        if needs[policy] <= _HEADROOM * memory:
            return policy
    raise UserError(
        f"training needs {_gib(needs['all'])} even with model.recompute all, of which weights, "
        f"gradients and optimizer take {_gib(state)}; the GPU has {_gib(memory)}: use more GPUs "
        "with train.engine deepspeed, a smaller train.micro_batch or a smaller model"
    )


def needed_bytes(
    config: WanConfig, tokens: int, state: int, *, compiled: bool = True
) -> Mapping[Recompute, int]:
    """Bytes at the peak of a step under each policy."""
    return {
        policy: state + activation_bytes(config, tokens, policy, compiled=compiled)
        for policy in POLICIES
    }


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
