"""A model of two blocks, and inputs for it."""

import dataclasses

import pytest
import torch

from gc25d.model.config import WanConfig
from gc25d.model.wan.causal import CausalWanModel
from gc25d.model.zoo import build_model

SMALL = WanConfig(
    dim=48,
    ffn_dim=80,
    num_heads=2,
    num_layers=2,
    text_dim=20,
    vocab="parts",
    cond_dim=16,
    in_channels=8,
    out_channels=8,
    freq_dim=32,
)
LENGTHS = (7, 0, 24, 23)


@pytest.fixture
def small_config():
    return SMALL


@pytest.fixture
def small_model():
    model = build_model(SMALL, seed=3, zero_head=False)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():  # nothing stays at its neutral value, so that a dropped term shows
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model


@pytest.fixture
def base_model(small_model):
    """`small_model` without the semantic condition, same weights."""
    model = build_model(dataclasses.replace(SMALL, vocab=None), seed=0)
    shared = {n: t for n, t in small_model.state_dict().items() if n in model.state_dict()}
    model.load_state_dict(shared, strict=True)
    return model


@pytest.fixture
def inputs():
    """Two samples of three latent frames, 2×3 tokens a frame; four prompts, one of them empty."""
    generator = torch.Generator().manual_seed(4)
    prompts = torch.randn(4, 24, 20, generator=generator)
    for prompt, length in zip(prompts, LENGTHS, strict=True):
        prompt[length:] = 0
    classes = torch.tensor([0, 1, 2, 3, 4, 5, 6, 10, 15, 16, 21, 255], dtype=torch.uint8)
    return {
        "latents": torch.randn(2, 8, 3, 4, 6, generator=generator),
        "timestep": torch.tensor([[0.0, 711.5, 711.5], [0.0, 201.342, 799.712]]),
        "prompts": prompts,
        "prompt_lengths": torch.tensor(LENGTHS),
        "context_ids": torch.tensor([[0, 0, 1], [3, 2, 0]]),
        "sem_ids": classes[torch.randint(0, 12, (2, 9, 64, 96), generator=generator)],
    }


@pytest.fixture
def clip(inputs):
    """As `inputs`, with five latent frames, each at its own timestep."""
    generator = torch.Generator().manual_seed(6)
    timestep = 1000 * torch.rand(2, 5, generator=generator)
    timestep[:, 0] = 0
    sem_ids = torch.randint(0, 7, (2, 17, 64, 96), generator=generator)
    return inputs | {
        "latents": torch.randn(2, 8, 5, 4, 6, generator=generator),
        "timestep": timestep,
        "context_ids": torch.tensor([[0, 0, 1, 2, 2], [3, 2, 0, 1, 0]]),
        "sem_ids": sem_ids.to(torch.uint8),
    }


@pytest.fixture
def causal(small_model):
    """Makes `small_model` block-causal with chunks of so many latent frames."""

    def build(chunk_frames):
        model = CausalWanModel(small_model.config, chunk_frames)
        model.load_state_dict(small_model.state_dict(), strict=True)
        return model

    return build
