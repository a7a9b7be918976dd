"""Block-causal attention and a roll-out's passes at 81×480×832, 3 latent frames a chunk.

Attention alone (8,190 tokens, 24 heads of 128, bf16), forward and backward, in one run:

- flex attention under the block mask, compiled: what `wan_causal` uses on a GPU that has it;
- the loop over chunks, each attending to all keys up to its end, with the preferred kernels;
- the peer: torch's own masked attention, which takes a dense boolean mask;
- attention of all tokens to all, for scale: the causal forms need 4/7 of its operations.

Each is first checked against the masked attention in float64 on 1,170 tokens. Then the 5B model's
passes without gradients, blocks compiled: the causal forward pass of a whole clip with either form,
and the first and the last chunk of a roll-out on its cache. Weights are random. Prints a table and
writes causal-<device>.json.

Run: python -m bench.model.causal [--only attention,model] [--layers 30] [--repeats 9]
     [--device cpu --tiny] [--out FOLDER]
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from bench.common.micro import Size, chosen_size, fill_model, micro_batch
from bench.common.report import RESULTS, cuda_versions, device_label, print_table, write_result
from bench.common.timing import Contender, Figures, race, release
from gc25d.dataset.batch import Batch
from gc25d.model.attention import attend, attention_backends
from gc25d.model.execution import compile_blocks
from gc25d.model.semantic import video_frames
from gc25d.model.wan.blocks import View
from gc25d.model.wan.causal import CausalWanModel, ChunkLoop, FlexCausal, chunk_mask

PARTS = ("attention", "model")
CHUNK_FRAMES = 3
TRAINING = 3.5  # operations of forward and backward in forwards
TOLERANCE = 2e-2  # of bf16 against float64, outputs and gradients of the order of 1


class Everything:
    """All tokens see all."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[1, N, heads, d] each → [1, N, heads · d]."""
        return attend(query, key, value)


class DenseMask:
    """The mask as a matrix."""

    def __init__(self, tokens: int, chunk_tokens: int, device: torch.device) -> None:
        chunk = torch.arange(tokens, device=device) // chunk_tokens
        self.mask = chunk[:, None] >= chunk

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[1, N, heads, d] each → [1, N, heads · d]."""
        heads = (part.transpose(1, 2) for part in (query, key, value))
        seen = scaled_dot_product_attention(*heads, attn_mask=self.mask)
        return seen.transpose(1, 2).flatten(2)


class Heads(nn.Module):
    """Queries, keys and values [1, N, heads, d] that take gradients."""

    def __init__(self, tokens: int, heads: int, width: int, device: torch.device) -> None:
        super().__init__()
        generator = torch.Generator(device).manual_seed(0)
        shape = (1, tokens, heads, width)
        self.parts = nn.ParameterList(
            torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
            for _ in range(3)
        )


def main() -> None:
    arguments = parse()
    device = torch.device(arguments.device)
    size = chosen_size(tiny=arguments.tiny, layers=arguments.layers)
    times: Figures = {}
    if "attention" in arguments.only:
        check(size, device)
        times |= race_attention(size, device, arguments.repeats)
        release(device)
    if "model" in arguments.only:
        times |= race_model(size, device, arguments.repeats)
    show(times)
    figures = {
        "software": cuda_versions(device),
        "size": size.describe(),
        "chunk_frames": CHUNK_FRAMES,
        "seconds": times,
    }
    print(write_result("causal", device_label(device), ("torch",), figures, arguments.out))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="seconds on a CPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    unknown = set(arguments.only) - set(PARTS)
    if unknown:
        parser.error(f"--only {','.join(sorted(unknown))}: choose from {','.join(PARTS)}")
    return arguments


def views(
    frames: int, frame_tokens: int, chunk_frames: int, device: torch.device
) -> dict[str, Any]:
    """Every way to compute the attention of a clip."""
    tokens, chunk = frames * frame_tokens, chunk_frames * frame_tokens
    found: dict[str, View] = {
        "loop": ChunkLoop(chunk),
        "dense mask": DenseMask(tokens, chunk, device),
    }
    if device.type == "cuda":  # flex attention has no backward pass on a CPU
        kernel = torch.compile(flex_attention, dynamic=False)
        found = {"flex": FlexCausal(chunk_mask(tokens, chunk, device), kernel), **found}
    return found


def chunk_frames_of(size: Size) -> int:
    """Frames of a chunk: a tiny clip has fewer than two whole chunks of the usual size."""
    return min(CHUNK_FRAMES, size.frames // 2)


def check(size: Size, device: torch.device) -> None:
    """Stop if a form differs from the masked attention in float64, output or gradients."""
    config = size.config
    heads = Heads(3 * 390, config.num_heads, config.head_dim, device)
    reference = DenseMask(3 * 390, 390, device)
    exact = gradients(reference, [part.detach().double() for part in heads.parts])
    for name, view in views(3, 390, 1, device).items():
        found = gradients(view, [part.detach() for part in heads.parts])
        for ours, theirs in zip(found, exact, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=TOLERANCE, atol=TOLERANCE)
        print(f"  {name}: equal", flush=True)


def gradients(view: View, parts: list[Tensor]) -> list[Tensor]:
    parts = [part.requires_grad_() for part in parts]
    with attention_backends(parts[0].device):
        output = view.attend(*parts)
    return [output, *torch.autograd.grad(output.sin().sum(), parts)]


def race_attention(size: Size, device: torch.device, repeats: int) -> Figures:
    config, chunk_frames = size.config, chunk_frames_of(size)
    heads = Heads(size.tokens, config.num_heads, config.head_dim, device)
    upstream = torch.ones(1, size.tokens, config.dim, device=device, dtype=torch.bfloat16)

    def run(view: View) -> Callable[[], None]:
        def forward_backward() -> None:
            with attention_backends(device):
                view.attend(*heads.parts).backward(upstream)

        return forward_backward

    forms = views(size.frames, size.tokens // size.frames, chunk_frames, device)
    forms["all to all"] = Everything()
    group = {f"attention, {name}": Contender(heads, run(view)) for name, view in forms.items()}
    found = race(group, device, repeats)
    for name, entry in found.items():
        shown = size.frames if "all to all" in name else chunk_frames
        entry["tflop"] = TRAINING * 4 * config.dim * pairs(size, shown) / 1e12
    return found


def pairs(size: Size, chunk_frames: int) -> int:
    """Pairs of a query and a key that it sees."""
    ends = (min((f // chunk_frames + 1) * chunk_frames, size.frames) for f in range(size.frames))
    return sum(ends) * (size.tokens // size.frames) ** 2


def race_model(size: Size, device: torch.device, repeats: int) -> Figures:
    """Passes without gradients of the whole clip and of a roll-out's chunks."""
    chunk_frames = chunk_frames_of(size)
    with torch.device("meta"):
        model = CausalWanModel(size.config, chunk_frames)
    fill_model(model, device, torch.bfloat16)
    model.requires_grad_(False)
    compile_blocks(model)
    batch = micro_batch(size, size.text_lengths, device)
    forms = views(size.frames, size.tokens // size.frames, chunk_frames, device)
    group = {
        f"clip, {name}": Contender(model, whole_clip(model, batch, view))
        for name, view in forms.items()
    }
    last = (size.frames - 1) // chunk_frames * chunk_frames
    for start in (0, last):
        group[f"chunk from frame {start}"] = Contender(model, one_chunk(model, batch, start))
    return race(group, device, repeats)


def whole_clip(model: CausalWanModel, batch: Batch, view: View) -> Callable[[], None]:
    timestep = torch.full(batch.context_ids.shape, 500.0, device=batch.latents.device)

    @torch.inference_mode()
    def run() -> None:
        text = model.embed_text(batch.prompts, batch.prompt_lengths, batch.context_ids)
        shown = [view] * len(model.blocks)
        model.predict(batch.latents, timestep, text, batch.sem_ids, views=shown)

    return run


def one_chunk(model: CausalWanModel, batch: Batch, start: int) -> Callable[[], None]:
    """A denoising step of the chunk that starts at latent frame `start`, after a full cache."""
    frames = batch.latents.shape[2]
    cache = model.new_cache(1, batch.latents.shape[2:])
    cache.frames = start  # zeros take as long as real keys
    count = min(model.chunk_frames, frames - start)
    part = slice(start, start + count)
    timestep = torch.full((1, count), 500.0, device=batch.latents.device)

    @torch.inference_mode()
    def run() -> None:
        model.forward_chunk(
            batch.latents[:, :, part],
            timestep,
            batch.prompts,
            batch.prompt_lengths,
            batch.context_ids[:, part],
            batch.sem_ids[:, video_frames(start, count)],
            cache,
            write=False,
        )

    return run


def show(times: Figures) -> None:
    rows = []
    for name, entry in times.items():
        if "error" in entry:
            rows.append((name, entry["error"], "-", "-", "-"))
            continue
        rate = f"{entry['tflop'] / entry['s']:.0f}" if "tflop" in entry else "-"
        peak = "-" if entry["peak_gib"] is None else f"{entry['peak_gib']:.1f}"
        rows.append((name, f"{1e3 * entry['s']:.2f}", rate, peak, f"{entry['first_s']:.1f}"))
    print_table(("", "ms", "TFLOP/s", "peak GiB", "first, s"), rows)


if __name__ == "__main__":
    main()
