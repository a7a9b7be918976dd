import copy

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.attention.flex_attention import flex_attention

from gc25d.model.wan.causal import CausalWanModel, ChunkLoop, FlexCausal, causal_view, chunk_mask
from gc25d.model.weights.files import load_tensors

FRAMES, SPATIAL = 5, 6


class DenseReference:
    """One masked attention over all pairs of tokens; who sees whom is written out by frame."""

    def __init__(self, chunks: list[list[int]], spatial: int) -> None:
        frames = [frame for chunk in chunks for frame in chunk]
        seen = torch.zeros(len(frames), len(frames), dtype=torch.bool)
        for number, chunk in enumerate(chunks):
            for frame in chunk:
                for past in chunks[: number + 1]:
                    seen[frame, past] = True
        self.mask = seen.repeat_interleave(spatial, 0).repeat_interleave(spatial, 1)

    def attend(self, query, key, value):
        logits = torch.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
        weights = logits.masked_fill(~self.mask, -torch.inf).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(2)


# What torch's compiler looks at and makes while it traces.
compiling = pytest.mark.filterwarnings(
    "ignore:The .grad attribute", "ignore:.*should not be instantiated:DeprecationWarning"
)
eager_flex = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
CHUNKS = {
    1: [[0], [1], [2], [3], [4]],
    2: [[0, 1], [2, 3], [4]],
    3: [[0, 1, 2], [3, 4]],
}


def dense_forward(model, clip, chunks):
    text = model.embed_text(clip["prompts"], clip["prompt_lengths"], clip["context_ids"])
    views = [DenseReference(chunks, SPATIAL)] * len(model.blocks)
    return model.predict(
        clip["latents"], clip["timestep"], text, clip["sem_ids"], views=views
    ).prediction


def qkv(tokens, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    shape = (2, tokens, 2, 24)
    return [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize("chunk_frames", CHUNKS)
def test_the_loop_is_the_dense_masked_attention_and_so_are_its_gradients(chunk_frames):
    grads, outputs = [], []
    reference = DenseReference(CHUNKS[chunk_frames], SPATIAL)
    for view in (ChunkLoop(chunk_frames * SPATIAL), reference):
        parts = [part.requires_grad_() for part in qkv(FRAMES * SPATIAL)]
        outputs.append(view.attend(*parts))
        grads.append(torch.autograd.grad(outputs[-1].sin().sum(), parts))
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-13)
    torch.testing.assert_close(*grads, rtol=0, atol=1e-13)


@eager_flex
@pytest.mark.parametrize(("frames", "spatial"), [(5, 6), (5, 67)])
@pytest.mark.parametrize("chunk_frames", CHUNKS)
def test_the_flex_mask_is_the_dense_mask(chunk_frames, frames, spatial):
    """Also where a mask has several blocks of 128 tokens, none of which ends with a chunk."""
    tokens = frames * spatial
    mask = chunk_mask(tokens, chunk_frames * spatial, torch.device("cpu"))
    view = FlexCausal(mask, flex_attention)
    expected = DenseReference(CHUNKS[chunk_frames], spatial).attend(*qkv(tokens))
    torch.testing.assert_close(view.attend(*qkv(tokens)), expected, rtol=0, atol=1e-13)


def test_blocks_that_the_mask_hides_are_not_visited():
    # 4 chunks of 128 tokens: 1 + 2 + 3 + 4 of 16 blocks.
    mask = chunk_mask(512, 128, torch.device("cpu"))
    visited = mask.kv_num_blocks + mask.full_kv_num_blocks
    assert visited.flatten().tolist() == [1, 2, 3, 4]
    assert mask.kv_num_blocks.sum() == 0  # and none is computed in part


def test_a_mask_made_while_sampling_serves_training():
    with torch.inference_mode():
        mask = chunk_mask(512, 128, torch.device("cpu"))
    assert not any(part.is_inference() for part in mask.as_tuple() if torch.is_tensor(part))


@pytest.mark.parametrize("chunk_frames", CHUNKS)
def test_model_and_gradients_equal_the_dense_reference(small_model, causal, clip, chunk_frames):
    model = causal(chunk_frames)
    found = model(**clip).prediction
    expected = dense_forward(small_model, clip, CHUNKS[chunk_frames])
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)
    for output in (found, expected):
        output.square().mean().backward()
    for (name, ours), reference in zip(
        model.named_parameters(), small_model.parameters(), strict=True
    ):
        scale = float(reference.grad.abs().max())
        assert scale > 0, name
        torch.testing.assert_close(
            ours.grad, reference.grad, rtol=0, atol=2e-5 * scale + 1e-8, msg=name
        )


@pytest.mark.parametrize("chunk_frames", [5, 21])
def test_one_chunk_is_the_bidirectional_model(small_model, causal, clip, chunk_frames):
    found = causal(chunk_frames)(**clip)
    expected = small_model(**clip)
    assert torch.equal(found.prediction, expected.prediction)
    assert found.stats == expected.stats


@pytest.mark.parametrize("chunk_frames", CHUNKS)
@pytest.mark.parametrize("part", ["latents", "timestep", "context_ids", "sem_ids"])
def test_nothing_of_a_later_chunk_reaches_an_earlier_one(causal, clip, chunk_frames, part):
    model = causal(chunk_frames)
    before = model(**clip).prediction
    for chunk in CHUNKS[chunk_frames][1:]:
        changed = dict(clip)
        changed[part] = clip[part].clone()
        index = [slice(None)] * clip[part].ndim
        first = 4 * chunk[0] - 3 if part == "sem_ids" else chunk[0]
        index[2 if part == "latents" else 1] = slice(first, None)
        changed[part][tuple(index)] = 3
        after = model(**changed).prediction
        assert torch.equal(after[:, :, : chunk[0]], before[:, :, : chunk[0]])
        moved = (after != before).any(dim=4).any(dim=3).any(dim=1)
        assert moved[:, chunk[0] :].all()


def test_a_chunks_frames_see_each_other_and_frame_zero_is_one_of_chunk_zero(causal, clip):
    model = causal(2)
    before = model(**clip).prediction
    clip["latents"][:, :, 1] += 1
    moved = (model(**clip).prediction != before).any(dim=4).any(dim=3).any(dim=1)
    assert moved.all()


def test_weights_are_those_of_wan(small_model, tmp_path):
    model = CausalWanModel(small_model.config, 3)
    expected = [(name, tensor.shape) for name, tensor in small_model.named_parameters()]
    assert [(name, tensor.shape) for name, tensor in model.named_parameters()] == expected
    assert not list(model.buffers())
    save_file(small_model.state_dict(), tmp_path / "wan.safetensors")
    load_tensors(model, tmp_path / "wan.safetensors")
    assert torch.equal(model.head.head.weight, small_model.head.head.weight)


def test_a_view_is_made_once_for_a_grid_and_travels_with_a_copy(causal, clip):
    model = causal(2)
    expected = model(**clip).prediction
    views = list(model._views.values())
    model(**clip)
    assert [id(view) for view in model._views.values()] == [id(view) for view in views]
    assert torch.equal(copy.deepcopy(model)(**clip).prediction, expected)
    taller = dict(clip, latents=torch.zeros(2, 8, FRAMES, 6, 6), sem_ids=None)
    model(**taller)
    assert len(model._views) == 2


@compiling
def test_causal_blocks_compile_whole(causal, clip):
    model = causal(2)
    expected = model(**clip).prediction
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(model(**clip).prediction, expected, rtol=0, atol=1e-5)


@compiling
@eager_flex
@torch.no_grad()  # flex attention has no backward pass on a CPU
def test_flex_attention_compiles_within_blocks(causal, clip):
    model = causal(2)
    expected = model(**clip).prediction
    kernel = torch.compile(flex_attention, dynamic=False, backend="aot_eager")
    view = FlexCausal(chunk_mask(FRAMES * SPATIAL, 2 * SPATIAL, torch.device("cpu")), kernel)
    (grid,) = model._views
    model._views[grid] = copy.deepcopy(view)
    torch.testing.assert_close(model(**clip).prediction, expected, rtol=0, atol=1e-5)
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(model(**clip).prediction, expected, rtol=0, atol=1e-5)


def test_old_gpus_and_the_cpu_use_the_loop(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    for device in (torch.device("cuda", 0), torch.device("cpu")):
        assert causal_view(60, 12, device) == ChunkLoop(12)


def test_a_chunk_has_frames(small_model):
    with pytest.raises(ValueError, match="0 latent frames"):
        CausalWanModel(small_model.config, 0)


@pytest.mark.gpu  # flex attention has a backward pass there only
@pytest.mark.filterwarnings("ignore")  # torch's compiler has many of its own on a GPU
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("frames", "spatial"), [(5, 6), (5, 67), (5, 390)])
def test_flex_attention_on_a_gpu(dtype, tolerance, frames, spatial):
    """Output and gradients against the dense reference in float64."""
    device = torch.device("cuda", 0)
    tokens = frames * spatial
    found, expected = [], []
    view = causal_view(tokens, 2 * spatial, device)
    assert isinstance(view, FlexCausal)
    reference = DenseReference(CHUNKS[2], spatial)
    reference.mask = reference.mask.to(device)
    for target, shown, kind in ((found, view, dtype), (expected, reference, torch.float64)):
        # The same numbers for both: those that the low-precision type can hold.
        rounded = [part.to(dtype).to(device, kind).requires_grad_() for part in qkv(tokens)]
        output = shown.attend(*rounded)
        target += [output, *torch.autograd.grad(output.sin().sum(), rounded)]
    for ours, theirs in zip(found, expected, strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=tolerance * max(scale, 1))


@pytest.mark.gpu  # flex attention has a backward pass there only
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
def test_the_model_on_a_gpu_equals_the_cpu(causal, clip, compiled):
    """With flex attention there and the loop here, outputs and gradients in float32."""
    results = []
    for device in ("cpu", "cuda"):
        model = causal(2).to(device)
        if compiled and device == "cuda":
            for block in model.blocks:
                block.compile(fullgraph=True)
        moved = {name: part.to(device) for name, part in clip.items() if name != "prompt_lengths"}
        output = model(**moved, prompt_lengths=clip["prompt_lengths"]).prediction
        output.square().mean().backward()
        results.append([part.cpu() for part in (output, *(p.grad for p in model.parameters()))])
    assert isinstance(next(iter(model._views.values())), FlexCausal)
    for here, there in zip(*results, strict=True):
        scale = float(here.detach().abs().max())
        torch.testing.assert_close(there, here, rtol=0, atol=1e-4 * scale + 1e-7)
