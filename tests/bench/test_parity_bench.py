import json
import sys

import pytest
import torch


def test_errors_are_taken_of_everything_and_bounded(monkeypatch, tmp_path):
    pytest.importorskip("diffusers")
    from bench.model import parity

    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    command = ["parity.py", "--device", "cpu", "--tiny", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    with torch._dynamo.config.patch(disable=True):
        parity.main()
    found = json.loads((tmp_path / "parity-CPU.json").read_text())
    assert found["errors"]["ours, fp32"]["gradient_max"] < 1e-4
    assert found["errors"]["ours, bf16"]["gradients"] == 2 * 27 + 15  # every parameter
    assert found["errors"]["diffusers, bf16"]["prediction_ratio"] == 1
    assert found["errors"]["ours, bf16"]["prediction"] > 1e-4  # bf16, not fp32 twice
    assert found["loss"]["relative_difference"] == 0  # nothing was compiled


def test_what_is_further_off_than_the_peer_fails():
    from bench.model import parity

    good = {
        "prediction": 1e-6,
        "prediction_ratio": 1.0,
        "gradient_ratio_median": 1.0,
        "gradient_ratio_max": 1.9,
        "gradient_max": 1e-5,
        "worst": {},
    }
    parity.check({"ours, bf16": good, "ours, fp32": good, "diffusers, bf16": good})
    for name, change in (
        ("ours, bf16", {"prediction_ratio": 1.2}),
        ("ours, bf16, compiled", {"gradient_ratio_median": 1.2}),
        ("ours, bf16", {"gradient_ratio_max": float("nan")}),
        ("ours, fp32", {"gradient_max": 2e-3}),
        ("ours, fp32", {"prediction": 2e-5}),
    ):
        with pytest.raises(SystemExit):
            parity.check({name: good | change})
