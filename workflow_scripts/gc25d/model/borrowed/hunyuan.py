"""HunyuanVideo's image-to-video transformer (diffusers' class) behind the project's interface.

Tensors are called `transformer.<diffusers' name>`. Importing this module imports diffusers.
"""

from typing import cast

import torch
from diffusers import HunyuanVideoTransformer3DModel
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from gc25d.errors import UserError
from gc25d.model.attention import attention_backends
from gc25d.model.config import HunyuanConfig
from gc25d.model.interface import ModelOutput, check_inputs, condition_added, first_prompts
from gc25d.model.semantic import SemanticCondition
from gc25d.model.text import cut_prompts
from gc25d.shapes import ContextIds, Latents, Prompts

_GUIDANCE_UNIT = 1000.0  # the guidance scale is embedded like a timestep


class HunyuanModel(nn.Module):
    """The transformer; `gc_sem_cond` exists when the configuration names a vocabulary."""

    def __init__(self, config: HunyuanConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = HunyuanVideoTransformer3DModel(
            in_channels=config.in_channels,
            out_channels=config.in_channels,
            num_attention_heads=config.num_heads,
            attention_head_dim=config.head_dim,
            num_layers=config.num_layers,
            num_single_layers=config.num_single_layers,
            num_refiner_layers=config.num_refiner_layers,
            guidance_embeds=True,
            text_embed_dim=config.text_dim,
            pooled_projection_dim=config.text_dim,
            rope_axes_dim=config.rope_dims,
            image_condition_type="token_replace",
        )
        self.gc_sem_cond = (
            SemanticCondition(config.vocab, config.cond_dim, config.dim) if config.vocab else None
        )

    @property
    def blocks(self) -> nn.ModuleList:
        """The two-stream blocks; `transformer.single_transformer_blocks` follow them."""
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
        """Predict the velocity of latents whose first frame is clean (arguments: `VideoModel`).

        One prompt a sample, the first latent frame's; one timestep a sample, the last frame's. The
        mean of the prompt's tokens stands where HunyuanVideo reads CLIP's pooled vector.

        Raises:
            UserError: sizes that do not fit each other or the model, or timesteps that it cannot
                have (checked on the CPU only, where it is cheap).
        """
        check_inputs(self.config, latents, prompts, sem_ids)
        _check_timesteps(timestep)
        dtype = self.transformer.dtype
        cut = cut_prompts(prompts, prompt_lengths).to(dtype)
        text, lengths = first_prompts(cut, prompt_lengths, context_ids)
        real = torch.arange(text.shape[1], device=text.device) < lengths[:, None]
        with (
            attention_backends(latents.device),
            condition_added(self.transformer.x_embedder, self.gc_sem_cond, sem_ids) as stats,
        ):
            (prediction,) = self.transformer(
                latents.to(dtype),
                timestep=timestep[:, -1],
                encoder_hidden_states=text,
                encoder_attention_mask=real,
                pooled_projections=text.sum(1) / lengths[:, None],
                guidance=torch.full_like(timestep[:, -1], _GUIDANCE_UNIT * self.config.guidance),
                return_dict=False,
            )
        return ModelOutput(prediction, stats)


def _check_timesteps(timestep: Tensor) -> None:
    """A clean first frame, the others at one timestep."""
    if timestep.device.type != "cpu":
        return
    if timestep[:, 0].any() or (timestep[:, 1:] != timestep[:, -1:]).any():
        raise UserError(
            f"timesteps {timestep.tolist()}: hunyuan takes 0 for the first frame and one value for "
            "all others of a sample: train it with a method that has these (docs/models.md)"
        )
