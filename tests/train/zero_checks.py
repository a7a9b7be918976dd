"""Run by two processes (test_deepspeed_engine.py): what each of them sees, as JSON on disk.

Toy networks whose gradients are known by hand, in bf16 with fp32 masters, through the real engine.
With `--gpu` only the sums are compared, on GPUs (tests/gpu/test_zero_sums.py).
"""

import hashlib
import json
import itertools
import logging
import sys
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gc25d.dataset.batch import Batch
from gc25d.errors import UserError
from gc25d.methods.base import TOTAL_LOSS, LossMap, Metrics, Outputs, TrainingMethod
from gc25d.methods.roles import STUDENT, TrainedRole
from gc25d.train import deepspeed_engine, zero_sums
from gc25d.train.deepspeed_engine import ZeroEngine
from gc25d.train.feed import MicroBatch
from gc25d.train.loop import Cadence, Segment

MICRO_BATCHES = 4
SHARE = 1 / (2 * MICRO_BATCHES)
ZERO = torch.zeros(())
METRICS = ("loss", "mse", "timestep", "sem_rms", "x_rms")


class Slope(nn.Module):
    """Weights [4]; the loss slope · weights[0] has the gradient (slope, 0, 0, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4]))

    def forward(self, slope: Tensor) -> Tensor:
        return (self.weights * torch.tensor([1.0, 0.0, 0.0, 0.0])).sum() * slope


class Twice(nn.Module):
    """One layer applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        with torch.no_grad():
            self.layer.weight.copy_(torch.linspace(-1, 1, 36).reshape(6, 6))
            self.layer.bias.copy_(torch.linspace(-1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x.to(self.layer.weight.dtype))).float().square().mean()


class Wide(nn.Sequential):
    """15 M weights; tensors smaller and larger than a bucket of 3 M."""

    def __init__(self) -> None:
        widths = [1024] * 8 + [4096, 1024]
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(widths)]
        super().__init__(*(module for layer in layers for module in (layer, nn.Tanh())))
        draw = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.03, generator=draw)

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self[0].weight
        return super().forward(x.to(weight.dtype)).float().square().mean()


class Toy(TrainingMethod):
    """A network whose output is its loss; a batch's latents are its input."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        optimizer = optimizer or SGD(model.parameters(), lr=1.0)
        scheduler = LambdaLR(optimizer, lambda step: 1.0)
        rates = tuple(scheduler.base_lrs)
        role = TrainedRole(model, optimizer=optimizer, scheduler=scheduler, configured_lrs=rates)
        super().__init__(0, {STUDENT: role})

    def single_train_step(self, batch: Batch, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        loss = self.roles[STUDENT](batch.latents)
        return {TOTAL_LOSS: loss}, {}, dict.fromkeys(METRICS, loss.detach().float())


def micro_batches(inputs: list[Tensor], rank: int) -> list[MicroBatch]:
    """One sample each."""
    dropped = [{"text": False, "cond": False, "mask": 0.0}]
    return [
        MicroBatch(
            0,
            0,
            SHARE,
            i == len(inputs) - 1,
            Batch(
                latents=x,
                prompts=ZERO,
                prompt_lengths=ZERO,
                context_ids=ZERO,
                sem_ids=ZERO,
                clip_ids=[f"clip-{rank}-{i}"],
                epochs=[0],
                indices=[i],
                dropped=dropped,
            ),
        )
        for i, x in enumerate(inputs)
    ]


def segment(method: TrainingMethod, engine: ZeroEngine, max_norm: float) -> Segment:
    return Segment(
        method,
        engine,
        validation=None,
        cadence=Cadence(1, 1, 1),
        grad_clip=max_norm,
        save=lambda step: None,
        asked_to_stop=lambda: engine.rank == 1,
    )


def check_accumulation(engine: ZeroEngine, max_norm: float) -> dict[str, object]:
    """Gradients 1, 2, 3, 4 on each process."""
    method = Toy(Slope())
    engine.prepare(method)
    slopes = [torch.tensor(float(i)) for i in range(1, MICRO_BATCHES + 1)]
    row, stopping = segment(method, engine, max_norm).optimizer_step(
        1, iter(micro_batches(slopes, engine.rank))
    )
    weights = method.roles[STUDENT].module.weights.detach().float().tolist()
    mapping = method.roles[STUDENT].module.weights._hp_mapping
    own = [mapping.lp_fragment_address.start, *mapping.hp_fragment.tolist()] if mapping else []
    return {
        "norm": row["grad_norm"],
        "clips": row["clips"],
        "loss": row["loss"],
        "stopping": stopping,
        "weights": engine.gather(weights),
        "masters": engine.gather(own),
    }


def check_infinity(engine: ZeroEngine) -> dict[str, object]:
    """The second process's third loss is infinite."""
    method = Toy(Slope())
    engine.prepare(method)
    slopes = [torch.tensor(float(i)) for i in range(MICRO_BATCHES)]
    if engine.rank == 1:
        slopes[2] = torch.tensor(float("inf"))
    message = ""
    try:
        segment(method, engine, 1.0).optimizer_step(7, iter(micro_batches(slopes, engine.rank)))
    except UserError as error:
        message = str(error)
    weights = method.roles[STUDENT].module.weights.detach().float().tolist()
    return {"messages": engine.gather(message), "weights": engine.gather(weights)}


def check_twice(engine: ZeroEngine) -> dict[str, object]:
    """Each process its own inputs; rank 0 also tells the gradient norm that autograd gives."""
    method = Toy(Twice())
    engine.prepare(method)
    inputs = [torch.full((1, 6), 0.25 * (i + 1)) for i in range(2 * MICRO_BATCHES)]
    own = inputs[engine.rank * MICRO_BATCHES : (engine.rank + 1) * MICRO_BATCHES]
    row, _ = segment(method, engine, 1e9).optimizer_step(1, iter(micro_batches(own, engine.rank)))
    reference = Twice()
    (sum(reference(x) for x in inputs) / len(inputs)).backward()
    grads = [p.grad for p in reference.parameters()]
    return {"norm": row["grad_norm"], "reference": float(torch.nn.utils.get_total_norm(grads))}


def check_own_sums(engine: ZeroEngine) -> dict[str, object]:
    """Master weights after two steps, with DeepSpeed's own way of summing and with ours."""
    plugin = engine.accelerator.state.deepspeed_plugin
    zero = plugin.deepspeed_config["zero_optimization"]
    as_is = mock.patch.object(deepspeed_engine, "sum_beside_training")
    with mock.patch.dict(zero, reduce_bucket_size=20):  # the larger tensors exceed it
        with as_is, mock.patch.dict(zero, reduce_scatter=True):
            theirs = trained_masters(engine, scattered=True)
        ours = trained_masters(engine, scattered=False)
    return {"theirs": engine.gather(theirs), "ours": engine.gather(ours)}


def trained_masters(engine: ZeroEngine, *, scattered: bool) -> list[float]:
    """This process's part of all master weights and moments after two steps of AdamW."""
    model = Twice()
    method = Toy(model, AdamW(model.parameters(), lr=0.01))
    engine.prepare(method)
    zero = method.roles[STUDENT].optimizer
    assert (zero.reduce_scatter, zero.reduce_bucket_size) == (scattered, 20)
    draw = torch.Generator().manual_seed(engine.rank)
    for step in (1, 2):
        inputs = [torch.randn(1, 6, generator=draw) for _ in range(MICRO_BATCHES)]
        train = segment(method, engine, 0.5)
        train.optimizer_step(step, iter(micro_batches(inputs, engine.rank)))
    return [v for fragment in engine.fragments(method) for v in fragment.values.tolist()]


def check_guard(engine: ZeroEngine) -> dict[str, object]:
    """Two roles' worth of preparation: DeepSpeed as it is installed, then one method changed."""
    kept = Toy(Twice())
    engine.prepare(kept)
    zero = type(kept.roles[STUDENT].optimizer)
    summed = zero.average_tensor

    def average_tensor(self: object, tensor: Tensor, kind: torch.dtype) -> None:
        """As DeepSpeed's, of another version."""
        summed(self, tensor, kind)

    told = Told()
    logging.getLogger(deepspeed_engine.__name__).addHandler(told)
    config = engine.accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
    with mock.patch.object(zero, "average_tensor", average_tensor):
        left = Toy(Twice())
        engine.prepare(left)
        with mock.patch.dict(config, reduce_bucket_size=20):
            masters = trained_masters(engine, scattered=False)
    changed = [
        name
        for method in (kept, left)
        for name in zero_sums.REPLACED
        if name in vars(method.roles[STUDENT].optimizer)
    ]
    return {
        "changed": changed,
        "warnings": engine.gather(told.messages),
        "masters": engine.gather(masters),
    }


class Told(logging.Handler):
    """Warnings, as they come."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def check_gpu_sums(engine: ZeroEngine) -> dict[str, object]:
    """Digests of each process's masters and moments, with DeepSpeed's own way and with ours."""
    config = engine.accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
    as_is = mock.patch.object(deepspeed_engine, "sum_beside_training", return_value=True)
    with mock.patch.dict(config, reduce_bucket_size=3_000_000):
        with as_is, mock.patch.dict(config, reduce_scatter=True):
            scattered = trained_digest(engine, ours=False)
        with as_is:
            theirs = trained_digest(engine, ours=False)
        ours = [trained_digest(engine, ours=True) for _ in range(3)]
    return {"scattered": scattered, "theirs": theirs, "ours": ours}


def trained_digest(engine: ZeroEngine, *, ours: bool) -> list[str]:
    """Every process's, after four steps of four micro-batches in which sums overlap."""
    model = Wide()
    method = Toy(model, AdamW(model.parameters(), lr=0.01))
    engine.prepare(method)
    zero = method.roles[STUDENT].optimizer
    assert zero.overlap_comm
    assert ("average_tensor" in vars(zero)) == ours
    draw = torch.Generator().manual_seed(engine.rank)
    for step in range(1, 5):
        inputs = [torch.randn(256, 1024, generator=draw) for _ in range(MICRO_BATCHES)]
        train = segment(method, engine, 0.5)
        train.optimizer_step(step, iter(micro_batches(inputs, engine.rank)))
    seen = hashlib.sha256()
    for fragment in engine.fragments(method):
        seen.update(fragment.values.detach().float().cpu().numpy().tobytes())
    return engine.gather(seen.hexdigest())


def check_fragments(engine: ZeroEngine) -> dict[str, object]:
    """All parts of all tensors; then masters are doubled and brought to the weights."""
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 7, bias=False))
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(0.1, 1.1 + i, parameter.numel()).view_as(parameter))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    groups = [{"params": [*model[0].parameters()]}, {"params": [*model[1].parameters()]}]
    method = Toy(model, AdamW(groups, lr=0.1))
    engine.prepare(method)
    parts = [(f.name, list(f.shape), f.start, f.values.tolist()) for f in engine.fragments(method)]
    for fragment in engine.fragments(method):
        fragment.values.mul_(2)
    engine.after_load(method)
    weights = engine.full_weights(method, STUDENT)
    return {
        "parts": engine.gather(parts),
        "before": {name: tensor.flatten().tolist() for name, tensor in before.items()},
        "shapes": {name: list(tensor.shape) for name, tensor in before.items()},
        "doubled": weights and {n: w.float().flatten().tolist() for n, w in weights.items()},
        "computing": engine.gather(
            {
                n: p.detach().float().flatten().tolist()
                for n, p in method.roles[STUDENT].module.named_parameters()
            }
        ),
    }


def compare_on_gpus(out: Path, processes: int) -> None:
    engine = ZeroEngine("bf16", 1, MICRO_BATCHES * processes, 1, gpu=True)
    found = check_gpu_sums(engine)
    if engine.rank == 0:
        out.write_text(json.dumps(found))
    engine.barrier()
    engine.close()


def main(out: Path) -> None:
    engine = ZeroEngine("bf16", 1, 8, 1, gpu=False)
    found = {
        "accumulated": check_accumulation(engine, 1e9),
        "clipped": check_accumulation(engine, 0.01),
        "infinity": check_infinity(engine),
        "sums": check_own_sums(engine),
        "guard": check_guard(engine),
        "twice": check_twice(engine),
        "fragments": check_fragments(engine),
        "sum": engine.all_reduce_sum(torch.tensor([engine.rank + 1.0, 10.0])).tolist(),
    }
    if engine.rank == 0:
        out.write_text(json.dumps(found))
    engine.barrier()
    engine.close()


if __name__ == "__main__":
    if "--gpu" in sys.argv:
        compare_on_gpus(Path(sys.argv[1]), int(sys.argv[3]))
    else:
        main(Path(sys.argv[1]))
