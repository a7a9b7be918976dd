"""Same weights, same answers as diffusers' transformer, which supports a timestep per token."""

import copy
import warnings

import pytest
import torch

from gc25d.model.weights.names import to_diffusers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    diffusers = pytest.importorskip("diffusers")
    from diffusers import WanTransformer3DModel


@pytest.fixture
def peer(small_config, base_model):
    model = WanTransformer3DModel(
        num_attention_heads=small_config.num_heads,
        attention_head_dim=small_config.head_dim,
        in_channels=small_config.in_channels,
        out_channels=small_config.out_channels,
        text_dim=small_config.text_dim,
        freq_dim=small_config.freq_dim,
        ffn_dim=small_config.ffn_dim,
        num_layers=small_config.num_layers,
    )
    state = {to_diffusers(name): tensor for name, tensor in base_model.state_dict().items()}
    model.load_state_dict(state, strict=True)
    return model


def run_peer(peer, inputs):
    """diffusers knows one prompt a sample, padded to its full length, and one time a token."""
    tokens = inputs["timestep"].repeat_interleave(2 * 3, dim=1)
    prompts = inputs["prompts"][inputs["context_ids"][:, 0]]
    return peer(inputs["latents"], tokens, prompts, return_dict=False)[0]


@pytest.mark.parametrize("chosen", [(0, 3), (2, 1)])
def test_forward_and_every_gradient_agree(base_model, peer, inputs, chosen):
    inputs["context_ids"] = torch.tensor(chosen)[:, None].expand(2, 3)
    target = torch.randn(inputs["latents"].shape, generator=torch.Generator().manual_seed(5))
    ours = base_model(**inputs).prediction
    theirs = run_peer(peer, inputs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    (ours - target).square().mean().backward()
    (theirs - target).square().mean().backward()
    expected = {name: parameter.grad for name, parameter in peer.named_parameters()}
    for name, parameter in base_model.named_parameters():
        grad = expected.pop(to_diffusers(name))
        assert grad.norm() > 0, name
        assert (parameter.grad - grad).norm() <= 1e-4 * grad.norm(), name
    assert not expected


def test_with_the_condition_every_gradient_agrees(small_model, peer, inputs):
    """diffusers' patches gain ours at the hook; its own autograd then reaches the condition."""
    inputs["context_ids"] = torch.tensor([0, 3])[:, None].expand(2, 3)
    condition = copy.deepcopy(small_model.gc_sem_cond)

    def add(module, arguments, patches):
        added = condition(inputs["sem_ids"])
        return patches + added.transpose(1, 2).reshape(patches.shape)

    peer.patch_embedding.register_forward_hook(add)
    ours, theirs = small_model(**inputs).prediction, run_peer(peer, inputs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    for prediction in (ours, theirs):
        prediction.square().mean().backward()
    expected = {name: p.grad for name, p in peer.named_parameters()}
    expected |= {f"gc_sem_cond.{name}": p.grad for name, p in condition.named_parameters()}
    for name, parameter in small_model.named_parameters():
        grad = expected.pop(to_diffusers(name))
        assert grad.norm() > 0, name
        assert (parameter.grad - grad).norm() <= 1e-4 * grad.norm(), name
    assert not expected


def test_a_condition_that_starts_at_zero_changes_no_bit(small_model, base_model, inputs):
    with torch.no_grad():
        for parameter in small_model.gc_sem_cond.proj_out.parameters():
            parameter.zero_()
    predictions = [model(**inputs).prediction for model in (small_model, base_model)]
    for prediction in predictions:
        prediction.square().mean().backward()
    assert torch.equal(*predictions)
    grads = {name: parameter.grad for name, parameter in small_model.named_parameters()}
    for name, parameter in base_model.named_parameters():
        assert torch.equal(grads[name], parameter.grad), name
    assert grads["gc_sem_cond.proj_out.weight"].any()  # from where it learns
