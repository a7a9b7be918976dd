"""Cosmos-Predict2's video-to-world transformer (diffusers' class) behind the project's interface.

Tensors are called `transformer.<diffusers' name>`. Importing this module imports diffusers.
"""

from typing import cast

import torch
from diffusers import CosmosTransformer3DModel
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from gc25d.model.attention import attention_backends
from gc25d.model.config import CosmosConfig
from gc25d.model.interface import ModelOutput, check_inputs, condition_added, first_prompts
from gc25d.model.semantic import SemanticCondition
from gc25d.shapes import ContextIds, Latents, Prompts

_MASKS = 2  # channels beside the latents: which frames are clean, and padding (none)
_TIMESTEPS_PER_SIGMA = 1000.0  # Cosmos-Predict2 embeds σ itself


class CosmosModel(nn.Module):
    """The transformer; `gc_sem_cond` exists when the configuration names a vocabulary."""

    def __init__(self, config: CosmosConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = CosmosTransformer3DModel(
            in_channels=config.in_channels + _MASKS,
            out_channels=config.in_channels,
            num_attention_heads=config.num_heads,
            attention_head_dim=config.head_dim,
            num_layers=config.num_layers,
            text_embed_dim=config.text_dim,
            adaln_lora_dim=config.adaln_dim,
            rope_scale=config.rope_scale,
            concat_padding_mask=False,  # given here: the class would need torchvision for it
            extra_pos_embed_type=None,
        )
        self.gc_sem_cond = (
            SemanticCondition(config.vocab, config.cond_dim, config.dim) if config.vocab else None
        )

    @property
    def blocks(self) -> nn.ModuleList:
        """All its blocks."""
        return cast(nn.ModuleList, self.transformer.transformer_blocks)

    def forward(
        self,
        latents: Latents,
        timestep: Float[Tensor, "B F"],
        prompts: Prompts,
        prompt_lengths: Int[Tensor, " P"],
        context_ids: ContextIds,
        sem_ids: UInt8[Tensor, "B T H W"] | None = None,
    ) -> ModelOutput:
        """Predict the velocity of noisy latents (arguments: `VideoModel`).

        One prompt a sample, the first latent frame's, with its zero padding, which Cosmos attends
        to. Every frame has its own timestep; those at 0 are marked clean.

        Raises:
            UserError: sizes that do not fit each other or the model.
        """
        check_inputs(self.config, latents, prompts, sem_ids)
        noisy = latents.to(self.transformer.dtype)
        text, _ = first_prompts(prompts.to(noisy.dtype), prompt_lengths, context_ids)
        with (
            attention_backends(latents.device),
            condition_added(self.transformer.patch_embed, self.gc_sem_cond, sem_ids) as stats,
        ):
            (prediction,) = self.transformer(
                torch.cat([noisy, _masks(noisy, timestep)], dim=1),
                timestep=timestep[:, None, :, None, None] / _TIMESTEPS_PER_SIGMA,
                encoder_hidden_states=text,
                return_dict=False,
            )
        return ModelOutput(prediction, stats)


def _masks(latents: Latents, timestep: Float[Tensor, "B F"]) -> Tensor:
    """Clean frames 1, padding 0: [B, 2, F, h, w] in the latents' dtype."""
    clean = (timestep == 0).to(latents.dtype)[:, None, :, None, None]
    shape = (*clean.shape[:3], *latents.shape[3:])
    return torch.cat([clean.expand(shape), torch.zeros_like(clean).expand(shape)], dim=1)
