"""The export of the starting weights: what training starts from, rounded to bf16."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gc25d.export.read import load_model
from gc25d.export.verify import expected_shapes
from gc25d.model.start import model_config, starting_model
from gc25d.records import write_json
from gc25d.settings.steps import step_json
from gc25d.steps import export
from gc25d.tensors import digest_tensors, read_metadata, write_tensors
from small_step import small_step

SETTINGS = small_step(train={"seed": 4})


@pytest.fixture
def arguments(tmp_path: Path) -> Namespace:
    """Of the starting weights."""
    write_json(tmp_path / "settings.json", step_json(SETTINGS))
    write_json(tmp_path / "binding.json", {"data_fingerprint": "f"})
    return Namespace(
        settings=tmp_path / "settings.json",
        binding=tmp_path / "binding.json",
        weights=None,
        done=None,
        average=False,
        dataset="d",
        data_root="data",
        out=tmp_path / "base.safetensors",
    )


def test_base_weights_are_the_starting_ones_in_bf16(arguments: Namespace) -> None:
    export.main(arguments)
    tensors = load_file(arguments.out)
    assert {name: tuple(t.shape) for name, t in tensors.items()} == expected_shapes(
        model_config(SETTINGS)
    )
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    start = starting_model(model_config(SETTINGS), 4, "", "").state_dict()
    assert {tensor.dtype for tensor in start.values()} == {torch.float32}
    for name, tensor in tensors.items():
        assert torch.equal(tensor, start[name].to(torch.bfloat16)), name
    # Two bytes a number: the size of the file tells it too.
    numbers = sum(tensor.numel() for tensor in tensors.values())
    header = 8 + int.from_bytes(arguments.out.read_bytes()[:8], "little")
    assert arguments.out.stat().st_size == header + 2 * numbers
    metadata = read_metadata(arguments.out)
    assert (metadata["step"], metadata["resumed_step"], metadata["resumed_from"]) == ("0", "0", "")
    assert metadata["tensors_sha256"] == digest_tensors(tensors)


def test_the_condition_of_base_weights_is_there_and_zero(arguments: Namespace) -> None:
    export.main(arguments)
    model = load_model(arguments.out, torch.device("cpu"))
    condition = {n: p for n, p in model.named_parameters() if n.startswith("gc_sem_cond.")}
    assert len(condition) == 6
    assert not condition["gc_sem_cond.proj_out.weight"].any()
    assert not condition["gc_sem_cond.proj_out.bias"].any()
    assert condition["gc_sem_cond.proj_in.weight"].any()


@pytest.mark.parametrize("average", [False, True])
def test_a_steps_weights_are_exported_as_they_are(arguments: Namespace, average: bool) -> None:
    folder = arguments.out.parent
    weights = {"a": torch.arange(3.0).bfloat16(), "b": torch.tensor(1.5).bfloat16()}
    write_tensors(folder / "weights.safetensors", weights, {})
    write_json(folder / "done.json", {"step": 9, "resumed_step": 6})
    arguments.weights, arguments.done = folder / "weights.safetensors", folder / "done.json"
    arguments.average = average
    export.main(arguments)
    found = load_file(arguments.out)
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(found[name], tensor)
    assert read_metadata(arguments.out)["step"] == "9"
    assert ("ema" in read_metadata(arguments.out)) == average
