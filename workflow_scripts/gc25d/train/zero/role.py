"""A trained role under DeepSpeed's ZeRO-2: its engine, its gradients, and its part of the state.

A process owns a contiguous part of each optimizer group's flattened fp32 master weights and
moments; the whole weights that it computes with are in the run's precision.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gc25d.errors import UserError
from gc25d.train.engine import MOMENTS, bf16_weights
from gc25d.train.states.fragments import Fragment

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class ZeroRole:
    """A role's network in DeepSpeed's hands."""

    name: str
    deepspeed: Any
    """DeepSpeed's engine around the network."""
    optimizer: Optimizer
    """The role's own AdamW, over this process's part of the master weights."""

    @property
    def zero(self) -> Any:
        """DeepSpeed's ZeRO-2 optimizer."""
        return self.deepspeed.optimizer

    def backward(self, loss: Tensor) -> None:
        """Accumulate a loss's gradients."""
        self.deepspeed.backward(loss, scale_wrt_gas=False)

    def gradients(self) -> Iterator[Tensor]:
        """This process's part of the step's gradients, the padding included (zeros)."""
        for group in range(len(self.zero.bit16_groups)):
            yield from self.zero.averaged_gradients[group]

    def weights(self) -> dict[str, Tensor]:
        """The weights that this process computes with, bf16 on the CPU."""
        return bf16_weights(self.deepspeed.module)

    def fragments(self) -> list[Fragment]:
        """The parts of master weights and AdamW state that this process owns."""
        zero = self.zero
        names = {id(p): name for name, p in self.deepspeed.module.named_parameters()}
        return [
            fragment
            for group, flat in zip(
                zero.bit16_groups, zero.single_partition_of_fp32_groups, strict=True
            )
            for parameter in group
            if parameter._hp_mapping is not None
            for fragment in _owned(
                f"{self.name}/{names[id(parameter)]}", parameter, self.optimizer.state[flat]
            )
        ]

    def restore_masters(self, weights: Mapping[str, Tensor]) -> None:
        """Start from the weights as they were: DeepSpeed makes masters from rounded ones."""
        for name, parameter in self.deepspeed.module.named_parameters():
            mapping = getattr(parameter, "_hp_mapping", None)
            if mapping is not None:
                place = mapping.lp_fragment_address
                whole = weights[name].reshape(-1)
                mapping.hp_fragment.data.copy_(whole[place.start : place.start + place.numel])

    def check(self, precision: str) -> None:
        """What was configured is what runs.

        Raises:
            UserError: names the option that differs.
        """
        zero = self.zero
        found = {
            "stage 2": getattr(zero, "partition_gradients", False),
            "own clipping off": getattr(zero, "clip_grad", None) == 0,
            "fp32 masters": zero.single_partition_of_fp32_groups[0].dtype == torch.float32,
            "fp32 accumulation": zero.gradient_accumulation_dtype == torch.float32,
            f"{precision} weights": zero.dtype == PRECISIONS[precision],
            "sums over processes": not zero.gradient_average,
        }
        wrong = [name for name, right in found.items() if not right]
        if wrong:
            raise UserError(
                f"DeepSpeed does not run with {', '.join(wrong)}: install the pinned version of "
                "envs/gpu.txt"
            )


class ZeroStep(Optimizer):
    """A method's AdamW, whose step is that of DeepSpeed's engine on the whole model."""

    def __init__(self, engine: Any, wrapped: Optimizer) -> None:
        """Share the wrapped optimizer's groups and state: schedulers write the rates there."""
        self.engine, self.wrapped = engine, wrapped
        self.defaults = wrapped.defaults
        self.param_groups = wrapped.param_groups
        self.state = wrapped.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update master weights and moments, then every process's weights."""
        self.engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients of a step that was not taken."""
        self.engine.optimizer.zero_grad(set_to_none)


def _owned(name: str, parameter: nn.Parameter, state: dict[str, Tensor]) -> Iterator[Fragment]:
    """This process's part of a parameter's master weight and of its moments."""
    mapping: Any = parameter._hp_mapping  # type: ignore[attr-defined]
    shape, start = tuple(parameter.shape), mapping.lp_fragment_address.start
    place = mapping.hp_fragment_address
    yield Fragment(f"{name}:weight", shape, start, mapping.hp_fragment.detach())
    for kind in MOMENTS:
        if kind == "step":  # one count for the group: each of its tensors tells it
            yield Fragment(f"{name}:step", (), 0, state["step"].view(-1))
        else:
            yield Fragment(
                f"{name}:{kind}", shape, start, state[kind].narrow(0, place.start, place.numel)
            )
