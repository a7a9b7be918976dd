"""A forward pass that can be repeated elsewhere: the fingerprint of an exported model."""

from typing import cast

import torch
from torch import Tensor, nn

from gc25d.dataset.actions import Actions, random_actions
from gc25d.dataset.draws import torch_seed
from gc25d.model.config import MatrixGameConfig
from gc25d.model.interface import ModelConfig, ModelOutput
from gc25d.prep.parts import SEM
from gc25d.settings.tree import Geometry

PROBE_TIMESTEP = 500.6
PROBE_SEED = 0
PROMPTS = 2


def probe(model: nn.Module, geometry: Geometry, text_length: int) -> Tensor:
    """The model's prediction on seeded inputs of the run's geometry, float32 [1, 48, F, h, w].

    Every semantic class appears and frames have different prompts, so that no tensor of the model
    is idle.
    """
    device = next(model.parameters()).device
    config = cast(ModelConfig, model.config)
    inputs = probe_inputs(config, geometry, text_length)
    with torch.inference_mode():
        output: ModelOutput = model(*(part.to(device) for part in inputs))
    return output.prediction.float().cpu()


def probe_inputs(
    config: ModelConfig, geometry: Geometry, text_length: int
) -> tuple[Tensor | Actions, ...]:
    """Latents, timestep, prompts, lengths, context ids and semantic ids from a fixed seed.

    Actions follow for a model that takes them.
    """
    generator = torch.Generator("cpu").manual_seed(torch_seed(PROBE_SEED, "probe"))
    frames, height, width = geometry.frames, geometry.height, geometry.width
    latent_frames = (frames - 1) // 4 + 1
    shape = (1, config.in_channels, latent_frames, height // 16, width // 16)
    latents = torch.randn(shape, generator=generator)
    timestep = torch.full((1, latent_frames), PROBE_TIMESTEP)
    timestep[:, 0] = 0
    lengths = torch.tensor([0, text_length // 2])
    prompts = torch.zeros(PROMPTS, text_length, config.text_dim)
    prompts[1, : lengths[1]] = torch.randn(int(lengths[1]), config.text_dim, generator=generator)
    context_ids = (torch.arange(latent_frames) % PROMPTS)[None]
    known = torch.tensor(sorted(SEM.values()), dtype=torch.uint8)
    chosen = torch.randint(len(known), (1, frames, height, width), generator=generator)
    inputs = (latents, timestep, prompts, lengths, context_ids, known[chosen])
    if isinstance(config, MatrixGameConfig):
        return (*inputs, random_actions(1, frames, config.keys, generator))
    return inputs
