import math

import pytest
import torch

from gc25d.errors import UserError
from gc25d.model.text import cut_prompts, padding_bias


def plain_cross_attention(attention, tokens, prompts, context_ids):
    """Every frame against all P·L rows, with a mask that leaves only its own prompt's rows."""
    batch, count, _ = tokens.shape
    total, length, _ = prompts.shape
    heads, width = attention.head_shape
    query = attention.norm_q(attention.q(tokens)).view(batch, count, heads, width)
    key = attention.norm_k(attention.k(prompts)).view(total * length, heads, width)
    value = attention.v(prompts).view(total * length, heads, width)
    logits = torch.einsum("bnhd,mhd->bhnm", query, key) / math.sqrt(width)
    chosen = context_ids.repeat_interleave(count // context_ids.shape[1], dim=1)
    owner = torch.arange(total).repeat_interleave(length)
    logits = logits.masked_fill((chosen[:, :, None] != owner)[:, None], -torch.inf)
    mixed = torch.einsum("bhnm,mhd->bnhd", logits.softmax(-1), value)
    return attention.o(mixed.reshape(batch, count, -1))


@pytest.mark.parametrize("layer", [0, 1])
def test_cut_prompts_equal_all_rows_of_plain_masked_attention(base_model, inputs, layer):
    attention = base_model.blocks[layer].cross_attn
    tokens = torch.randn(2, 18, 48, generator=torch.Generator().manual_seed(1))
    results = []
    for variant in ("cut", "plain"):
        base_model.zero_grad()
        given = tokens.clone().requires_grad_()
        if variant == "cut":
            context = base_model.embed_text(
                inputs["prompts"], inputs["prompt_lengths"], inputs["context_ids"]
            )
            output = attention(given, context)
        else:
            projected = base_model.text_embedding(inputs["prompts"])
            output = plain_cross_attention(attention, given, projected, inputs["context_ids"])
        output.square().sum().backward()
        names = [n for n, p in base_model.named_parameters() if p.grad is not None]
        grads = [p.grad.clone() for p in base_model.parameters() if p.grad is not None]
        results.append((output.detach(), given.grad, names, grads))
    (cut, cut_grad, cut_names, cut_grads), (plain, plain_grad, plain_names, plain_grads) = results
    torch.testing.assert_close(cut, plain, rtol=0, atol=1e-5)
    torch.testing.assert_close(cut_grad, plain_grad, rtol=1e-4, atol=1e-5)
    assert cut_names == plain_names
    assert len(cut_names) == 4 + 10  # the text embedding and this block's cross-attention
    for name, ours, theirs in zip(cut_names, cut_grads, plain_grads, strict=True):
        assert (ours - theirs).norm() <= 1e-4 * theirs.norm() + 1e-5, name


def test_the_answer_does_not_depend_on_how_far_the_padding_was_cut(base_model):
    prompts = torch.randn(1, 64, 20, generator=torch.Generator().manual_seed(2))
    prompts[:, 5:] = 0
    assert cut_prompts(prompts, torch.tensor([5])).shape == (1, 16, 20)
    tokens = torch.randn(1, 6, 48, generator=torch.Generator().manual_seed(3))
    ids = torch.zeros(1, 1, dtype=torch.int64)
    short = base_model.embed_text(prompts, torch.tensor([5]), ids)
    # A second, longer prompt that no frame uses keeps more rows.
    pair = torch.cat([prompts, torch.ones_like(prompts)])
    long = base_model.embed_text(pair, torch.tensor([5, 64]), ids)
    assert short.bias.shape == (1, 16)
    assert long.bias.shape == (1, 64)
    attention = base_model.blocks[0].cross_attn
    torch.testing.assert_close(attention(tokens, short), attention(tokens, long))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-4)])
def test_padding_weighs_as_much_as_the_rows_it_stands_for(dtype, tolerance):
    lengths = torch.arange(512)
    weights = padding_bias(lengths, 512, 512, dtype).double().exp()
    real = torch.arange(512) < lengths[:, None]
    assert torch.equal(weights[real], torch.ones(int(real.sum()), dtype=torch.float64))
    padding = weights.masked_fill(real, 0).sum(1)
    torch.testing.assert_close(padding, (512 - lengths).double(), rtol=tolerance, atol=0)


def test_a_full_prompt_has_no_padding_key():
    assert torch.equal(padding_bias(torch.tensor([6]), 6, 6, torch.float32), torch.zeros(1, 6))


def test_a_prompt_longer_than_its_rows_is_refused():
    with pytest.raises(UserError, match="9 tokens but 8 rows"):
        cut_prompts(torch.zeros(1, 8, 4), torch.tensor([9]))


@pytest.mark.parametrize("lengths", [[16, 16, 16], [3, 16, 9]])
def test_a_prompt_for_each_frame_is_picked_once(base_model, lengths):
    """As many prompts as frames, in another order: equal to plain masked attention over them."""
    attention = base_model.blocks[0].cross_attn
    generator = torch.Generator().manual_seed(4)
    prompts = torch.randn(3, 16, 20, generator=generator)
    prompts *= (torch.arange(16) < torch.tensor(lengths)[:, None])[..., None]
    ids = torch.tensor([[2, 0, 1]])
    tokens = torch.randn(1, 18, 48, generator=generator)
    context = base_model.embed_text(prompts, torch.tensor(lengths), ids)
    assert context.chosen is None
    assert (context.bias is None) == (min(lengths) == 16)
    plain = plain_cross_attention(attention, tokens, base_model.text_embedding(prompts), ids)
    torch.testing.assert_close(attention(tokens, context), plain, rtol=0, atol=1e-5)
