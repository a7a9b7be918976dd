"""The benchmark of the encoder runs through on a CPU, with a tiny autoencoder."""

import json
import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench/encode.py"


def test_the_benchmark_measures_everything_it_reports(tmp_path, monkeypatch, capsys):
    options = ["--device", "cpu", "--tiny", "--workers", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    report = json.loads((tmp_path / "encode-CPU.json").read_text())
    assert 0 <= report["check"]["ours"] < 1e-5  # the same model in fp32, whatever its layers
    assert all(entry["s"] > 0 for entry in report["encoder"].values())
    assert len(report["encoder"]) == 3  # all variants but the compiled ones
    step = report["step"]
    share = step["encoder alone"] / step["reading and encoding"]
    assert step["share of the encoder's own speed"] == share
    assert 0 < step["reading and encoding"] < step["the whole step, start included"]
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*report["encoder"], *step))
