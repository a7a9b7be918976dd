"""The peer: diffusers' `WanTransformer3DModel`, as the benchmarks run it."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.common.micro import TIMESTEP, Size, choose_kernels, fill_model
from gc25d.dataset.batch import Batch
from gc25d.model.attention import attention_backends
from gc25d.model.wan.transformer import WanModel
from gc25d.model.weights.names import to_diffusers


class Peer:
    """diffusers' `WanTransformer3DModel`, all parameters and gradients in bf16.

    It knows no semantic condition and one prompt, of 512 rows. It is given one timestep, its
    cheapest call; noise, target and noisy latents are made beforehand.
    """

    def __init__(self, size: Size, device: torch.device) -> None:
        self.model = diffusers_model(size, device)
        self.device = device
        self.model.train()

    def mode(self, *, checkpointing: bool) -> Callable[[], None]:
        """Set its gradient checkpointing, and the fastest kernels."""

        def prepare() -> None:
            choose_kernels(deterministic=False)
            if checkpointing:
                self.model.enable_gradient_checkpointing()
            else:
                self.model.disable_gradient_checkpointing()

        return prepare

    def compile(self) -> None:
        """Its own per-block compilation."""
        self.model.compile_repeated_blocks(fullgraph=True)

    def train(self, batch: Batch, *, best_attention: bool) -> Callable[[], None]:
        """One micro-batch, forward and backward."""
        inputs = self._inputs(batch)
        target = torch.randn_like(batch.latents, dtype=torch.float32)

        def run() -> None:
            prediction = self.model(*inputs, return_dict=False)[0]
            nn.functional.mse_loss(prediction.float(), target).backward()

        return self._with_attention(run) if best_attention else run

    def sample(self, batch: Batch) -> Callable[[], None]:
        """One forward pass of sampling with the fastest attention."""
        inputs = self._inputs(batch)

        @torch.inference_mode()
        def run() -> None:
            self.model(*inputs, return_dict=False)

        return self._with_attention(run)

    def _inputs(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        timestep = torch.full((1,), TIMESTEP, device=self.device)
        return batch.latents, timestep, batch.prompts[:1]

    def _with_attention(self, run: Callable[[], None]) -> Callable[[], None]:
        def inside() -> None:
            with attention_backends(self.device):
                run()

        return inside


def diffusers_model(size: Size, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Its transformer with seeded weights on `device`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diffusers import WanTransformer3DModel
        from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
    config = size.config
    with torch.device("meta"):
        model = WanTransformer3DModel(
            num_attention_heads=config.num_heads,
            attention_head_dim=config.head_dim,
            in_channels=config.in_channels,
            out_channels=config.out_channels,
            text_dim=config.text_dim,
            freq_dim=config.freq_dim,
            ffn_dim=config.ffn_dim,
            num_layers=config.num_layers,
        )
    fill_model(model, device, dtype)
    # Its tables are buffers, which were never computed on the meta device.
    model.rope = WanRotaryPosEmbed(config.head_dim, model.config.patch_size, 1024).to(device)
    return model


def copy_weights(source: WanModel, target: nn.Module) -> None:
    """Give diffusers' model the base weights of ours."""
    own = target.state_dict()
    with torch.no_grad():
        for name, tensor in source.state_dict().items():
            if to_diffusers(name) in own:
                own[to_diffusers(name)].copy_(tensor)
