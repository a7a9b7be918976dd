import logging

import pytest
import torch

from gc25d.errors import UserError
from gc25d.model.execution import compile_blocks, prepare_execution, set_recompute
from gc25d.model.memory import (
    activation_bytes,
    choose_recompute,
    needed_bytes,
    recomputed_blocks,
)
from gc25d.model.zoo import WanConfig, build_model
from gc25d.settings.tree import Geometry
from gc25d.train.outputs.probe import probe_inputs

CPU = torch.device("cpu")
# 1000 tokens: 200 kB a tensor of a token's width, 400 kB one of the hidden width.
CONFIG = WanConfig(dim=100, ffn_dim=200, num_heads=2, num_layers=4)
KEPT = 22 * 200_000 + 400_000
WORKING = 6 * 200_000 + 3 * 400_000
NEEDS = {
    "none": 4 * KEPT + WORKING,
    "half": 2 * KEPT + 2 * 200_000 + WORKING + KEPT,
    "all": 4 * 200_000 + WORKING + KEPT,
}


def gradients(model, inputs, policy):
    set_recompute(model, policy)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**inputs).prediction.float().square().sum()
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("policy", ["half", "all"])
def test_recomputed_gradients_are_the_same_bits(small_model, inputs, policy):
    loss, expected = gradients(small_model, inputs, "none")
    again, found = gradients(small_model, inputs, policy)
    assert torch.equal(loss, again)
    assert len(found) == len(expected) > 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_recomputed_block_keeps_only_its_input(small_model, inputs):
    def saved(policy):
        sizes = []
        set_recompute(small_model, policy)

        def pack(tensor):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            small_model(**inputs)
        return sum(sizes)

    assert saved("all") < saved("half") < saved("none")


@pytest.mark.parametrize(
    ("policy", "expected"), [("none", set()), ("half", {0, 2, 4}), ("all", {0, 1, 2, 3, 4})]
)
def test_which_blocks_run_again(policy, expected):
    assert recomputed_blocks(policy, 5) == expected


@pytest.mark.parametrize("policy", ["none", "half", "all"])
def test_bytes_by_hand(policy):
    assert activation_bytes(CONFIG, 1000, policy) == NEEDS[policy]
    assert needed_bytes(CONFIG, 1000, 7)[policy] == NEEDS[policy] + 7


@pytest.mark.parametrize("policy", ["none", "half", "all"])
def test_the_least_recomputation_that_fits_is_chosen(policy):
    state = 10_000_000
    enough = round((NEEDS[policy] + state) / 0.92) + 1
    assert choose_recompute(CONFIG, 1000, enough, state) == policy
    if policy != "all":
        assert choose_recompute(CONFIG, 1000, enough - 2, state) != policy


def test_what_never_fits_is_refused_with_the_sizes():
    with pytest.raises(UserError, match=r"18\.6 GiB; the GPU has 16\.0 GiB: use more GPUs"):
        choose_recompute(CONFIG, 1000, 2**34, 20 * 10**9)


def test_on_a_cpu_auto_keeps_everything_and_compiles_nothing(small_model, caplog):
    with caplog.at_level(logging.INFO):
        chosen = prepare_execution(
            small_model,
            compile_choice="auto",
            recompute="auto",
            device=CPU,
            tokens=18,
            state_bytes=0,
        )
    assert (chosen.compiled, chosen.recompute) == (False, "none")
    assert "blocks are not compiled, recompute: none" in caplog.text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own doings
def test_compiled_and_eager_losses_agree():
    config = WanConfig(
        dim=96, ffn_dim=192, num_heads=4, num_layers=2, text_dim=32, vocab="parts", cond_dim=32
    )
    inputs = probe_inputs(config, Geometry(frames=5, height=64, width=64), 16)
    model = build_model(config, 0, zero_head=False)
    eager = model(*inputs).prediction.square().mean()
    compile_blocks(model)
    compiled = model(*inputs).prediction.square().mean()
    torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=0)
