import json
import sys

import pytest
import torch

OURS = ["ours, eager", "ours, compiled", "ours, compiled, recompute half"]
OURS += ["ours, compiled, recompute all", "ours, compiled, sampling step"]
OURS += [
    "ours, compiled, 3 distinct prompts",
    "ours, compiled, other prompts",
    "ours, compiled, deterministic kernels",
]
PEER = ["diffusers, as shipped", "diffusers, at its best", "diffusers, at its best, sampling step"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    """Blocks run as they are, here and in child processes."""
    pytest.importorskip("diffusers")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    deterministic = torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    with torch._dynamo.config.patch(disable=True):
        yield
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fill


def test_every_alternative_runs_beside_its_floor(monkeypatch):
    from bench.common.flops import Ceilings
    from bench.common.micro import chosen_size
    from bench.model import microbatch

    size = chosen_size(tiny=True, layers=1)
    found = microbatch.race_all(["ours", "peer"], size, CPU, 2)
    assert set(found) == {*OURS, *PEER}
    work = microbatch.works(size)
    for name, entry in found.items():
        assert 0 < entry["best_s"] <= entry["s"], name
        floor = microbatch.against_floor(name, entry, work, Ceilings(1e9, 1e9, 1e9))
        # With equal ceilings the floor is the operations: here one TFLOP takes 1000 s.
        assert floor["floor_s"] == pytest.approx(1e3 * floor["tflop"]), name
        assert floor["of_floor"] == pytest.approx(floor["floor_s"] / entry["s"]), name
    floors = {name: microbatch.against_floor(name, {}, work, None)["tflop"] for name in found}
    assert floors["ours, compiled"] > floors["diffusers, at its best"]  # the condition, more text
    assert floors["ours, compiled, 3 distinct prompts"] > floors["ours, compiled"]
    # Backward passes are once to 2.5 times the forward pass.
    assert 2 < floors["ours, compiled"] / floors["ours, compiled, sampling step"] < 3.5


def test_what_does_not_fit_is_reported_and_the_rest_goes_on():
    from bench.common.timing import Contender, race

    layer = torch.nn.Linear(2, 2)

    def too_large():
        layer(torch.ones(1, 2)).sum().backward()
        raise torch.cuda.OutOfMemoryError("tried\nhard")

    fits = Contender(layer, lambda: layer(torch.ones(1, 2)).sum().backward())
    found = race({"large": Contender(layer, too_large), "fits": fits}, CPU, 3)
    assert found["large"] == {"error": "OutOfMemoryError: tried"}
    assert found["fits"]["repeats"] == 3
    assert layer.weight.grad is None


@pytest.mark.slow
def test_the_script_writes_its_figures(monkeypatch, tmp_path, capsys):
    from bench.model import microbatch

    command = ["microbatch.py", "--device", "cpu", "--tiny", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--repeats", "2", "--layers", "1"])
    microbatch.main()
    found = json.loads((tmp_path / "microbatch-CPU.json").read_text())
    warm = [name for name, entry in found["seconds"].items() if "first_warm_s" in entry]
    assert warm == ["ours, compiled", "diffusers, at its best"]
    assert found["size"]["config"]["num_layers"] == 1
    assert set(found["ceilings_tflops_per_s"]) == {
        "matmul", "attention forward", "attention training"
    }  # fmt: skip
    table = capsys.readouterr().out.splitlines()
    assert any(line.startswith("diffusers, at its best ") for line in table)
    monkeypatch.setattr(sys, "argv", [*command, "--only", "theirs"])
    with pytest.raises(SystemExit):
        microbatch.main()
