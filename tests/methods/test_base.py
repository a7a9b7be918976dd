"""Every hook of `TrainingMethod`, on a method of two linear networks and a frozen third."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.fsdp import fully_shard

from gc25d.dataset.draws import torch_seed
from gc25d.errors import UserError
from gc25d.methods.base import LossMap, Metrics, Outputs, TrainingMethod
from gc25d.methods.roles import OptimizerConfig, frozen_role, trainable_role

CONFIG = OptimizerConfig(lr=0.4, weight_decay=0.0, warmup_steps=4)


class Pair(TrainingMethod):
    """The critic learns at every iteration, the student at every second one."""

    loss_roles: ClassVar[dict[str, str]] = {"generator_loss": "student", "critic_loss": "critic"}

    def __init__(self, student: nn.Module, critic: nn.Module, seed: int = 3) -> None:
        roles = {
            "student": trainable_role(student, CONFIG, "weights/student"),
            "teacher": frozen_role(linear(9.0), "weights/teacher"),
            "critic": trainable_role(critic, CONFIG),
        }
        super().__init__(seed, roles)

    def stepping_roles(self, iteration: int) -> tuple[str, ...]:
        return ("critic",) if iteration % 2 else ("student", "critic")

    def updates_before(self, role: str, step: int) -> int:
        return -(-step // 2) if role == "student" else step

    def single_train_step(self, batch: object, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        x = torch.ones(1, 1)
        losses = {"critic_loss": 3 * self.roles["critic"](x).sum()}
        if iteration % 2 == 0:
            losses["generator_loss"] = 5 * self.roles["student"](x).sum()
        return losses, {}, {}


def linear(weight: float) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def pair(seed: int = 3) -> Pair:
    return Pair(linear(1.0), linear(2.0), seed)


def step(method: Pair, iteration: int, rounds: float = 1) -> None:
    method.optimizers_zero_grad(iteration)
    losses, outputs, _ = method.single_train_step(None, iteration)
    method.backward(losses, outputs, rounds)
    method.optimizers_schedulers_step(iteration)


def weights(method: Pair) -> list[float]:
    return [next(m.parameters()).item() for m in method.roles.values()]


def test_each_loss_is_divided_and_reaches_its_own_role() -> None:
    method = pair()
    losses, outputs, _ = method.single_train_step(None, 0)
    method.backward(losses, outputs, 4)
    gradients = [next(m.parameters()).grad for m in method.roles.values()]
    assert [None if g is None else float(g) for g in gradients] == [5 / 4, None, 3 / 4]


def test_an_engine_of_a_roles_own_takes_its_backward() -> None:
    method, seen = pair(), []
    method.run_backward = lambda loss: seen.append(("shared", loss.item()))
    method.role_backward["critic"] = lambda loss: seen.append(("critic", loss.item()))
    method.backward(method.single_train_step(None, 0)[0], {}, 2)
    assert sorted(seen) == [("critic", 3.0), ("shared", 2.5)]


def test_roles_step_and_warm_up_at_their_own_pace() -> None:
    method = pair()
    moved = []
    for iteration in range(4):
        step(method, iteration)
        moved.append(weights(method))
    # AdamW under a constant gradient moves by the rate: 0.4·(1/4, 2/4, 3/4, 1) at a role's steps.
    student = [1 - 0.1, 1 - 0.1, 1 - 0.3, 1 - 0.3]
    critic = [2 - 0.1, 2 - 0.3, 2 - 0.6, 2 - 1.0]
    for iteration, found in enumerate(moved):
        assert found == pytest.approx([student[iteration], 9.0, critic[iteration]], abs=1e-5)
    resumed = pair()
    resumed.resume_schedules(4)
    rates = [o.param_groups[0]["lr"] for o in resumed.get_optimizers(0)]
    assert rates == pytest.approx([0.3, 0.4])
    assert rates == [o.param_groups[0]["lr"] for o in method.get_optimizers(0)]


def test_optimizers_schedulers_and_clip_targets_follow_the_iteration() -> None:
    method = pair()
    student, critic = method.trained["student"], method.trained["critic"]
    assert method.get_optimizers(0) == [student.optimizer, critic.optimizer]
    assert method.get_optimizers(1) == [critic.optimizer]
    assert method.get_lr_schedulers(0) == [student.scheduler, critic.scheduler]
    assert method.get_lr_schedulers(1) == [critic.scheduler]
    both = method.get_grad_clip_targets(0)
    assert {name: [id(p) for p in found] for name, found in both.items()} == {
        name: [id(role.model.weight)] for name, role in method.trained.items()
    }
    assert list(method.get_grad_clip_targets(1)) == ["critic"]
    for iteration in (0, 1):
        clipped, sanitized = (
            {name: [id(p) for p in found] for name, found in targets.items()}
            for targets in (
                method.get_grad_clip_targets(iteration),
                method.get_grad_sanitize_targets(iteration),
            )
        )
        assert sanitized == clipped


def test_draws_follow_sample_and_step_alone() -> None:
    method, other = pair(), pair()
    method.on_train_start()
    assert method.generator.initial_seed() == 3
    torch.rand(5, generator=method.generator)
    of_sample = torch.rand(2, generator=method.sample_generator("noise", 1, 7))
    same = torch.Generator().manual_seed(torch_seed(3, "noise", 1, 7))
    assert torch.equal(of_sample, torch.rand(2, generator=same))
    assert method.sample_generator("noise", 1, 7) is method.generator
    of_step = torch.rand(2, generator=method.step_generator("exit", 7))
    assert torch.equal(of_step, torch.rand(2, generator=other.step_generator("exit", 7)))
    assert not torch.equal(of_step, torch.rand(2, generator=other.step_generator("exit", 8)))
    assert not torch.equal(of_step, torch.rand(2, generator=pair(4).step_generator("exit", 7)))


@pytest.mark.usefixtures("one_process")
def test_checkpoint_state_goes_through_dcp(tmp_path: Path) -> None:
    method = pair()
    for iteration in range(3):
        step(method, iteration)
    state = method.checkpoint_state()
    assert set(state) == {
        "random_state.seed",
        *(
            f"{kind}.{role}"
            for kind in ("optimizers", "schedulers")
            for role in ("student", "critic")
        ),
        "roles.student.transformer",
        "roles.critic.transformer",
    }
    dcp.save(state, checkpoint_id=tmp_path)
    resumed = Pair(linear(0.0), linear(0.0))
    resumed.seed_optimizer_state_for_resume()
    dcp.load(resumed.checkpoint_state(), checkpoint_id=tmp_path)
    assert weights(resumed) == weights(method)
    for iteration in range(3, 6):
        step(method, iteration)
        step(resumed, iteration)
        assert weights(resumed) == weights(method)
    with pytest.raises(UserError, match=r"trained with seed 3, this run's train\.seed is 4"):
        dcp.load(pair(seed=4).checkpoint_state(), checkpoint_id=tmp_path)


def test_seeded_moments_are_what_adamw_starts_from() -> None:
    method, plain = pair(), pair()
    method.seed_optimizer_state_for_resume()
    state = method.trained["student"].optimizer.state[method.roles["student"].weight]
    assert {name: float(value) for name, value in state.items()} == {
        "step": 0.0,
        "exp_avg": 0.0,
        "exp_avg_sq": 0.0,
    }
    for iteration in range(3):
        step(method, iteration)
        step(plain, iteration)
    assert weights(method) == weights(plain)
    kept = float(state["exp_avg"])
    method.seed_optimizer_state_for_resume()
    assert float(state["exp_avg"]) == kept != 0


def test_configured_rates_come_back() -> None:
    method = pair()
    step(method, 0)
    for role in method.trained.values():
        role.scheduler.base_lrs = [7.0]
        role.optimizer.param_groups[0]["lr"] = 7.0
    method.apply_configured_lrs()
    assert [o.param_groups[0]["lr"] for o in method.get_optimizers(0)] == pytest.approx([0.2, 0.2])
    step(method, 1)
    assert method.trained["critic"].optimizer.param_groups[0]["lr"] == pytest.approx(0.3)


def test_inference_modules_and_their_origin() -> None:
    method = pair()
    assert method.inference_checkpoint_modules("teacher") == {
        "transformer": method.roles["teacher"]
    }
    paths = [method.inference_checkpoint_base_model_path(role) for role in method.roles]
    assert paths == ["weights/student", "weights/teacher", ""]
    for asked in (
        method.inference_checkpoint_modules,
        method.inference_checkpoint_base_model_path,
    ):
        with pytest.raises(
            UserError, match="'ema' is unknown: choose one of student, teacher, cri"
        ):
            asked("ema")


def test_low_precision_masters_are_refused_unless_allowed() -> None:
    low = linear(1.0).bfloat16()
    with pytest.raises(UserError, match=r"role critic: trainable weight is torch\.bfloat16"):
        Pair(linear(1.0), low)

    class Allowed(Pair):
        requires_fp32_master_weights = False

    assert Allowed(linear(1.0), low).roles["critic"] is low
    # By configuration, as train.master_weights: bf16 has it.
    config = dataclasses.replace(CONFIG, low_precision_masters=True)

    class Configured(Pair):
        def __init__(self, critic: nn.Module) -> None:
            roles = {"student": trainable_role(linear(1.0), CONFIG)}
            TrainingMethod.__init__(self, 0, {**roles, "critic": trainable_role(critic, config)})

    assert Configured(low).roles["critic"] is low


def test_a_managed_step_is_a_single_train_step_by_default() -> None:
    assert not Pair.manages_optimization
    method = pair()
    found, alone = method.managed_train_step([None], 1), method.single_train_step(None, 1)
    assert found[0].keys() == alone[0].keys() == {"critic_loss"}
    assert found[0]["critic_loss"].item() == alone[0]["critic_loss"].item() == 6.0


def test_the_tracker_and_validation_hooks_do_nothing_by_default() -> None:
    method, told = pair(), []
    method.tracker.log({"reward": 1.0}, 1)  # before the trainer gives one
    method.set_tracker(SimpleNamespace(log=lambda values, step: told.append((values, step))))
    method.tracker.log({"reward": 2.0}, 5)
    assert told == [({"reward": 2.0}, 5)]
    assert not method.on_validation_begin(-1)


def test_replaced_roles_are_used() -> None:
    method = pair()
    model, optimizer = linear(4.0), SimpleNamespace()
    method.replace_role("student", model, optimizer)
    method.replace_role("teacher", model)
    assert method.roles["student"] is method.roles["teacher"] is model
    assert method.get_optimizers(0)[0] is optimizer
    assert list(method.trained) == ["student", "critic"]


def test_models_opt_in() -> None:
    method = pair()
    assert method.attention_kind == "dense"
    assert not method.supports_gradient_accumulation_no_sync
    method.roles["student"].attention_kind = "block_causal"
    method.roles["student"].supports_gradient_accumulation_no_sync = True
    assert method.attention_kind == "block_causal"
    assert not method.supports_gradient_accumulation_no_sync
    method.roles["critic"].supports_gradient_accumulation_no_sync = True
    assert method.supports_gradient_accumulation_no_sync


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_gradient_sync_of_sharded_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule

    mesh = init_device_mesh("cpu", (1,))
    shared = linear(1.0)
    student = nn.Sequential(shared, linear(2.0), shared)
    fully_shard(student[1], mesh=mesh)
    fully_shard(student, mesh=mesh)
    method = Pair(student, linear(1.0))  # the critic is plain and left alone
    calls = []
    original = FSDPModule.set_requires_gradient_sync

    def counted(self: FSDPModule, required: bool, *, recurse: bool = True) -> None:
        calls.append((id(self), required))
        original(self, required, recurse=recurse)

    monkeypatch.setattr(FSDPModule, "set_requires_gradient_sync", counted)
    method.set_requires_gradient_sync(False, 1)
    assert calls == []  # at odd iterations the critic alone learns
    method.set_requires_gradient_sync(False, 0)
    assert sorted(calls) == sorted([(id(student), False), (id(student[1]), False)])
    method.set_is_last_backward(False, 0)
    assert not student._get_fsdp_state()._state_ctx.is_last_backward
    step(method, 0)
    assert student[1].weight.grad is None  # kept unreduced
    method.set_requires_gradient_sync(True, 0)
    method.set_is_last_backward(True, 0)
    losses, outputs, _ = method.single_train_step(None, 0)
    method.backward(losses, outputs, 1)
    assert float(student[1].weight.grad.full_tensor()) == pytest.approx(2 * 5.0, rel=1e-5)
