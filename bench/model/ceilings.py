"""What the device reaches on matrix products and on attention alone, at a model's shapes."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.common.flops import TERA, Ceilings
from bench.common.micro import choose_kernels
from bench.common.timing import release, seconds
from gc25d.model.config import WanConfig

KERNELS = {
    "cuda": {
        "cudnn": (SDPBackend.CUDNN_ATTENTION, False),
        "flash": (SDPBackend.FLASH_ATTENTION, False),
        "flash, deterministic": (SDPBackend.FLASH_ATTENTION, True),
    },
    "cpu": {"flash": (SDPBackend.FLASH_ATTENTION, False)},
}
"""Back ends of attention, and whether sums in a fixed order are asked for."""
CALLS = {"cuda": 20, "cpu": 1}


def measure_ceilings(
    config: WanConfig, tokens: int, device: torch.device, repeats: int
) -> tuple[Ceilings, dict[str, Any]]:
    """The best rates, and all of them in TFLOP/s."""
    matmul = matmul_rates(config, tokens, device, repeats)
    forward, training = {}, {}
    for name, (backend, deterministic) in KERNELS[device.type].items():
        choose_kernels(deterministic=deterministic)
        try:
            taken = attention_rates(config, tokens, device, repeats, backend)
        except RuntimeError as error:  # not every GPU has every back end
            print(f"attention with {name}: {error}".splitlines()[0])
            continue
        forward[name], training[name] = taken
    choose_kernels(deterministic=False)
    release(device)
    best = Ceilings(*(max(rates.values()) for rates in (matmul, forward, training)))
    parts = {"matmul": matmul, "attention forward": forward, "attention training": training}
    return best, {
        part: {name: round(rate / TERA, 4) for name, rate in rates.items()}
        for part, rates in parts.items()
    }


def operations_per_second(
    run: Callable[[], object], operations: float, device: torch.device, repeats: int
) -> float:
    """Operations a second of a call, from the median over `repeats` of a row of calls."""
    calls = CALLS[device.type]

    def row() -> None:
        for _ in range(calls):
            run()

    row()
    taken = statistics.median(seconds(row, device) for _ in range(repeats))
    return operations * calls / taken


def matmul_rates(
    config: WanConfig, tokens: int, device: torch.device, repeats: int
) -> dict[str, float]:
    """Of a block's layers, forward and for the gradients of input and weight."""
    rates = {}
    for inputs, outputs in (
        (config.dim, config.dim),
        (config.dim, config.ffn_dim),
        (config.ffn_dim, config.dim),
    ):
        x, y, weight = (
            torch.randn(shape, device=device, dtype=torch.bfloat16)
            for shape in ((tokens, inputs), (tokens, outputs), (outputs, inputs))
        )
        products: dict[str, Callable[[], Tensor]] = {
            "forward": lambda x=x, weight=weight: x @ weight.T,
            "input gradient": lambda y=y, weight=weight: y @ weight,
            "weight gradient": lambda x=x, y=y: y.T @ x,
        }
        for name, product in products.items():
            rate = operations_per_second(product, 2.0 * tokens * inputs * outputs, device, repeats)
            rates[f"{inputs} to {outputs}, {name}"] = rate
    return rates


def attention_rates(
    config: WanConfig, tokens: int, device: torch.device, repeats: int, backend: SDPBackend
) -> tuple[float, float]:
    """Self-attention with the model's strides: forward, and forward and backward together."""
    shape = (1, tokens, config.num_heads, config.head_dim)
    query, key, value, gradient = (
        torch.randn(shape, device=device, dtype=torch.bfloat16).transpose(1, 2) for _ in range(4)
    )
    forward = 4.0 * tokens * tokens * config.dim

    def attend() -> Tensor:
        return scaled_dot_product_attention(query, key, value)

    def train() -> None:
        torch.autograd.grad(attend(), (query, key, value), gradient)

    with sdpa_kernel(backend):
        forward_rate = operations_per_second(attend, forward, device, repeats)
        for tensor in (query, key, value):
            tensor.requires_grad_()
        return forward_rate, operations_per_second(train, 3.5 * forward, device, repeats)
