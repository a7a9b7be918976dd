"""The semantic condition and low precision of the models that are diffusers' own classes."""

import dataclasses

import pytest
import torch
from torch import nn

from gc25d.model.config import CosmosConfig, HunyuanConfig
from gc25d.model.zoo import build_model

COSMOS = CosmosConfig(
    num_heads=2, head_dim=18, num_layers=2, adaln_dim=6, text_dim=10, cond_dim=16, in_channels=4
)
HUNYUAN = HunyuanConfig(
    num_heads=2,
    head_dim=12,
    num_layers=2,
    num_single_layers=1,
    num_refiner_layers=1,
    rope_dims=(4, 4, 4),
    text_dim=10,
    cond_dim=16,
    in_channels=4,
)
# A configuration, and what of it makes the model one without blocks.
each_model = pytest.mark.parametrize(
    ("config", "no_blocks"),
    [(COSMOS, {"num_layers": 0}), (HUNYUAN, {"num_layers": 0, "num_single_layers": 0})],
    ids=["cosmos", "hunyuan"],
)


@pytest.fixture
def inputs() -> dict:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 30, 0])
    prompts = torch.randn(3, 40, 10, generator=generator)
    prompts *= (torch.arange(40) < lengths[:, None])[..., None]
    return {
        "latents": torch.randn(2, 4, 3, 4, 6, generator=generator),
        "timestep": torch.tensor([[0.0, 411.5, 411.5], [0.0, 801.5, 801.5]]),
        "prompts": prompts,
        "prompt_lengths": lengths,
        "context_ids": torch.tensor([[0, 1, 1], [1, 0, 2]]),
    }


def conditioned(config) -> nn.Module:
    model = build_model(dataclasses.replace(config, vocab="ids"), 3, zero_head=False)
    nn.init.normal_(model.gc_sem_cond.proj_out.weight, generator=torch.Generator().manual_seed(1))
    return model


@each_model
def test_the_condition_of_a_place_goes_to_its_token(inputs, config, no_blocks):
    """Without blocks a token's prediction depends on that token alone."""
    model = conditioned(dataclasses.replace(config, **no_blocks))
    sem_ids = torch.zeros(2, 9, 64, 96, dtype=torch.uint8)
    before = model(**inputs, sem_ids=sem_ids).prediction
    sem_ids[1, 5:, 32:, 64:] = 4  # latent frame 2, row 1, column 2
    change = (model(**inputs, sem_ids=sem_ids).prediction - before).abs()
    assert (change[1, :, 2, 2:, 4:] > 0).all()
    change[1, :, 2, 2:, 4:] = 0
    assert not change.any()


@each_model
def test_a_new_condition_changes_nothing(inputs, config, no_blocks):
    plain = build_model(config, 3, zero_head=False)
    model = build_model(dataclasses.replace(config, vocab="parts"), 3, zero_head=False)
    sem_ids = torch.randint(0, 7, (2, 9, 64, 96), dtype=torch.uint8)
    assert torch.equal(model(**inputs, sem_ids=sem_ids).prediction, plain(**inputs).prediction)


@each_model
def test_low_precision_weights_run(inputs, config, no_blocks):
    sem_ids = torch.zeros(2, 9, 64, 96, dtype=torch.uint8)
    full = conditioned(config)(**inputs, sem_ids=sem_ids).prediction
    low = conditioned(config).to(torch.bfloat16)(**inputs, sem_ids=sem_ids).prediction
    with torch.autocast("cpu", torch.bfloat16):
        mixed = conditioned(config)(**inputs, sem_ids=sem_ids).prediction
    assert low.dtype == torch.bfloat16
    for prediction in (low, mixed):
        assert (prediction - full).square().mean() < 1e-2 * full.square().mean()
