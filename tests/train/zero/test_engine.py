"""ZeRO-2 on two processes: sums, clipping, refusals and state, against figures worked out by hand.

Both processes run tests/train/zero/zero_checks.py, once for all tests.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gc25d.errors import UserError
from gc25d.train.processes.launch import Layout, run_processes
from gc25d.train.zero.config import zero_config
from gc25d.train.zero.engine import ZeroEngine

PROGRAM = Path(__file__).with_name("zero_checks.py")
START = [0.1, 0.2, 0.3, 0.4]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("zero") / "found.json"
    assert run_processes([sys.executable, str(PROGRAM), str(out)], Layout(1, 2, gpu=False)) == 0
    return json.loads(out.read_text())


def whole(parts: list[list[float]]) -> list[float]:
    """[start, values…] of each process → the tensor."""
    return [value for start, *values in sorted(parts) for value in values]


def test_all_micro_batches_of_all_processes_count_once(found: dict[str, Any]) -> None:
    """1, 2, 3 and 4 on either process, each an eighth of the step: 2 · 10 / 8."""
    assert found["accumulated"]["norm"] == 2.5


def test_an_update_moves_masters_by_the_gradient(found: dict[str, Any]) -> None:
    """SGD at rate 1 takes the gradient (2.5, 0, 0, 0) from masters that were never rounded."""
    moved = whole(found["accumulated"]["masters"])
    assert moved == pytest.approx([START[0] - 2.5, *START[1:]], abs=1e-7)
    rounded = torch.tensor(moved).bfloat16().tolist()
    assert found["accumulated"]["weights"] == [rounded, rounded]


def test_clipping_bounds_the_update_and_tells_the_norm_before(found: dict[str, Any]) -> None:
    clipped = found["clipped"]
    assert clipped["norm"] == 2.5
    moved = torch.tensor(START) - torch.tensor(whole(clipped["masters"]))
    assert 0.01 * (1 - 1e-5) < float(moved.norm()) <= 0.01 * (1 + 1e-5)


def test_a_gradient_that_is_not_finite_becomes_zero_everywhere(found: dict[str, Any]) -> None:
    """(2.5, inf, 0, 0) with a finite loss: the second weight stays, the first moves by 2.5."""
    assert found["sanitized"]["norm"] == 2.5
    moved = whole(found["sanitized"]["masters"])
    assert moved == pytest.approx([START[0] - 2.5, *START[1:]], abs=1e-7)


def test_a_loss_that_is_not_finite_is_refused_everywhere(found: dict[str, Any]) -> None:
    first, second = found["infinity"]["messages"]
    assert first == second
    assert first.startswith("step 7: loss inf, gradient norm ")
    assert "process 1: clip-1-0, clip-1-1, clip-1-2, clip-1-3." in first
    assert "clip-0-" not in first
    rounded = torch.tensor(START).bfloat16().tolist()
    assert found["infinity"]["weights"] == [rounded, rounded]


def test_sums_have_the_bits_of_deepspeeds_own(found: dict[str, Any]) -> None:
    sums = found["sums"]
    assert sums["ours"] == sums["theirs"]
    assert sum(map(len, sums["ours"])) > 3 * 42  # all masters and moments, and step counts


def test_another_deepspeed_is_left_alone_with_one_warning(found: dict[str, Any]) -> None:
    """The first of two optimizers is of the pinned one, the second has a method changed."""
    guard = found["guard"]
    assert guard["changed"] == [
        *("_add_to_grad_partition_buffer", "average_tensor"),
        "independent_gradient_partition_epilogue",
    ]
    first, second = guard["warnings"]
    assert len(first) == 2  # one each time that a method is prepared
    for told in first:
        assert told.startswith(
            "DeepSpeed 0.19.8 with changes is not DeepSpeed 0.19.8 (envs/gpu.txt)"
        )
        assert "Results are the same; steps take longer" in told
    assert second == []
    assert guard["masters"] == found["sums"]["theirs"]


def test_a_layer_used_twice_has_the_gradient_of_autograd(found: dict[str, Any]) -> None:
    """Within bf16's 8 bits; a lost contribution would change the norm by a third and more."""
    assert found["twice"]["norm"] == pytest.approx(found["twice"]["reference"], rel=0.01)


def test_logs_are_means_over_processes_and_a_request_to_stop_is_shared(
    found: dict[str, Any],
) -> None:
    """The loss is 0.1 · slope, the slopes' mean is 2.5; only the second process was asked."""
    assert found["accumulated"]["loss"] == pytest.approx(0.25, rel=0.01)
    assert found["accumulated"]["stopping"] is True
    assert found["accumulated"]["clips"] == "clip-0-0 clip-0-1 clip-0-2 clip-0-3"
    assert found["sum"] == [3.0, 20.0]


def test_fragments_make_up_every_tensor_once(found: dict[str, Any]) -> None:
    held = found["fragments"]
    parts: dict[str, list[list[float]]] = {}
    for process in held["parts"]:
        for name, shape, start, values in process:
            parameter, _, kind = name.removeprefix("student/").partition(":")
            assert shape == ([] if kind == "step" else held["shapes"][parameter])
            parts.setdefault(name, []).append([start, *values])
    for parameter, values in held["before"].items():
        assert whole(parts[f"student/{parameter}:weight"]) == values
        for moment in ("exp_avg", "exp_avg_sq"):
            assert whole(parts[f"student/{parameter}:{moment}"]) == [0.0] * len(values)
        assert {tuple(part) for part in parts[f"student/{parameter}:step"]} == {(0, 0.0)}
    assert len(parts) == 4 * len(held["before"])


def test_loaded_masters_reach_every_process_and_the_export(found: dict[str, Any]) -> None:
    held = found["fragments"]
    doubled = {
        name: (2 * torch.tensor(values)).bfloat16().float().tolist()
        for name, values in held["before"].items()
    }
    assert held["computing"] == [doubled, doubled]
    assert held["doubled"] == doubled


@pytest.mark.parametrize(
    ("moment", "power", "factors"),
    [
        # 0.1·g, then 0.9 of that and 0.1·2g.
        ("exp_avg", 1, {"trained": 0.1, "restored": 0.29}),
        # 0.001·g², then 0.999 of that and 0.001·(2g)².
        ("exp_avg_sq", 2, {"trained": 0.001, "restored": 0.004999}),
    ],
)
def test_moments_are_each_weights_own_and_go_on_after_a_restart(
    found: dict[str, Any], moment: str, power: int, factors: dict[str, float]
) -> None:
    """The k-th weight of all has the gradient k in the first step and 2k in the second."""
    gradients = {"a": range(1, 6), "b": range(6, 20), "c": range(20, 27)}
    for when, factor in factors.items():
        for name, own in gradients.items():
            parts = [
                [start, *values]
                for process in found["moments"][when]
                for part, start, values in process
                if part == f"student/{name}:{moment}"
            ]
            expected = [factor * gradient**power for gradient in own]
            assert whole(parts) == pytest.approx(expected, rel=1e-5), (when, name)
        # One of the tensors lies on both processes, and not from the start of either's part.
        held = [{part for part, _, _ in process} for process in found["moments"][when]]
        assert held[0] & held[1] >= {f"student/b:{moment}"}
        steps = {1.0} if when == "trained" else {2.0}
        counted = [v for process in found["moments"][when] for p, _, v in process if ":step" in p]
        assert {value for values in counted for value in values} == steps


@pytest.mark.parametrize(
    ("world_size", "micro_batch", "expected"), [(8, 1, (1, 2)), (4, 2, (2, 2)), (2, 16, (8, 1))]
)
def test_the_configuration_fits_any_number_of_processes(
    world_size: int, micro_batch: int, expected: tuple[int, int]
) -> None:
    config = zero_config(world_size, "bf16", 16, micro_batch, gpu=True)
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert tuple(config[name] for name in names) == expected
    assert config["zero_optimization"]["stage"] == 2


def test_without_a_launcher_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UserError, match=r"start it through `python -m gc25d.steps.train`"):
        ZeroEngine("fp32", 1, 4, 1, gpu=False)
