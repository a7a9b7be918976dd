import dataclasses
import json
import math
import subprocess
import sys
import unittest

import numpy as np
import pytest
import torch
from torch import nn

from gc25d.dataset.draws import torch_seed
from gc25d.errors import UserError
from gc25d.regression import fixtures, gradnorm
from gc25d.regression.fixtures import CELLS, Shape, build_fixture, synthetic_batch
from gc25d.regression.gradnorm import (
    UPDATE_VARIABLE,
    block_zero,
    check_grad_norm_regression,
    grad_norm,
    measure,
    origin_of,
)
from gc25d.regression.refs import Measurement, compare, read_refs, record, reference_of

CPU = torch.device("cpu")
(FINETUNE,) = (cell for cell in CELLS if cell.name == "wan/finetune")


def with_gradient(*values: float, dtype=torch.float32) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(len(values), dtype=dtype))
    parameter.grad = torch.tensor(values, dtype=dtype)
    return parameter


class Toy(nn.Module):
    """Two blocks; only the first block's gradients count."""

    def __init__(self, *gradient: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 1, bias=False), nn.Linear(2, 1)])
        self.blocks[0].weight.grad = torch.tensor([gradient])
        self.blocks[1].weight.grad = torch.full((1, 2), 1e9)


def test_norm_by_hand():
    assert grad_norm([with_gradient(3.0), with_gradient(0.0, 4.0)]) == 5.0
    assert grad_norm([with_gradient(3.0), nn.Parameter(torch.zeros(2))]) == 3.0
    assert grad_norm([]) == 0.0
    assert math.isnan(grad_norm([with_gradient(math.nan), with_gradient(1.0)]))


def test_low_precision_gradients_are_summed_in_float32():
    # 65536 squares of 1/16 are 256; a bf16 sum would stall far below.
    parameter = with_gradient(*[1 / 16] * 65536, dtype=torch.bfloat16)
    assert grad_norm([parameter]) == 16.0


def test_only_trainable_parameters_of_block_0_count():
    toy = Toy(3.0, 4.0)
    assert grad_norm(block_zero(toy)) == 5.0
    toy.blocks[0].weight.requires_grad_(False)
    assert block_zero(toy) == []
    with pytest.raises(ValueError, match="no blocks"):
        block_zero(nn.Linear(1, 1))


def loss_by_hand(transformer: nn.Module, batch, seed: int) -> torch.Tensor:
    """The fine-tuning loss written out from its formulas (docs: flow matching, TI2V)."""
    uniform = np.linspace(1, 0, 1001)[:-1]
    grid = 1000 * (5 * uniform / (1 + 4 * uniform))
    bell = np.exp(-2 * ((grid - 500) / 1000) ** 2)
    weights = (bell - bell.min()) / (bell - bell.min()).mean()
    total = torch.zeros(())
    for b, (epoch, index) in enumerate(zip(batch.epochs, batch.indices, strict=True)):
        generator = torch.Generator().manual_seed(torch_seed(seed, "diffusion", epoch, index))
        point = int(torch.randint(1000, (), generator=generator))
        x0 = batch.latents[b : b + 1]
        noise = torch.randn(x0.shape[1:], generator=generator)[None]
        sigma = grid[point] / 1000
        noisy = (1 - sigma) * x0 + sigma * noise
        noisy[:, :, 0] = x0[:, :, 0]
        timestep = torch.full((1, x0.shape[2]), float(grid[point]), dtype=torch.float32)
        timestep[:, 0] = 0
        # One prompt a frame, not the batch's shared table: the same model, called another way.
        own = batch.context_ids[b]
        prediction = transformer(
            noisy,
            timestep,
            batch.prompts[own],
            batch.prompt_lengths[own],
            torch.arange(len(own))[None],
            batch.sem_ids[b : b + 1],
        ).prediction
        error = (prediction - (noise - x0))[:, :, 1:].double().pow(2).mean()
        total = total + weights[point] * error / len(batch)
    return total


def test_a_cell_equals_autograd_on_a_hand_written_loss():
    fixture = build_fixture(FINETUNE, CPU)
    parameters = block_zero(fixture.transformer)
    loss = loss_by_hand(fixture.transformer, fixture.batch, FINETUNE.seed)
    gradients = torch.autograd.grad(loss, parameters)
    by_hand = math.sqrt(sum(float(g.double().pow(2).sum()) for g in gradients))
    measured = measure(FINETUNE, CPU, repeats=1)
    assert measured.norm == pytest.approx(by_hand, rel=1e-4)
    assert all(float(g.abs().max()) > 0 for g in gradients)


def test_repeats_agree_and_leave_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    measured = measure(FINETUNE, CPU, repeats=2)
    assert torch.equal(before, torch.get_rng_state())
    assert len(measured.norms) == 2
    assert measured.spread < 1e-5
    assert measured.norm > 0.01


def without_loss_weight(fixture):
    fixture.method.weights = torch.ones_like(fixture.method.weights)
    return fixture


def with_condition_ignored(fixture):
    nn.init.zeros_(fixture.transformer.gc_sem_cond.proj_out.weight)
    return fixture


def with_unknown_condition(fixture):
    unknown = torch.full_like(fixture.batch.sem_ids, 255)
    return dataclasses.replace(fixture, batch=dataclasses.replace(fixture.batch, sem_ids=unknown))


def with_text_ignored(fixture):
    for block in fixture.transformer.blocks:
        nn.init.zeros_(block.cross_attn.o.weight)
    return fixture


def with_one_prompt_for_all_frames(fixture):
    first = torch.zeros_like(fixture.batch.context_ids)
    return dataclasses.replace(fixture, batch=dataclasses.replace(fixture.batch, context_ids=first))


def with_a_block_skipped(fixture):
    del fixture.transformer.blocks[3]
    return fixture


@pytest.mark.parametrize(
    "sabotage",
    [
        without_loss_weight,
        with_condition_ignored,
        with_unknown_condition,
        with_text_ignored,
        with_one_prompt_for_all_frames,
        with_a_block_skipped,
    ],
)
def test_a_broken_part_moves_the_norm_out_of_tolerance(sabotage, monkeypatch):
    reference = reference_of(measure(FINETUNE, CPU, repeats=1), 0.10, origin_of(CPU))
    monkeypatch.setattr(gradnorm, "build_fixture", lambda *args: sabotage(build_fixture(*args)))
    verdict = compare(measure(FINETUNE, CPU, repeats=1), {FINETUNE.name: reference}, 0.10)
    assert verdict.outcome == "out"


def test_cells_are_independent_of_one_another():
    renamed = dataclasses.replace(FINETUNE, method="another")
    assert renamed.seed != FINETUNE.seed
    alone = measure(FINETUNE, CPU, repeats=1)
    other = measure(renamed, CPU, repeats=1)
    assert measure(FINETUNE, CPU, repeats=1) == alone
    assert other.norm != alone.norm
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_a_changed_fixture_has_another_digest(monkeypatch):
    digest = build_fixture(FINETUNE, CPU).digest
    assert build_fixture(FINETUNE, CPU).digest == digest
    larger = dataclasses.replace(FINETUNE, shape=Shape(frames=4))
    renamed = dataclasses.replace(FINETUNE, method="another")
    digests = {build_fixture(cell, CPU).digest for cell in (FINETUNE, larger, renamed)}
    monkeypatch.setitem(fixtures.PRECISION, "cpu", torch.bfloat16)
    assert len(digests | {build_fixture(FINETUNE, CPU).digest}) == 4


def test_the_synthetic_batch_is_legal():
    shape = Shape(batch=2, frames=3, height=4, width=6, prompts=3, text_len=8, text_dim=5)
    batch = synthetic_batch(shape, 0)
    assert batch.latents.shape == (2, 48, 3, 4, 6)
    assert batch.sem_ids.shape == (2, 9, 64, 96)
    assert set(batch.sem_ids.unique().tolist()) == set(fixtures.KNOWN_IDS)
    for prompt, length in zip(batch.prompts, batch.prompt_lengths.tolist(), strict=True):
        assert 1 <= length <= 8
        assert (prompt[:length] != 0).all()
        assert (prompt[length:] == 0).all()
    assert torch.equal(batch.latents, synthetic_batch(shape, 0).latents)
    assert not torch.equal(batch.latents, synthetic_batch(shape, 1).latents)


def test_the_helper_skips_records_and_compares(tmp_path, monkeypatch):
    def check(toy: Toy, **options) -> None:
        check_grad_norm_regression("toy", toy, 0.1, refs_root=tmp_path, **options)

    with pytest.raises(unittest.SkipTest, match="missing"):
        check(Toy(3.0, 4.0))
    with pytest.raises(AssertionError, match="missing"):
        check(Toy(3.0, 4.0), strict=True)
    monkeypatch.setenv(UPDATE_VARIABLE, "1")
    check(Toy(3.0, 4.0))
    monkeypatch.delenv(UPDATE_VARIABLE)
    assert read_refs(tmp_path / "CPU.json", "CPU")["toy"].norm == 5.0
    check(Toy(3.0, 4.4), strict=True)
    with pytest.raises(AssertionError, match=r"norm 6\.70.*reference 5"):
        check(Toy(3.0, 6.0))


@pytest.mark.parametrize("update", ["0", "1"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
def test_the_helper_refuses_what_is_no_norm_in_both_modes(tmp_path, monkeypatch, update, bad):
    path = tmp_path / "CPU.json"
    record(path, "CPU", {"kept": reference_of(measure_of(1.0), 0.1, origin_of(CPU))})
    monkeypatch.setenv(UPDATE_VARIABLE, update)
    with pytest.raises(UserError, match="positive number"):
        check_grad_norm_regression("toy", Toy(bad, 0.0), 0.1, refs_root=tmp_path)
    assert list(read_refs(path, "CPU")) == ["kept"]


def measure_of(norm: float):
    return Measurement("kept", (norm,), "f")


def test_pytest_shows_the_helper_s_skip(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import torch\n"
        "from gc25d.regression.gradnorm import check_grad_norm_regression\n"
        "def test_norm():\n"
        "    toy = torch.nn.Module()\n"
        "    toy.blocks = torch.nn.ModuleList([torch.nn.Linear(1, 1)])\n"
        "    toy.blocks[0](torch.ones(1, 1)).sum().backward()\n"
        "    check_grad_norm_regression('toy', toy, 0.1)\n"
    )
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert "1 skipped" in done.stdout
    assert "record it with GC25D_GRADNORM_UPDATE=1" in done.stdout


SHARDED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from gc25d.regression.gradnorm import grad_norm
rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(12.0).reshape(4, 3)
parameter = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
parameter.grad = distribute_tensor(whole, mesh, [Shard(0)])
assert parameter.grad.to_local().shape == (2, 3)
print(grad_norm([parameter]))
dist.destroy_process_group()
"""


def test_sharded_gradients_count_whole(tmp_path):
    commands = [
        [sys.executable, "-c", SHARDED, str(rank), str(tmp_path / "store")] for rank in (0, 1)
    ]
    ranks = [subprocess.Popen(c, stdout=subprocess.PIPE, text=True) for c in commands]
    printed = [process.communicate(timeout=60)[0] for process in ranks]
    whole = math.sqrt(sum(i * i for i in range(12)))
    assert [float(text) for text in printed] == pytest.approx([whole, whole], rel=1e-6)


def test_the_origin_is_plain_json():
    origin = dataclasses.asdict(origin_of(CPU))
    assert json.loads(json.dumps(origin)) == origin
    assert origin["device_name"] == "CPU"
    assert origin["torch"] == torch.__version__
