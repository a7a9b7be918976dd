"""How a model runs: compiled or not, and which blocks are recomputed in the backward pass.

Neither changes what is computed: compilation rounds differently, recomputation not at all.
"""

import logging
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from gc25d.errors import UserError
from gc25d.model.attention import allow_variants
from gc25d.model.interface import VideoModel
from gc25d.model.memory import Recompute, choose_recompute, recomputed_blocks
from gc25d.model.wan.transformer import WanModel

logger = logging.getLogger(__name__)

CompileChoice: TypeAlias = Literal["auto", "on", "off"]
RecomputeChoice: TypeAlias = Literal["none", "half", "all", "auto"]


@dataclass(frozen=True)
class Execution:
    """What was chosen for a model."""

    compiled: bool
    recompute: Recompute


def prepare_execution(
    model: VideoModel,
    *,
    compile_choice: CompileChoice,
    recompute: RecomputeChoice,
    device: torch.device,
    tokens: int,
    state_bytes: int,
) -> Execution:
    """Choose and set how `model` runs on `device`, and log the choice.

    Args:
        model: of the zoo.
        compile_choice: `auto` compiles on GPUs.
        recompute: `auto` takes the least that fits the GPU, and none on the CPU.
        device: where it will run.
        tokens: of a micro-batch, B·N.
        state_bytes: what weights, gradients and optimizer will take of the device's memory.

    Raises:
        UserError: `auto`, and the training does not fit the GPU; or another library's model is to
            be recomputed.
    """
    compiled = device.type == "cuda" if compile_choice == "auto" else compile_choice == "on"
    policy = _policy(model, recompute, device, tokens, state_bytes, compiled=compiled)
    if isinstance(model, WanModel):
        set_recompute(model, policy)
    if compiled:
        compile_blocks(model)
    logger.info("blocks are %scompiled, recompute: %s", "" if compiled else "not ", policy)
    return Execution(compiled, policy)


def compile_blocks(model: VideoModel) -> None:
    """Compile each block, and a Wan model's condition and head, in place at their first call.

    Blocks share their code and are compiled once; the number of prompts and their rows become
    dynamic at their first change.
    """
    allow_variants()
    for block in model.blocks:
        block.compile()
    if isinstance(model, WanModel):
        model.head.compile()
        if model.gc_sem_cond is not None:
            model.gc_sem_cond.compile()


def forget_compiled() -> None:
    """Let blocks be compiled anew at their next call.

    What the compiler saw in a pass without gradients, above all sizes that changed, would decide
    how it compiles the training's passes, and with that their last bits.
    """
    torch.compiler.reset()


def set_recompute(model: WanModel, policy: Recompute) -> None:
    """Let `model` recompute the blocks that `policy` names."""
    model.recomputed = recomputed_blocks(policy, len(model.blocks))


def _policy(
    model: VideoModel,
    recompute: RecomputeChoice,
    device: torch.device,
    tokens: int,
    state_bytes: int,
    *,
    compiled: bool,
) -> Recompute:
    if not isinstance(model, WanModel):
        if recompute in ("half", "all"):
            raise UserError(
                f"model.recompute is {recompute}, which {type(model).__name__} does not know: "
                "use none or auto"
            )
        return "none"
    if recompute != "auto":
        return recompute
    if device.type != "cuda":
        return "none"
    memory = torch.cuda.get_device_properties(device).total_memory
    return choose_recompute(model.config, tokens, memory, state_bytes, compiled=compiled)
