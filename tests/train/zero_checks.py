"""Run by two processes (test_deepspeed_engine.py): what each of them sees, as JSON on disk.

Toy networks whose gradients are known by hand, in bf16 with fp32 masters, through the real engine.
"""

import json
import math
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
from gc25d.train import deepspeed_engine
from gc25d.train.deepspeed_engine import ZeroEngine
from gc25d.train.feed import MicroBatch
from gc25d.train.fragments import Fragment
from gc25d.train.loop import Cadence, Segment
from gc25d.train.state_reader import load_state, shapes_of
from gc25d.train.state_writer import StateWriter
from gc25d.train.states import newest_state

MICRO_BATCHES = 4
SHARE = 1 / (2 * MICRO_BATCHES)
ZERO = torch.zeros(())
METRICS = {"loss": ZERO, "mse": ZERO, "timestep": ZERO, "sem_rms": ZERO, "x_rms": ZERO}


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


class Weighed(nn.Module):
    """x · (1·w_0 + 2·w_1 + …): the gradient of the k-th weight of all is k · x, exactly.

    19 weights of the first two tensors go into one optimizer group, 7 of the third into another, so
    that tensors start in the middle of a group, and a process's part in the middle of a tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        shapes, numbers = {"a": (5,), "b": (2, 7), "c": (7,)}, iter(range(1, 27))
        for name, shape in shapes.items():
            setattr(
                self, name, nn.Parameter(torch.linspace(0.5, 1.5, math.prod(shape)).view(shape))
            )
            factors = torch.tensor([float(next(numbers)) for _ in range(math.prod(shape))])
            self.register_buffer(f"of_{name}", factors.view(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * sum((getattr(self, f"of_{name}") * getattr(self, name)).sum() for name in "abc")


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
        return {TOTAL_LOSS: loss}, {}, {**METRICS, "loss": loss.detach().float()}


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


def check_sanitized(engine: ZeroEngine) -> dict[str, object]:
    """The second process's gradient has an infinity beside what `check_accumulation` has."""
    model = Slope()
    if engine.rank == 1:
        infinite = torch.tensor([0.0, float("inf"), 0.0, 0.0])
        model.weights.register_hook(lambda gradient: gradient + infinite.to(gradient.dtype))
    method = Toy(model)
    engine.prepare(method)
    slopes = [torch.tensor(float(i)) for i in range(1, MICRO_BATCHES + 1)]
    row, _ = segment(method, engine, 1e9).optimizer_step(
        1, iter(micro_batches(slopes, engine.rank))
    )
    mapping = method.roles[STUDENT].module.weights._hp_mapping
    own = [mapping.lp_fragment_address.start, *mapping.hp_fragment.tolist()] if mapping else []
    return {"norm": row["grad_norm"], "masters": engine.gather(own)}


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


def weighed(engine: ZeroEngine) -> Toy:
    """A new network with AdamW, prepared."""
    model = Weighed()
    method = Toy(model, AdamW([{"params": [model.a, model.b]}, {"params": [model.c]}], lr=1e-3))
    engine.prepare(method)
    return method


def check_moments(engine: ZeroEngine, root: Path) -> dict[str, object]:
    """Moments after a step at x = 1; then saved, loaded into a new network, a step at x = 2."""

    def step(method: Toy, number: int) -> list[Fragment]:
        inputs = [torch.tensor(float(number))] * MICRO_BATCHES
        train = segment(method, engine, 1e9)
        train.optimizer_step(number, iter(micro_batches(inputs, engine.rank)))
        return engine.fragments(method)

    trained = step(weighed(engine), 1)
    parts = [(f.name, f.start, f.values.tolist()) for f in trained]
    writer = StateWriter(root, engine.rank, engine.world_size)
    writer.save(1, trained, binding="b", checkpoint=True)
    writer.wait()
    engine.barrier()
    restored = weighed(engine)
    state, fragments = newest_state([root], 1, "b"), engine.fragments(restored)
    assert state is not None
    shapes = {k: v for held in engine.gather(shapes_of(fragments)) for k, v in held.items()}
    load_state(state, fragments, shapes)
    engine.after_load(restored)
    again = [(f.name, f.start, f.values.tolist()) for f in step(restored, 2)]
    return {"trained": engine.gather(parts), "restored": engine.gather(again)}


def main(out: Path) -> None:
    engine = ZeroEngine("bf16", 1, 8, 1, gpu=False)
    found = {
        "accumulated": check_accumulation(engine, 1e9),
        "clipped": check_accumulation(engine, 0.01),
        "infinity": check_infinity(engine),
        "sanitized": check_sanitized(engine),
        "sums": check_own_sums(engine),
        "twice": check_twice(engine),
        "fragments": check_fragments(engine),
        "moments": check_moments(engine, out.with_name("states")),
        "sum": engine.all_reduce_sum(torch.tensor([engine.rank + 1.0, 10.0])).tolist(),
    }
    if engine.rank == 0:
        out.write_text(json.dumps(found))
    engine.barrier()
    engine.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
