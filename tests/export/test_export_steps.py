"""export and verify as the rules run them, on what one step of the default model leaves."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gc25d.errors import UserError
from gc25d.records import digest_json, read_json, write_json
from gc25d.settings.steps import TrainStep, load_step, step_json, step_settings
from gc25d.settings.tree import Settings
from gc25d.steps import export, verify
from gc25d.tensors import read_metadata, write_tensors
from gc25d.train.pace import Pace
from gc25d.train.segment import SegmentFiles, Task, train_segment

OUT = "gc_sem_cond.proj_out.weight"
RUNS = ("castle__run-000", "castle__run-001", "castle__run-002")


@pytest.fixture(scope="module")
def run(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step with the defaults of everything that is not the data's shape."""
    folder = tmp_path_factory.mktemp("run") / "train"
    shape: dict[str, Any] = {"geometry": {"frames": 9, "height": 64, "width": 64}}
    shape["prep"] = {"val_runs": [RUNS[-1]], "text": {"length": 16, "dim": 8}}
    shape["train"] = {"global_batch": 4, "cpu_threads": 1}
    shape["validation"] = {"n": 5}
    settings = step_settings(Settings.model_validate(shape), RUNS)["train"]
    assert isinstance(settings, TrainStep)
    write_json(folder / "settings.json", step_json(settings))
    fingerprint = read_json(small_dataset / "READY")["fingerprint"]
    write_json(folder / "binding.json", {"data_fingerprint": fingerprint})
    out = folder / "step-1"
    files = SegmentFiles(out / "weights.safetensors", out / "probe.safetensors", out / "done.json")
    pace = Pace(4, 10, 10, 10, 0)
    train_segment(settings, small_dataset, folder, Task(1, digest_json({})), pace, files)
    return folder


def arguments(run: Path, **changes: Any) -> Namespace:
    step = run / "step-1"
    usual = {
        "settings": run / "settings.json",
        "binding": run / "binding.json",
        "weights": step / "weights.safetensors",
        "probe": step / "probe.safetensors",
        "done": step / "done.json",
        "step": 1,
        "dataset": "small",
        "data_root": "data",
        "average": False,
    }
    return Namespace(**{**usual, **changes})


@pytest.fixture
def exported(run: Path, tmp_path: Path) -> Path:
    path = tmp_path / "step-1.safetensors"
    export.main(arguments(run, out=path))
    return path


def check(run: Path, path: Path, **changes: Any) -> Any:
    report = path.with_suffix(".json")
    verify.main(arguments(run, export=path, out=report, **changes))
    return read_json(report)


def test_the_first_step_is_exported_and_verified(run: Path, exported: Path) -> None:
    """After one step from a seed all but the head and biases has had no gradient yet."""
    assert not load_file(exported)[OUT].any()
    report = check(run, exported)
    assert (report["forward_difference"], report["metadata"]["step"]) == (0, "1")
    assert report["metadata"]["stage"] == "sft_bidirectional"


def drop(tensors: dict[str, Tensor]) -> None:
    del tensors[OUT]


def add(tensors: dict[str, Tensor]) -> None:
    tensors["blocks.0.extra"] = torch.zeros(2).bfloat16()


def widen(tensors: dict[str, Tensor]) -> None:
    tensors[OUT] = tensors[OUT].float()


def clear(tensors: dict[str, Tensor]) -> None:
    tensors["head.head.weight"] = torch.zeros_like(tensors["head.head.weight"])


def fill(tensors: dict[str, Tensor]) -> None:
    tensors[OUT] = tensors[OUT] + 1e-3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop, f"tensor {OUT} is missing"),
        (add, "tensor blocks.0.extra is not one of"),
        (widen, f"tensor {OUT} is torch.float32"),
        (clear, "tensor head.head.weight is all zero, unlike the training's"),
        (fill, f"tensor {OUT} differs from the training's"),
    ],
)
def test_a_changed_file_of_the_first_step_fails(
    run: Path, exported: Path, change: Callable[[dict[str, Tensor]], None], said: str
) -> None:
    tensors, metadata = load_file(exported), read_metadata(exported)
    change(tensors)
    write_tensors(exported, tensors, metadata)
    with pytest.raises(UserError, match=said.replace(".", r"\.")):
        check(run, exported)
    assert not exported.with_suffix(".json").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": 2}, "metadata step is '1', expected '2'"),
        ({"dataset": "other"}, "metadata data is 'small', expected 'other'"),
        ({"data_root": "/d"}, "metadata data_root is 'data', expected '/d'"),
        ({"average": True}, "metadata ema is missing"),
    ],
)
def test_another_runs_file_fails(
    run: Path, exported: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        check(run, exported, **changes)


def test_settings_binding_and_done_decide(run: Path, exported: Path, tmp_path: Path) -> None:
    settings = read_json(run / "settings.json")
    write_json(tmp_path / "s.json", {**settings, "train": {**settings["train"], "lr": 0.5}})
    write_json(tmp_path / "b.json", {"data_fingerprint": "another"})
    done = read_json(run / "step-1/done.json")
    write_json(tmp_path / "d.json", {**done, "resumed_step": 1, "resumed_from": "train/step-1"})
    for name, said in (("s", "lr"), ("b", "data_fingerprint"), ("d", "resumed_from")):
        option = {"s": "settings", "b": "binding", "d": "done"}[name]
        with pytest.raises(UserError, match=f"metadata {said} is '"):
            check(run, exported, **{option: tmp_path / f"{name}.json"})


def test_a_segment_of_an_earlier_version_is_exported(run: Path, tmp_path: Path) -> None:
    """Its done.json says the step at which the segment began, not what lay there."""
    done = read_json(run / "step-1/done.json")
    del done["resumed_from"]
    write_json(tmp_path / "done.json", {**done, "step": 5, "resumed_step": 4})
    export.main(arguments(run, done=tmp_path / "done.json", out=tmp_path / "x.safetensors"))
    said = read_metadata(tmp_path / "x.safetensors")
    assert (said["resumed_from"], said["resumed_step"]) == ("train/step-4", "4")


def test_weights_that_are_not_finite_are_not_exported(
    run: Path, exported: Path, tmp_path: Path
) -> None:
    bad, out = tmp_path / "weights.safetensors", tmp_path / "out.safetensors"
    tensors = load_file(exported)
    tensors[OUT][0, 0] = float("inf")
    write_tensors(bad, tensors, {"vocab": "parts"})
    said = rf"{OUT.replace('.', '[.]')} holds values that are not finite"
    with pytest.raises(UserError, match=f"{bad.name}: tensor {said}"):
        export.main(arguments(run, weights=bad, out=out))
    settings = load_step(run / "settings.json", TrainStep)
    model = settings.model.model_copy(update={"init_ckpt": str(bad)})
    write_json(tmp_path / "s.json", step_json(settings.model_copy(update={"model": model})))
    with pytest.raises(UserError, match=f"the starting weights: tensor {said}"):
        export.main(arguments(run, settings=tmp_path / "s.json", weights=None, done=None, out=out))
    assert not out.exists()
