import dataclasses
import warnings

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gc25d.model.zoo import SIZES


def test_the_peers_micro_batch_and_floor_at_full_size():
    """By hand, 30 blocks: 213.3 TFLOP of token layers, 1.7 of text, 91.9 of attention, forward
    and backward; 785 and 563 TFLOP/s give 0.437 s."""
    from bench.common.flops import Ceilings, model_work

    work = model_work(SIZES["5b"], 8190, prompts=1, key_rows=512, timesteps=1, condition=False)
    assert work.training == pytest.approx(307e12, rel=2e-3)
    assert work.attention_forward == pytest.approx(30 * 4 * 8190 * (8190 + 512) * 3072)
    ceilings = Ceilings(785e12, 600e12, 563e12)
    assert work.training_floor(ceilings) == pytest.approx(0.437, abs=1.5e-3)
    assert work.sampling_floor(ceilings) == pytest.approx(
        work.matmul_forward / 785e12 + work.attention_forward / 600e12
    )


def test_more_prompts_cost_their_projections():
    from bench.common.flops import model_work

    config = dataclasses.replace(SIZES["5b"], vocab="parts")
    one, many = (model_work(config, 8190, prompts, 512, 2, condition=True) for prompts in (1, 21))
    assert many.training - one.training == pytest.approx(36e12, rel=0.05)


def counted(model, run):
    """FLOPs that torch counts of a training pass, by operator: products, attention."""
    with FlopCounterMode(display=False) as counter:
        run().square().mean().backward()
    counts = {str(op): count for op, count in counter.get_flop_counts()["Global"].items()}
    attention = sum(count for op, count in counts.items() if "attention" in op)
    return sum(counts.values()) - attention, attention


@pytest.mark.parametrize("condition", [False, True])
def test_linear_layers_are_those_that_torch_counts(condition):
    from bench.common.flops import model_work
    from bench.common.micro import chosen_size, fill_model, key_rows, micro_batch, per_frame
    from gc25d.model.wan.transformer import WanModel

    size = chosen_size(tiny=True)
    cpu = torch.device("cpu")
    with torch.device("meta"):
        model = WanModel(size.config)
    fill_model(model, cpu, torch.float32)
    batch = micro_batch(size, size.text_lengths, cpu)
    ids = batch.sem_ids if condition else None
    rows, prompts, frames = key_rows(batch), len(size.text_lengths), size.frames
    products, _ = counted(
        model,
        lambda: (
            model(
                batch.latents.float(),
                per_frame(batch),
                batch.prompts.float(),
                batch.prompt_lengths,
                batch.context_ids,
                ids,
            ).prediction
        ),
    )
    work = model_work(size.config, size.tokens, prompts, rows, frames, condition=condition)
    # Spreading prompts over frames, of k and of v, may be a product with a one-hot matrix, forward
    # and backward. It is our way of doing it, not work to be done.
    spreading = size.config.num_layers * 2 * frames * prompts * rows * size.config.dim
    extra = products - work.matmul_forward - work.matmul_backward
    assert extra in [count * spreading for count in range(5)]


def test_the_peer_is_counted_whole():
    from bench.common.flops import model_work
    from bench.common.micro import chosen_size, micro_batch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("diffusers")
    from bench.model.peers import diffusers_model

    size = chosen_size(tiny=True)
    cpu = torch.device("cpu")
    model = diffusers_model(size, cpu, torch.float32)
    batch = micro_batch(size, size.text_lengths, cpu)
    latents, prompt = batch.latents.float(), batch.prompts[:1].float()
    products, _ = counted(
        model, lambda: model(latents, torch.tensor([500.0]), prompt, return_dict=False)[0]
    )
    work = model_work(size.config, size.tokens, 1, size.text_rows, 1, condition=False)
    patches = 2.0 * size.tokens * 4 * size.config.in_channels * size.config.dim
    # torch counts the gradient of a convolution's input as well, which nothing needs.
    assert products - work.matmul_forward - work.matmul_backward in (0, patches)
