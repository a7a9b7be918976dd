"""`hunyuan` against diffusers' bare transformer with the same weights."""

import dataclasses
import warnings

import pytest
import torch
from torch import nn

from gc25d.errors import UserError
from gc25d.model.config import HunyuanConfig
from gc25d.model.zoo import build_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diffusers import HunyuanVideoTransformer3DModel

TINY = HunyuanConfig(
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


@pytest.fixture
def model() -> nn.Module:
    return build_model(TINY, 3, zero_head=False)


@pytest.fixture
def peer(model) -> HunyuanVideoTransformer3DModel:
    bare = HunyuanVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=2,
        num_single_layers=1,
        num_refiner_layers=1,
        text_embed_dim=10,
        pooled_projection_dim=10,
        rope_axes_dim=(4, 4, 4),
        image_condition_type="token_replace",
    )
    bare.load_state_dict(model.transformer.state_dict(), strict=True)
    return bare


@pytest.fixture
def inputs() -> dict:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 30, 0])
    prompts = torch.randn(3, 40, 10, generator=generator)
    prompts *= (torch.arange(40) < lengths[:, None])[..., None]
    return {
        "latents": torch.randn(2, 4, 3, 4, 6, generator=generator),
        "timestep": torch.tensor([[0.0, 300.0, 300.0], [0.0, 801.5, 801.5]]),
        "prompts": prompts,
        "prompt_lengths": lengths,
        "context_ids": torch.tensor([[1, 0, 0], [0, 1, 1]]),
    }


def run_peer(peer, inputs):
    """Prompts padded to their full 40 rows, each with its mask."""
    chosen = inputs["context_ids"][:, 0]
    text = inputs["prompts"][chosen]
    lengths = inputs["prompt_lengths"][chosen]
    means = [prompt[: max(1, n)].mean(0) for prompt, n in zip(text, lengths, strict=True)]
    return peer(
        inputs["latents"],
        timestep=inputs["timestep"][:, 1],
        encoder_hidden_states=text,
        encoder_attention_mask=(torch.arange(40) < lengths.clamp(min=1)[:, None]).long(),
        pooled_projections=torch.stack(means),
        guidance=torch.tensor([1000.0, 1000.0]),
        return_dict=False,
    )[0]


@pytest.mark.parametrize("chosen", [(1, 0), (0, 0), (2, 1)])
def test_forward_and_every_gradient_agree(model, peer, inputs, chosen):
    inputs["context_ids"] = torch.tensor(chosen)[:, None].expand(2, 3)
    ours = model(**inputs).prediction
    theirs = run_peer(peer, inputs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    ours.square().mean().backward()
    theirs.square().mean().backward()
    expected = dict(peer.named_parameters())
    for name, parameter in model.transformer.named_parameters():
        grad = expected[name].grad
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-3, atol=1e-6, msg=name)
        assert grad.isfinite().all(), name


def test_the_prompt_of_the_first_latent_frame_counts(model, inputs):
    first = model(**inputs).prediction
    inputs["context_ids"] = torch.tensor([[1, 1, 1], [0, 0, 0]])
    assert torch.equal(first, model(**inputs).prediction)
    inputs["context_ids"] = torch.tensor([[0, 0, 0], [0, 0, 0]])
    assert not torch.allclose(first, model(**inputs).prediction)


@pytest.mark.parametrize("timestep", [[[5.0, 300.0, 300.0]] * 2, [[0.0, 300.0, 299.0]] * 2])
def test_timesteps_that_it_cannot_have_are_refused(model, inputs, timestep):
    inputs["timestep"] = torch.tensor(timestep)
    with pytest.raises(UserError, match="one value for all others"):
        model(**inputs)


def test_sizes_that_do_not_fit_are_refused(model, inputs):
    with pytest.raises(UserError, match="4 channels, the model reads 48"):
        build_model(dataclasses.replace(TINY, in_channels=48), 0)(**inputs)
    with pytest.raises(UserError, match="even sides"):
        model(**{**inputs, "latents": inputs["latents"][..., :5]})
    with pytest.raises(UserError, match="9 wide, the model expects 10"):
        model(**{**inputs, "prompts": inputs["prompts"][..., :9]})


def conditioned() -> nn.Module:
    model = build_model(dataclasses.replace(TINY, vocab="ids"), 3, zero_head=False)
    nn.init.normal_(model.gc_sem_cond.proj_out.weight, generator=torch.Generator().manual_seed(1))
    return model


def test_a_uniform_condition_is_a_bias_of_the_patch_embedding(peer, inputs):
    model = conditioned()
    sem_ids = torch.full((2, 9, 64, 96), 3, dtype=torch.uint8)
    with torch.no_grad():
        peer.x_embedder.proj.bias += model.gc_sem_cond(sem_ids)[0, 0]
    output = model(**inputs, sem_ids=sem_ids)
    torch.testing.assert_close(output.prediction, run_peer(peer, inputs), rtol=0, atol=1e-5)
    condition = model.gc_sem_cond(sem_ids).detach()
    assert float(output.stats["sem_rms"]) == pytest.approx(float(condition.square().mean().sqrt()))
    unconditioned = model(**inputs)
    assert float(unconditioned.stats["sem_rms"]) == 0.0
    assert float(unconditioned.stats["x_rms"]) > 0
    assert not model.transformer.x_embedder._forward_hooks
