import argparse
import dataclasses
import json
import logging

import pytest
import torch
from torch import nn

from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.model.weights.shards import save_native_shards
from gc25d.model.zoo import build_model, wan_config
from gc25d.records import read_json, write_json
from gc25d.regression import devices, gradnorm
from gc25d.regression.cells import CELLS, measured_cells, small_cell
from gc25d.regression.fixtures import build_fixture
from gc25d.regression.refs import read_refs
from gc25d.settings.steps import RegressionStep, step_json
from gc25d.settings.tree import Regression
from gc25d.steps import check_refs, record_refs

FEW = (small_cell("wan", "finetune"), small_cell("wan_causal", "dfsft"))


@pytest.fixture
def few(monkeypatch):
    """Two cells stand for all."""
    for step in (record_refs, check_refs):
        monkeypatch.setattr(step, "measured_cells", lambda *_: FEW)


def arguments(tmp_path, **changes) -> argparse.Namespace:
    regression = Regression(**{"repeats": 2, **changes})
    write_json(tmp_path / "settings.json", step_json(RegressionStep(regression=regression)))
    return argparse.Namespace(
        settings=tmp_path / "settings.json",
        device="CPU",
        refs=tmp_path / "refs/CPU.json",
        out=tmp_path / "refs/CPU.json",
    )


def check(tmp_path, **changes) -> dict:
    asked = arguments(tmp_path, **changes)
    asked.out = tmp_path / "regression/CPU.json"
    try:
        check_refs.main(asked)
    finally:
        report = read_json(asked.out)
    return report


def test_all_cells_are_recorded_then_checked(tmp_path):
    record_refs.main(arguments(tmp_path, repeats=1))
    refs = read_refs(tmp_path / "refs/CPU.json", "CPU")
    assert set(refs) == {cell.name for cell in CELLS}
    assert refs["wan/finetune"].origin.device_name == "CPU"
    assert refs["wan/finetune"].rtol == 0.10
    assert refs["matrixgame2/dfsft"].rtol == 0.05
    report = check(tmp_path, strict=True, repeats=1)
    assert report["passed"] is True
    assert max(cell["relative_error"] for cell in report["cells"].values()) < 1e-5


@pytest.mark.usefixtures("few")
def test_recording_keeps_other_cells(tmp_path):
    record_refs.main(arguments(tmp_path))
    path = tmp_path / "refs/CPU.json"
    content = read_json(path)
    content["cells"]["theirs/cell"] = content["cells"]["wan/finetune"]
    write_json(path, content)
    record_refs.main(arguments(tmp_path))
    assert read_refs(path, "CPU").keys() == {"wan/finetune", "wan_causal/dfsft", "theirs/cell"}


def test_cells_on_base_weights(tmp_path):
    """The two pairs without a teacher, measured on the weights of a folder."""
    model = build_model(wan_config("tiny", None, 24), 5, zero_head=False)
    save_native_shards(model.state_dict(), model.config, tmp_path / "base", dtype=torch.float32)
    init_from = str(tmp_path / "base")
    assert measured_cells("") == CELLS
    real = measured_cells(init_from)[len(CELLS) :]
    assert [cell.name for cell in real] == ["wan@tiny/finetune", "wan_causal@tiny/dfsft"]
    first = [build_fixture(cell, torch.device("cpu")) for cell in real]
    for fixture in first:
        own = fixture.transformer.state_dict()
        assert all(torch.equal(own[name], tensor) for name, tensor in model.state_dict().items())
        assert own["gc_sem_cond.proj_out.weight"].any()
        trained = {n for n, p in fixture.transformer.named_parameters() if p.requires_grad}
        assert trained == {name for name in own if name.startswith("blocks.0.")}
    whole = dataclasses.replace(real[0], rtol=0.1)
    measured = gradnorm.measure(whole, torch.device("cpu"), 2)
    assert measured.norm > 0
    assert measured.spread == 0
    with torch.no_grad():
        model.blocks[0].ffn[0].weight.mul_(1.01)
    save_native_shards(model.state_dict(), model.config, tmp_path / "base", dtype=torch.float32)
    again = build_fixture(real[0], torch.device("cpu"))
    assert again.digest != first[0].digest


@pytest.mark.parametrize("recorded_with_contents", [True, False])
def test_base_weights_replaced_outside_block_0_make_a_reference_stale(
    tmp_path, monkeypatch, recorded_with_contents
):
    """Unless it was recorded before the files' digest was: it is compared as it was then."""
    model = build_model(wan_config("tiny", None, 24), 5, zero_head=False)
    save_native_shards(model.state_dict(), model.config, tmp_path / "base", dtype=torch.float32)

    def only_real(init_from, base):
        return measured_cells(init_from, base)[len(CELLS) :][:1]

    for step in (record_refs, check_refs):
        monkeypatch.setattr(step, "measured_cells", only_real)

    def run(step, *, known=True, **changes):
        asked = arguments(tmp_path, init_from=str(tmp_path / "base"), repeats=1, **changes)
        if known:
            found = {path.name: digest_file(path) for path in sorted((tmp_path / "base").iterdir())}
            step_content = read_json(asked.settings)
            step_content["contents"] = {"regression.init_from": found}
            write_json(asked.settings, step_content)
        if step is check_refs:
            asked.out = tmp_path / "regression/CPU.json"
        step.main(asked)
        return read_json(asked.out)["cells"]["wan@tiny/finetune"]

    recorded = run(record_refs, known=recorded_with_contents)
    assert ("base" in recorded) is recorded_with_contents
    assert run(check_refs, strict=True)["outcome"] == "ok"
    with torch.no_grad():
        model.head.head.weight.mul_(1.01)
    save_native_shards(model.state_dict(), model.config, tmp_path / "base", dtype=torch.float32)
    expected = "stale" if recorded_with_contents else "ok"
    assert run(check_refs)["outcome"] == expected


def test_another_device_is_named_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "current_device_name", lambda: "NVIDIA H200")
    asked = arguments(tmp_path)
    asked.device, asked.out = "L40S", tmp_path / "refs/L40S.json"
    with pytest.raises(UserError, match=r"NVIDIA H200 \(key H200\), asked for was L40S"):
        record_refs.main(asked)
    assert not asked.out.parent.exists()


def shifted(tmp_path, factor, **changes) -> None:
    """Multiply the recorded norm of the first cell; `changes` are its other fields."""
    path = tmp_path / "refs/CPU.json"
    content = read_json(path)
    cell = content["cells"]["wan/finetune"]
    content["cells"]["wan/finetune"] = {**cell, "norm": cell["norm"] * factor, **changes}
    write_json(path, content)


@pytest.mark.usefixtures("few")
def test_the_setting_s_tolerance_decides_whatever_was_recorded(tmp_path):
    record_refs.main(arguments(tmp_path))  # with the default, 0.10
    shifted(tmp_path, 1 / 1.05)  # measured 5 % above the reference
    assert check(tmp_path)["passed"]
    with pytest.raises(UserError, match=r"wan/finetune.* 5\.0% off, tolerance 2%"):
        check(tmp_path, rtol=0.02)
    shifted(tmp_path, 1 / 1.10)  # 15.5 % now
    with pytest.raises(UserError, match=r"15\.5% off, tolerance 10%"):
        check(tmp_path)
    assert check(tmp_path, rtol=0.2)["passed"]


@pytest.mark.usefixtures("few")
def test_a_cell_s_own_tolerance_goes_before_the_setting_s(tmp_path, monkeypatch):
    record_refs.main(arguments(tmp_path))
    shifted(tmp_path, 1 / 1.05)
    own = (dataclasses.replace(FEW[0], rtol=0.03), FEW[1])
    monkeypatch.setattr(check_refs, "measured_cells", lambda *_: own)
    with pytest.raises(UserError, match=r"5\.0% off, tolerance 3%"):
        check(tmp_path, rtol=0.5)
    # Given with an import: the tolerance that its owner states for these norms.
    origin = read_json(tmp_path / "refs/CPU.json")["cells"]["wan/finetune"]["origin"]
    shifted(tmp_path, 1.0, rtol=0.08, origin={**origin, "source": "theirs.json"})
    assert check(tmp_path, rtol=0.001)["cells"]["wan/finetune"]["rtol"] == 0.08


@pytest.mark.usefixtures("few")
def test_a_missing_reference_is_a_visible_skip_or_a_strict_failure(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert check(tmp_path)["passed"] is True
    assert "skipped: nothing recorded" in caplog.text
    with pytest.raises(UserError, match=r"has a missing reference and regression\.strict"):
        check(tmp_path, strict=True)


@pytest.mark.usefixtures("few")
def test_out_of_tolerance_fails_after_table_and_report(tmp_path, caplog):
    record_refs.main(arguments(tmp_path))
    path = tmp_path / "refs/CPU.json"
    content = read_json(path)
    content["cells"]["wan/finetune"]["norm"] *= 1.2
    write_json(path, content)
    with pytest.raises(UserError, match=r"wan/finetune: .*: 16\.7% off, tolerance 10%"):
        check(tmp_path)
    assert "OUT OF TOLERANCE" in caplog.text
    report = json.loads((tmp_path / "regression/CPU.json").read_text())
    assert report["failed"] == ["wan/finetune"]
    assert report["cells"]["wan/finetune"]["relative_error"] == pytest.approx(1 - 1 / 1.2, rel=1e-3)


@pytest.mark.usefixtures("few")
def test_no_gradient_at_all_is_refused_in_both_modes(tmp_path, monkeypatch):
    record_refs.main(arguments(tmp_path))
    before = (tmp_path / "refs/CPU.json").read_bytes()

    def silent(*given):
        fixture = build_fixture(*given)
        nn.init.zeros_(fixture.transformer.head.head.weight)
        return fixture

    monkeypatch.setattr(gradnorm, "build_fixture", silent)
    with pytest.raises(UserError, match=r"gradient norm is 0\.0"):
        record_refs.main(arguments(tmp_path))
    assert (tmp_path / "refs/CPU.json").read_bytes() == before
    with pytest.raises(UserError, match=r"gradient norm is 0\.0"):
        check(tmp_path)
    assert read_json(tmp_path / "regression/CPU.json")["passed"] is False
