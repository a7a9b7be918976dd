import contextlib
import dataclasses
import json
import math
import subprocess
import sys
import unittest
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from gc25d.dataset.draws import torch_seed
from gc25d.errors import UserError
from gc25d.model.interface import ModelOutput
from gc25d.records import digest_json
from gc25d.regression import fixtures, synthetic, weights
from gc25d.regression.cells import CELLS, small_cell
from gc25d.regression.fixtures import build_fixture
from gc25d.regression.gradnorm import (
    UPDATE_VARIABLE,
    block_zero,
    check_grad_norm_regression,
    grad_norm,
    measure,
    origin_of,
)
from gc25d.regression.refs import Measurement, read_refs, record, reference_of
from gc25d.regression.synthetic import BatchShape, synthetic_batch
from gc25d.settings.cells import LEGAL

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


def test_an_engine_s_wrapper_is_looked_through():
    wrapper = nn.Module()
    wrapper.module = Toy(3.0, 4.0)
    assert grad_norm(block_zero(wrapper)) == 5.0


def test_low_precision_moves_no_norm_far(monkeypatch):
    """What CUDA does: bf16 autocast. The tolerance is for breakages, not for rounding."""
    names = ("wan/finetune", "wan_causal/self_forcing", "matrixgame2/dfsft")
    cells = [cell for cell in CELLS if cell.name in names]
    full = [measure(cell, CPU, 1).norm for cell in cells]
    monkeypatch.setitem(fixtures.PRECISION, "cpu", torch.bfloat16)
    low = [measure(cell, CPU, 1).norm for cell in cells]
    assert low == pytest.approx(full, rel=0.01)
    assert low != full


def loss_by_hand(transformer: Callable, batch, seed: int) -> torch.Tensor:
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


def test_a_cell_equals_diffusers_own_class():
    cell = small_cell("cosmos", "finetune")
    fixture = build_fixture(cell, CPU)
    ours, batch = fixture.transformer, fixture.batch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diffusers import CosmosTransformer3DModel
    peer = CosmosTransformer3DModel.from_config(ours.transformer.config)
    peer.load_state_dict(ours.transformer.state_dict())

    def call(latents, timestep, prompts, lengths, context_ids, sem_ids):
        condition = ours.gc_sem_cond(sem_ids).detach()
        handle = peer.patch_embed.register_forward_hook(
            lambda _, __, tokens: tokens + condition.reshape(tokens.shape)
        )
        clean = torch.zeros_like(latents[:, :2])
        clean[:, 0, 0] = 1
        (prediction,) = peer(
            torch.cat([latents, clean], 1),
            timestep=timestep.reshape(1, 1, -1, 1, 1) / 1000,
            encoder_hidden_states=prompts[:1],
            return_dict=False,
        )
        handle.remove()
        return ModelOutput(prediction, {})

    loss = loss_by_hand(call, batch, cell.seed)
    gradients = torch.autograd.grad(loss, list(peer.transformer_blocks[0].parameters()))
    by_hand = math.sqrt(sum(float(g.double().pow(2).sum()) for g in gradients))
    assert measure(cell, CPU, repeats=1).norm == pytest.approx(by_hand, rel=1e-4)


def test_repeats_agree_and_leave_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    measured = measure(FINETUNE, CPU, repeats=2)
    assert torch.equal(before, torch.get_rng_state())
    assert len(measured.norms) == 2
    assert measured.spread < 1e-5
    assert measured.norm > 0.01


def test_cells_are_independent_of_one_another():
    renamed = dataclasses.replace(FINETUNE, size="1.3b", weights="elsewhere")
    assert renamed.name == "wan@1.3b/finetune"
    assert renamed.seed != FINETUNE.seed
    alone = measure(FINETUNE, CPU, repeats=1)
    other = measure(small_cell("wan", "kd"), CPU, repeats=1)
    assert measure(FINETUNE, CPU, repeats=1) == alone
    assert other.norm != alone.norm
    assert len({cell.name for cell in CELLS}) == len({cell.seed for cell in CELLS}) == len(CELLS)


def test_every_legal_pair_is_a_cell():
    legal = {f"{model}/{method}" for model, methods in LEGAL.items() for method in methods}
    assert {cell.name for cell in CELLS} == legal


def test_a_changed_fixture_has_another_digest(monkeypatch):
    digest = build_fixture(FINETUNE, CPU).digest
    assert build_fixture(FINETUNE, CPU).digest == digest
    dfsft = small_cell("wan_causal", "dfsft")
    changed = [
        dataclasses.replace(FINETUNE, shape=BatchShape(frames=4)),
        dataclasses.replace(FINETUNE, model="wan_causal"),
        dfsft,
        dataclasses.replace(dfsft, arguments={"chunk_frames": 1}),
    ]
    digests = {digest, *(build_fixture(cell, CPU).digest for cell in changed)}
    monkeypatch.setitem(fixtures.PRECISION, "cpu", torch.bfloat16)
    digests.add(build_fixture(FINETUNE, CPU).digest)
    monkeypatch.setitem(weights.GAINS, ".cross_attn.o.weight", 2.5)
    digests.add(build_fixture(FINETUNE, CPU).digest)
    monkeypatch.setitem(weights.GAINS, "of.another.model", 2.5)
    digests.add(build_fixture(FINETUNE, CPU).digest)
    assert len(digests) == 7


def test_freezing_is_no_other_fixture():
    model = build_fixture(FINETUNE, CPU).transformer
    shapes = weights.parameter_shapes(model)
    model.blocks[0].requires_grad_(False)
    assert weights.parameter_shapes(model) == shapes


def test_the_synthetic_batch_is_legal():
    shape = BatchShape(batch=2, frames=3, height=4, width=6, prompts=3, text_len=8, text_dim=5)
    batch = synthetic_batch(shape, 0)
    assert batch.latents.shape == (2, 48, 3, 4, 6)
    assert batch.sem_ids.shape == (2, 9, 64, 96)
    assert set(batch.sem_ids.unique().tolist()) == set(synthetic.KNOWN_IDS)
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
    with pytest.raises(unittest.SkipTest, match=r"norm 5 recorded in .*CPU\.json, not compared"):
        check(Toy(3.0, 4.0))
    monkeypatch.delenv(UPDATE_VARIABLE)
    assert read_refs(tmp_path / "CPU.json", "CPU")["toy"].norm == 5.0
    check(Toy(3.0, 4.4), strict=True)
    with pytest.raises(AssertionError, match=r"norm 6\.70.*reference 5"):
        check(Toy(3.0, 6.0))


@pytest.mark.parametrize(
    ("asked", "recorded", "off", "passes"),
    [
        # The caller's tolerance decides, tighter or wider than the recorded one.
        *((0.01, 0.10, 0.05, False), (0.20, 0.10, 0.15, True), (0.30, None, 0.2, None)),
        # Without one the recorded tolerance does, and without that 0.10.
        *((None, 0.30, 0.25, True), (None, 0.02, 0.05, False), (None, None, 0.0, None)),
    ],
)
def test_the_helper_s_tolerance(tmp_path, asked, recorded, off, passes):
    if recorded is not None:
        toy = Toy(1.0, 0.0)
        digest = digest_json({"name": "toy", "parameters": weights.parameter_shapes(toy)})
        kept = reference_of(Measurement("toy", (1.0,), digest), recorded, origin_of(CPU))
        record(tmp_path / "CPU.json", "CPU", {"toy": kept})
    given = {} if asked is None else {"rtol": asked}
    expected = {True: None, False: AssertionError, None: unittest.SkipTest}[passes]
    with pytest.raises(expected) if expected else contextlib.nullcontext():
        check_grad_norm_regression("toy", Toy(1.0 + off, 0.0), refs_root=tmp_path, **given)


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
