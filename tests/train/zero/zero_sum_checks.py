"""DeepSpeed's own sums of gradients beside ours: parts of zero_checks.py, and a program for GPUs.

    python zero_sum_checks.py <out.json> <processes>

Run so by each process (tests/gpu/test_zero_sums.py), it leaves the digests that they see, as JSON.
"""

import hashlib
import json
import logging
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.optim import AdamW
from zero_toys import MICRO_BATCHES, Toy, Twice, Wide, micro_batches, segment

from gc25d.methods.roles import STUDENT
from gc25d.train.zero import all_reduce
from gc25d.train.zero import engine as zero_engine
from gc25d.train.zero.engine import ZeroEngine

DELAY_CYCLES = 5_000_000  # of a GPU's clock: about 3 ms


def check_own_sums(engine: ZeroEngine) -> dict[str, object]:
    """Master weights after two steps, with DeepSpeed's own way of summing and with ours."""
    plugin = engine.accelerator.state.deepspeed_plugin
    zero = plugin.deepspeed_config["zero_optimization"]
    as_is = mock.patch.object(zero_engine, "sum_beside_training", return_value="")
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
    logging.getLogger(zero_engine.__name__).addHandler(told)
    config = engine.accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
    with mock.patch.object(zero, "average_tensor", average_tensor):
        left = Toy(Twice())
        engine.prepare(left)
        with mock.patch.dict(config, reduce_bucket_size=20):
            masters = trained_masters(engine, scattered=False)
    changed = [
        name
        for method in (kept, left)
        for name in all_reduce.REPLACED
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
    as_is = mock.patch.object(zero_engine, "sum_beside_training", return_value="")
    with mock.patch.dict(config, reduce_bucket_size=3_000_000):
        with as_is, mock.patch.dict(config, reduce_scatter=True):
            scattered = trained_digest(engine, ours=False)
        with as_is:
            theirs = trained_digest(engine, ours=False)
        ours = [trained_digest(engine, ours=True, late=late) for late in (False, True, True)]
    return {"scattered": scattered, "theirs": theirs, "ours": ours}


def trained_digest(engine: ZeroEngine, *, ours: bool, late: bool = False) -> list[str]:
    """Every process's, after four steps of four micro-batches in which sums overlap."""
    model = Wide()
    method = Toy(model, AdamW(model.parameters(), lr=0.01))
    engine.prepare(method)
    zero = method.roles[STUDENT].optimizer
    assert zero.overlap_comm
    assert ("average_tensor" in vars(zero)) == ours
    if late:
        delay_sums(zero)
    draw = torch.Generator().manual_seed(engine.rank)
    for step in range(1, 5):
        inputs = [torch.randn(256, 1024, generator=draw) for _ in range(MICRO_BATCHES)]
        train = segment(method, engine, 0.5)
        train.optimizer_step(step, iter(micro_batches(inputs, engine.rank)))
    seen = hashlib.sha256()
    for fragment in engine.fragments(method):
        seen.update(fragment.values.detach().float().cpu().numpy().tobytes())
    return engine.gather(seen.hexdigest())


def delay_sums(zero: Any) -> None:
    """Let every sum of a bucket start milliseconds late, so that what does not wait goes wrong."""
    own = zero.gradient_reduction_w_predivide

    def later(*bucket: object) -> Tensor:
        torch.cuda._sleep(DELAY_CYCLES)
        return own(*bucket)

    zero.gradient_reduction_w_predivide = later


def compare_on_gpus(out: Path, processes: int) -> None:
    engine = ZeroEngine("bf16", 1, MICRO_BATCHES * processes, 1, gpu=True)
    found = check_gpu_sums(engine)
    if engine.rank == 0:
        out.write_text(json.dumps(found))
    engine.barrier()
    engine.close()


if __name__ == "__main__":
    compare_on_gpus(Path(sys.argv[1]), int(sys.argv[2]))
