import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from gc25d.errors import UserError
from gc25d.model.execution import set_recompute
from gc25d.model.semantic import cell_occupancy, class_lut, video_frames
from gc25d.model.wan.kv_cache import KvCache

FRAMES = 5
CHUNK_FRAMES = [1, 2, 3, 5]


def chunk_inputs(clip, first, count, *, timestep=None):
    """What `forward_chunk` is given of latent frames `first` to `first + count` − 1."""
    frames = slice(first, first + count)
    chosen = clip["timestep"][:, frames]
    return {
        "latents": clip["latents"][:, :, frames],
        "timestep": chosen if timestep is None else torch.full_like(chosen, timestep),
        "prompts": clip["prompts"],
        "prompt_lengths": clip["prompt_lengths"],
        "context_ids": clip["context_ids"][:, frames],
        "sem_ids": None
        if clip["sem_ids"] is None
        else clip["sem_ids"][:, video_frames(*(first, count))],
    }


def chunks(chunk_frames):
    return [(f, min(chunk_frames, FRAMES - f)) for f in range(0, FRAMES, chunk_frames)]


def roll(model, clip, cache, **options):
    return [
        model.forward_chunk(**chunk_inputs(clip, *chunk), cache=cache, write=True, **options)
        for chunk in chunks(model.chunk_frames)
    ]


@pytest.mark.parametrize("chunk_frames", CHUNK_FRAMES)
def test_chunks_with_a_cache_equal_the_full_forward(causal, clip, chunk_frames):
    model = causal(chunk_frames)
    cache = model.new_cache(2, (FRAMES, 4, 6))
    found = torch.cat([output.prediction for output in roll(model, clip, cache)], dim=2)
    torch.testing.assert_close(found, model(**clip).prediction, rtol=0, atol=5e-6)
    assert cache.frames == FRAMES


def test_a_noisy_chunk_after_a_clean_past_equals_the_full_forward(causal, clip):
    """What a roll-out does: several reads at falling noise, then one write at timestep 0."""
    model = causal(2)
    cache = model.new_cache(2, (FRAMES, 4, 6))
    for first, count in chunks(2):
        for t in (900.0, 400.0):
            now = chunk_inputs(clip, first, count, timestep=t)
            found = model.forward_chunk(**now, cache=cache, write=False).prediction
            assert cache.frames == first
            past = chunk_inputs(clip, 0, first + count, timestep=0)
            past["timestep"][:, first:] = t
            expected = model(**past).prediction[:, :, first:]
            torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)
        clean = chunk_inputs(clip, first, count, timestep=0)
        model.forward_chunk(**clean, cache=cache, write=True)


def test_reading_changes_nothing(causal, clip):
    model = causal(2)
    cache = model.new_cache(2, (FRAMES, 4, 6))
    model.forward_chunk(**chunk_inputs(clip, 0, 2), cache=cache, write=True)
    now = chunk_inputs(clip, 2, 2)
    runs = [model.forward_chunk(**now, cache=cache, write=False).prediction for _ in range(2)]
    runs.append(model.forward_chunk(**now, cache=cache, write=True).prediction)
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])


def test_a_cleared_cache_is_as_good_as_a_new_one(causal, clip):
    model = causal(3)
    cache = model.new_cache(2, (FRAMES, 4, 6))
    first = [output.prediction for output in roll(model, clip, cache)]
    cache.clear()
    again = [output.prediction for output in roll(model, clip, cache)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_gradients_are_those_of_the_full_forward_with_a_detached_past(causal, clip):
    """The reference computes the past without gradients and hands it over as constants."""
    model = causal(2)
    cache = model.new_cache(2, (FRAMES, 4, 6))
    model.forward_chunk(**chunk_inputs(clip, 0, 2, timestep=0), cache=cache, write=True)
    now = chunk_inputs(clip, 2, 2)
    now["latents"] = now["latents"].clone().requires_grad_()
    output = model.forward_chunk(**now, cache=cache, write=False).prediction
    cache.clear()  # the backward pass needs none of it
    model.forward_chunk(**chunk_inputs(clip, 0, 2, timestep=500), cache=cache, write=True)
    output.square().mean().backward()
    found = [p.grad.clone() for p in model.parameters()] + [now["latents"].grad]
    model.zero_grad()

    expected = gradients_by_layers(model, clip)
    for ours, theirs in zip(found, expected, strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5 * scale + 1e-8)


def test_recomputed_blocks_give_the_same_gradients(causal, clip):
    """Though frames were appended between the forward and the backward pass."""
    grads = []
    for policy in ("none", "all"):
        model = causal(2)
        set_recompute(model, policy)
        cache = model.new_cache(2, (FRAMES, 4, 6))
        outputs = roll(model, clip, cache)
        outputs[1].prediction.square().mean().backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def gradients_by_layers(model, clip):
    """Frames 0 to 3 in one pass whose first two frames are cut off the graph in every layer.

    Cutting keys and values of the past is all it takes: nothing else leads from them to frames
    2 and 3, whose loss alone is taken.
    """

    class Cut:
        def attend(self, query, key, value):
            past, tokens = slice(0, 12), slice(12, 24)
            key = torch.cat([key[:, past].detach(), key[:, tokens]], dim=1)
            value = torch.cat([value[:, past].detach(), value[:, tokens]], dim=1)
            logits = torch.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
            logits[:, :, past, tokens] = -torch.inf
            return torch.einsum("bhqk,bkhd->bqhd", logits.softmax(-1), value).flatten(2)

    whole = chunk_inputs(clip, 0, 4)
    whole["timestep"] = whole["timestep"].clone()
    whole["timestep"][:, :2] = 0
    latents = whole["latents"].clone().requires_grad_()
    text = model.embed_text(whole["prompts"], whole["prompt_lengths"], whole["context_ids"])
    views = [Cut()] * len(model.blocks)
    output = model.predict(latents, whole["timestep"], text, whole["sem_ids"], views=views)
    output.prediction[:, :, 2:].square().mean().backward()
    assert (latents.grad[:, :, :2] == 0).all()
    return [p.grad for p in model.parameters()] + [latents.grad[:, :, 2:]]


def test_the_cache_holds_no_graph_and_works_in_inference_mode(causal, clip):
    model = causal(2)
    with torch.inference_mode():
        cache = model.new_cache(2, (FRAMES, 4, 6))
        quiet = [output.prediction for output in roll(model, clip, cache)]
    cache = model.new_cache(2, (FRAMES, 4, 6))
    loud = [output.prediction for output in roll(model, clip, cache)]
    assert all(torch.equal(a, b) for a, b in zip(quiet, loud, strict=True))
    assert loud[-1].requires_grad
    assert not any(v.past_key.requires_grad or v.past_value.requires_grad for v in cache.views())


def test_the_cache_takes_the_type_of_attention(causal, clip):
    model = causal(2)
    exact = torch.cat(
        [o.prediction for o in roll(model, clip, model.new_cache(2, (FRAMES, 4, 6)))], 2
    )
    with torch.autocast("cpu", torch.bfloat16):
        cache = model.new_cache(2, (FRAMES, 4, 6))
        mixed = torch.cat([o.prediction for o in roll(model, clip, cache)], dim=2)
    assert cache.views()[0].past_key.dtype == torch.bfloat16
    model.to(torch.bfloat16)
    assert model.new_cache(2, (FRAMES, 4, 6)).views()[0].past_key.dtype == torch.bfloat16
    assert 0 < (mixed.float() - exact).norm() < 0.03 * exact.norm()


# What torch's compiler looks at and makes while it traces.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_blocks_with_a_cache_compile_whole_and_seldom(causal, clip):
    """Once without a past and once for a past of any length."""
    model = causal(1)
    backend = CompileCounterWithBackend("aot_eager")
    expected = [o.prediction for o in roll(model, clip, model.new_cache(2, (FRAMES, 4, 6)))]
    for block in model.blocks:
        block.compile(backend=backend, fullgraph=True)
    found = [o.prediction for o in roll(model, clip, model.new_cache(2, (FRAMES, 4, 6)))]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert backend.frame_count == 2


def test_video_frames_of_latent_frames():
    cells = [range(1), range(1, 5), range(5, 9), range(9, 13)]
    for first in range(4):
        for count in range(5 - first):
            expected = [frame for cell in cells[first : first + count] for frame in cell]
            assert list(range(13))[video_frames(first, count)] == expected


def test_occupancy_of_chunks_is_that_of_the_clip():
    generator = torch.Generator().manual_seed(2)
    sem_ids = torch.randint(0, 7, (2, 17, 64, 32), generator=generator).to(torch.uint8)
    whole = cell_occupancy(sem_ids, class_lut("ids"), 10)
    for chunk_frames in CHUNK_FRAMES:
        parts = [
            cell_occupancy(sem_ids[:, video_frames(*chunk)], class_lut("ids"), 10)
            for chunk in chunks(chunk_frames)
        ]
        assert torch.equal(torch.cat(parts, dim=1), whole)


def test_frames_that_are_no_chunk_are_refused(causal, clip):
    model = causal(2)
    cache = model.new_cache(2, (4, 4, 6))
    with pytest.raises(ValueError, match="not within one chunk of 2"):
        model.forward_chunk(**chunk_inputs(clip, 0, 3), cache=cache, write=True)
    model.forward_chunk(**chunk_inputs(clip, 0, 1), cache=cache, write=True)
    with pytest.raises(ValueError, match="latent frames 1 to 1 "):
        model.forward_chunk(**chunk_inputs(clip, 1, 1), cache=cache, write=True)
    cache.clear()
    for first in (0, 2):
        model.forward_chunk(**chunk_inputs(clip, first, 2), cache=cache, write=True)
    with pytest.raises(ValueError, match="room for 4 latent frames"):
        model.forward_chunk(**chunk_inputs(clip, 4, 1), cache=cache, write=False)
    assert cache.frames == 4


def test_ids_of_other_frames_are_refused(causal, clip):
    model = causal(2)
    cache = model.new_cache(2, (FRAMES, 4, 6))
    now = chunk_inputs(clip, 0, 2)
    now["sem_ids"] = clip["sem_ids"][:, :8]
    with pytest.raises(UserError, match=r"\(5, 64, 96\)"):
        model.forward_chunk(**now, cache=cache, write=True)
    model.forward_chunk(**chunk_inputs(clip, 0, 2), cache=cache, write=True)
    now = chunk_inputs(clip, 2, 2)
    now["sem_ids"] = clip["sem_ids"][:, :5]
    with pytest.raises(UserError, match=r"\(8, 64, 96\)"):
        model.forward_chunk(**now, cache=cache, write=True)


def test_views_that_saw_nothing_cannot_be_appended():
    cache = KvCache(1, (1, 2, 3, 1, 4), torch.device("cpu"), torch.float32)
    with pytest.raises(ValueError, match="no forward pass"):
        cache.append(cache.views())
