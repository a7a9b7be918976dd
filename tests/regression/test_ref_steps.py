import argparse
import json
import logging

import pytest
from torch import nn

from gc25d.errors import UserError
from gc25d.records import read_json, write_json
from gc25d.regression import devices, gradnorm
from gc25d.regression.fixtures import CELLS, build_fixture
from gc25d.regression.refs import read_refs
from gc25d.settings import Regression
from gc25d.step_settings import RegressionStep, step_json
from gc25d.steps import check_refs, record_refs


def arguments(tmp_path, **changes) -> argparse.Namespace:
    regression = Regression(repeats=2, **changes)
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


def test_recorded_then_checked(tmp_path):
    record_refs.main(arguments(tmp_path))
    refs = read_refs(tmp_path / "refs/CPU.json", "CPU")
    assert set(refs) == {cell.name for cell in CELLS}
    assert refs["wan/finetune"].origin.device_name == "CPU"
    assert refs["wan/finetune"].rtol == 0.10
    report = check(tmp_path, strict=True)
    assert report["passed"] is True
    assert report["cells"]["wan/finetune"]["relative_error"] < 1e-5


def test_recording_keeps_other_cells(tmp_path):
    record_refs.main(arguments(tmp_path))
    path = tmp_path / "refs/CPU.json"
    content = read_json(path)
    content["cells"]["theirs/cell"] = content["cells"]["wan/finetune"]
    write_json(path, content)
    record_refs.main(arguments(tmp_path))
    assert read_refs(path, "CPU").keys() == {"wan/finetune", "theirs/cell"}


def test_another_device_is_named_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "current_device_name", lambda: "NVIDIA H200")
    asked = arguments(tmp_path)
    asked.device, asked.out = "L40S", tmp_path / "refs/L40S.json"
    with pytest.raises(UserError, match=r"NVIDIA H200 \(key H200\), asked for was L40S"):
        record_refs.main(asked)
    assert not asked.out.parent.exists()


def test_a_missing_reference_is_a_visible_skip_or_a_strict_failure(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert check(tmp_path)["passed"] is True
    assert "skipped: nothing recorded" in caplog.text
    with pytest.raises(UserError, match=r"has a missing reference and regression\.strict"):
        check(tmp_path, strict=True)


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
