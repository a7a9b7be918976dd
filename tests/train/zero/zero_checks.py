"""Run by two processes (test_deepspeed_engine.py): what each of them sees, as JSON on disk.

Toy networks whose gradients are known by hand, in bf16 with fp32 masters, through the real engine.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.optim import AdamW
from zero_sum_checks import check_guard, check_own_sums
from zero_toys import MICRO_BATCHES, Slope, Toy, Twice, Weighed, micro_batches, segment

from gc25d.errors import UserError
from gc25d.methods.roles import STUDENT
from gc25d.train.states.folder import newest_state
from gc25d.train.states.fragments import Fragment
from gc25d.train.states.reader import load_state, shapes_of
from gc25d.train.states.writer import StateWriter
from gc25d.train.zero.engine import ZeroEngine


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
        "guard": check_guard(engine),
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
