import json
import sys

import pytest


@pytest.mark.slow
def test_a_killed_training_goes_on_as_if_nothing_had_been(monkeypatch, tmp_path):
    """The script itself refuses logs and states that differ."""
    pytest.importorskip("deepspeed")
    from bench.training import resume

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["--device=cpu", "--size=tiny", "--small", "--processes=1", "--engine=plain"]
    command += ["--until=8", f"--out={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["resume.py", *command])
    resume.main(resume.parse())
    found = json.loads((tmp_path / "resume-CPU-x1.json").read_text())
    assert found["faults"] == []
    assert len(found["losses"]) == found["steps"] == 8
    assert len(set(found["losses"])) == 8
    assert {"stall, step 4", "whole, step 8", "load", "step"} < set(found["seconds"])
    assert found["state_gb"] > 0
