import subprocess
import sys

import pytest
import torch

from gc25d.errors import UserError
from gc25d.model.wan.transformer import sinusoidal_embedding


def test_two_runs_agree_bit_for_bit(small_model, inputs):
    runs = []
    for _ in range(2):
        small_model.zero_grad()
        output = small_model(**inputs)
        output.prediction.square().mean().backward()
        grads = [parameter.grad.clone() for parameter in small_model.parameters()]
        runs.append([output.prediction.detach(), *grads])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_samples_do_not_see_each_other(small_model, inputs):
    both = small_model(**inputs).prediction
    alone = dict(inputs)
    for name in ("latents", "timestep", "context_ids", "sem_ids"):
        alone[name] = inputs[name][1:]
    torch.testing.assert_close(small_model(**alone).prediction[0], both[1], rtol=0, atol=1e-5)


def test_order_and_repetition_of_prompts_do_not_matter(small_model, inputs):
    expected = small_model(**inputs).prediction
    order = torch.tensor([2, 0, 3, 1, 0])
    shuffled = dict(inputs)
    shuffled["prompts"] = inputs["prompts"][order]
    shuffled["prompt_lengths"] = inputs["prompt_lengths"][order]
    place = torch.tensor([4, 3, 0, 2])  # where each old prompt stands now, prompt 0 twice
    shuffled["context_ids"] = place[inputs["context_ids"]]
    result = small_model(**shuffled).prediction
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("part", ["timestep", "context_ids"])
def test_a_frames_time_and_prompt_act_on_that_frame(small_model, inputs, part):
    """Before any attention mixes frames, i.e. in the first block's modulation and text."""
    changed = dict(inputs)
    changed[part] = inputs[part].clone()
    changed[part][0, 1] = 3
    time = [small_model.embed_time(i["timestep"])[1] for i in (inputs, changed)]
    text = [
        small_model.embed_text(i["prompts"], i["prompt_lengths"], i["context_ids"])
        for i in (inputs, changed)
    ]
    tokens = torch.ones(2, 18, 48)
    cross = [small_model.blocks[0].cross_attn(tokens, t).view(2, 3, 6, 48) for t in text]
    a, b = time if part == "timestep" else cross
    assert (a != b).flatten(2).any(-1).nonzero().tolist() == [[0, 1]]


def test_bfloat16_weights_and_autocast_stay_near_fp32(small_model, inputs):
    with torch.no_grad():
        exact = small_model(**inputs).prediction
        with torch.autocast("cpu", torch.bfloat16):
            mixed = small_model(**inputs).prediction
        low = small_model.to(torch.bfloat16)(**inputs).prediction
    assert mixed.dtype == low.dtype == torch.bfloat16
    for result in (mixed, low):
        assert (result.float() - exact).norm() < 0.03 * exact.norm()
        assert not torch.equal(result.float(), exact)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at it while tracing
# torch.compile makes an instance of an autograd function, and torch deprecates that.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_blocks_compile_whole(small_model, inputs):
    """No Python that depends on data, no device read: a block is one graph."""
    expected = small_model(**inputs).prediction
    for block in small_model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(small_model(**inputs).prediction, expected, rtol=0, atol=1e-5)


def test_stats_are_detached_rms(small_model, inputs):
    stats = small_model(**inputs).stats
    tokens = torch.nn.Conv3d.forward(small_model.patch_embedding, inputs["latents"])
    condition = small_model.gc_sem_cond(inputs["sem_ids"])
    assert not any(value.requires_grad for value in stats.values())
    torch.testing.assert_close(stats["x_rms"], tokens.pow(2).mean().sqrt().detach())
    torch.testing.assert_close(stats["sem_rms"], condition.pow(2).mean().sqrt().detach())


def test_sinusoidal_embedding_by_hand():
    embedding = sinusoidal_embedding(torch.tensor([[0.0, 500.5]]), 4)
    expected = torch.tensor(
        # cos and sin of t and of t/100; 500.5 − 79·2π = 4.12836 rad
        [[1.0, 1.0, 0.0, 0.0], [-0.5513890, 0.2884532, -0.8342483, -0.9574940]]
    )
    torch.testing.assert_close(embedding[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("latents", (2, 8, 3, 5, 6), "multiples of 32"),
        ("prompts", (4, 24, 21), "21 wide, the model expects 20"),
        ("sem_ids", (2, 8, 64, 96), r"\(9, 64, 96\)"),
        ("sem_ids", (2, 9, 64, 64), r"\(9, 64, 96\)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(small_model, inputs, name, shape, message):
    inputs[name] = torch.zeros(shape, dtype=inputs[name].dtype)
    with pytest.raises(UserError, match=message):
        small_model(**inputs)


def test_the_model_imports_without_diffusers():
    code = (
        "import sys, gc25d.model.zoo, gc25d.model.weights.files, gc25d.model.weights.shards;"
        "print([m for m in ('diffusers', 'transformers', 'accelerate') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
