"""Our transformer against diffusers' with the same weights, in bf16, at the 5B model's width.

Weights are random, few blocks deep. The reference is diffusers in fp32: relative errors against it
are taken of the prediction and of every parameter's gradient, for diffusers in bf16, for ours in
bf16, eager and compiled, and for ours in fp32. What diffusers' own bf16 costs is the fair bound:
the run fails when our prediction is more than 1.1 times as far off, or gradients more than 1.1
times in the median or 2 times in the worst parameter. Then the `finetune` loss, compiled and
eager, on the same draws. Prints tables and writes parity-<device>.json.

One prompt of 64 tokens in 512 rows: diffusers attends to all rows, ours to 80. Frame 0 is clean:
diffusers gets a timestep for each token.

Run: python -m bench.model.parity [--layers 2] [--device cpu --tiny] [--out FOLDER]
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.common.micro import Size, chosen_size, fill_model, micro_batch, per_frame
from bench.common.report import RESULTS, cuda_versions, device_label, print_table, write_result
from bench.common.timing import release
from bench.model.ours import Ours
from bench.model.peers import copy_weights, diffusers_model
from gc25d.dataset.batch import Batch
from gc25d.model.execution import compile_blocks
from gc25d.model.wan.transformer import WanModel
from gc25d.model.weights.names import to_native

REFERENCE, PEER = "diffusers, fp32", "diffusers, bf16"
BF16_BOUNDS = {"prediction_ratio": 1.1, "gradient_ratio_median": 1.1, "gradient_ratio_max": 2.0}
"""Errors in bf16 over those of diffusers in bf16."""
FP32_BOUNDS = {"prediction": 1e-5, "gradient_max": 1e-3}
"""Relative errors; some gradients are small sums of large terms."""
SHOWN = 5


@dataclass(frozen=True)
class Outcome:
    """Prediction and every gradient by native name, float32."""

    prediction: Tensor
    gradients: dict[str, Tensor]


def main() -> None:
    arguments = parse()
    device = torch.device(arguments.device)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False  # diffusers embeds patches by a convolution
    size = chosen_size(tiny=arguments.tiny, layers=arguments.layers)
    errors = compare(size, device)
    figures = {
        "software": cuda_versions(device),
        "size": size.describe(),
        "errors": {name: summary(found, errors[PEER]) for name, found in errors.items()},
        "loss": compiled_loss(size, device),
    }
    show(figures)
    print(
        write_result("parity", device_label(device), ("torch", "diffusers"), figures, arguments.out)
    )
    check(figures["errors"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="seconds on a CPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def compare(size: Size, device: torch.device) -> dict[str, dict[str, float]]:
    """Relative errors of every candidate by tensor; "prediction" is one of them."""
    batch = micro_batch(size, size.text_lengths[:1], device)
    target = torch.randn_like(batch.latents, dtype=torch.float32)
    base = dataclasses.replace(size, config=dataclasses.replace(size.config, vocab=None))
    with torch.device("meta"):
        weights = WanModel(base.config)
    fill_model(weights, device, torch.bfloat16)  # values that both precisions hold
    reference = outcome(*peer(base, weights, batch, torch.float32), target)
    candidates: dict[str, Callable[[], tuple[nn.Module, Callable[[], Tensor]]]] = {
        PEER: lambda: peer(base, weights, batch, torch.bfloat16),
        "ours, fp32": lambda: ours(base, weights, batch, torch.float32),
        "ours, bf16": lambda: ours(base, weights, batch, torch.bfloat16),
        "ours, bf16, compiled": lambda: ours(base, weights, batch, torch.bfloat16, compiled=True),
    }
    found = {}
    for name, build in candidates.items():
        found[name] = relative_errors(outcome(*build(), target), reference)
        release(device)
    return found


def peer(
    size: Size, weights: WanModel, batch: Batch, dtype: torch.dtype
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The peer's model with `weights`, and its forward pass."""
    model = diffusers_model(size, batch.latents.device, dtype)
    copy_weights(weights, model)
    timestep = per_frame(batch).repeat_interleave(size.tokens // size.frames, dim=1)
    latents, prompt = batch.latents.to(dtype), batch.prompts.to(dtype)
    return model, lambda: model(latents, timestep, prompt, return_dict=False)[0]


def ours(
    size: Size, weights: WanModel, batch: Batch, dtype: torch.dtype, *, compiled: bool = False
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Our model with `weights`, and its forward pass."""
    with torch.device("meta"):
        model = WanModel(size.config)
    model.to(dtype).to_empty(device=batch.latents.device)
    model.load_state_dict(weights.state_dict())
    if compiled:
        compile_blocks(model)

    def run() -> Tensor:
        output = model(
            batch.latents.to(dtype),
            per_frame(batch),
            batch.prompts.to(dtype),
            batch.prompt_lengths,
            batch.context_ids,
        )
        return output.prediction

    return model, run


def outcome(model: nn.Module, run: Callable[[], Tensor], target: Tensor) -> Outcome:
    """Forward and backward pass of a mean squared error."""
    prediction = run().float()
    nn.functional.mse_loss(prediction, target).backward()
    gradients = {
        to_native(n): p.grad.float() for n, p in model.named_parameters() if p.grad is not None
    }
    return Outcome(prediction.detach(), gradients)


def relative_errors(found: Outcome, reference: Outcome) -> dict[str, float]:
    """‖x − reference‖ / ‖reference‖ of the prediction and of every gradient.

    Raises:
        SystemExit: a parameter that the other model has no gradient for.
    """
    differ = set(found.gradients) ^ set(reference.gradients)
    if differ:
        raise SystemExit(f"only one model has gradients of {', '.join(sorted(differ))}")
    pairs = {name: (found.gradients[name], g) for name, g in reference.gradients.items()}
    pairs["prediction"] = (found.prediction, reference.prediction)
    return {name: float((x - r).norm() / r.norm()) for name, (x, r) in pairs.items()}


def summary(errors: dict[str, float], peers: dict[str, float]) -> dict[str, Any]:
    """Errors in short, and how many times diffusers' own in bf16 they are."""
    gradients = {name: error for name, error in errors.items() if name != "prediction"}
    ratios = {name: error / peers[name] for name, error in gradients.items()}
    worst = sorted(ratios, key=lambda name: -ratios[name])[:SHOWN]
    return {
        "prediction": errors["prediction"],
        "prediction_ratio": errors["prediction"] / peers["prediction"],
        "gradient_median": statistics.median(gradients.values()),
        "gradient_max": max(gradients.values()),
        "gradient_ratio_median": statistics.median(ratios.values()),
        "gradient_ratio_max": max(ratios.values()),
        "worst": {name: {"error": gradients[name], "ratio": ratios[name]} for name in worst},
        "gradients": len(gradients),
    }


def check(errors: dict[str, dict[str, Any]]) -> None:
    """Hold ours to the bounds.

    Raises:
        SystemExit: one is exceeded; says which.
    """
    for name, found in errors.items():
        bounds = FP32_BOUNDS if name == "ours, fp32" else BF16_BOUNDS
        over = [key for key, bound in bounds.items() if not found[key] <= bound]  # so is NaN
        if name.startswith("ours") and over:
            raise SystemExit(f"{name}: {', '.join(over)} exceed {bounds}: {found}")


def compiled_loss(size: Size, device: torch.device) -> dict[str, float]:
    """The `finetune` loss on the same weights and draws, eager and compiled."""
    batch = micro_batch(size, size.text_lengths, device)
    subject = Ours(size, device)
    losses = {}
    for name, prepare in (("eager", lambda: None), ("compiled", subject.compile)):
        prepare()
        loss_map, _, _ = subject.method.single_train_step(batch, 0)
        losses[name] = float(loss_map["total_loss"].detach())
    losses["relative_difference"] = abs(losses["compiled"] - losses["eager"]) / losses["eager"]
    return losses


def show(figures: dict[str, Any]) -> None:
    """Errors of prediction and gradients against fp32, then as multiples of diffusers' own."""
    keys = ("prediction", "gradient_median", "gradient_max")
    ratios = ("prediction_ratio", "gradient_ratio_median", "gradient_ratio_max")
    header = [
        f"against {REFERENCE}",
        "prediction",
        "median",
        "worst",
        "(times",
        "diffusers'",
        "own)",
    ]
    rows = [
        [name, *(f"{e[key]:.2e}" for key in keys), *(f"{e[key]:.3g}" for key in ratios)]
        for name, e in figures["errors"].items()
    ]
    print_table(header, rows)
    for name, found in figures["errors"].items():
        print(f"{name}, worst of {found['gradients']} gradients beside diffusers:")
        for parameter, entry in found["worst"].items():
            print(f"  {parameter}: {entry['error']:.2e}, {entry['ratio']:.3g} times")
    print("loss", figures["loss"])


if __name__ == "__main__":
    main()
