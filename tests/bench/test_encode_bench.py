"""The benchmark of the encoder runs through on a CPU, with a tiny autoencoder."""

import json
import runpy
import sys

import pytest


@pytest.fixture
def encode(monkeypatch, tmp_path):
    """Runs bench/data/encode.py with options; the folder of its results."""

    def run(*options):
        base = ["--device", "cpu", "--tiny", "--workers", "1", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["encode.py", *base, *options])
        runpy.run_module("bench.data.encode", run_name="__main__")
        return tmp_path

    return run


def test_the_benchmark_measures_everything_it_reports(encode, capsys):
    report = json.loads((encode() / "encode-CPU.json").read_text())
    assert 0 <= report["check"]["ours"] < 1e-5  # the same model in fp32, whatever its layers
    assert all(entry["s"] > 0 for entry in report["encoder"].values())
    assert len(report["encoder"]) == 3  # all variants but the compiled ones
    step = report["step"]
    running, whole = "reading and encoding, once running", "the whole step again, compiled before"
    assert 0 < step[running] <= step["reading and encoding"] < step[whole]
    share = step["encoder alone"] / step[running]
    assert step["share of the encoder's own speed, once running"] == share
    clips = report["size"]["listed"]
    start = step["seconds of start in the latter"]
    assert start + clips * step[running] == pytest.approx(clips * step[whole])
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*report["encoder"], *report["reading"], *step))


def test_reading_alone_needs_no_autoencoder(encode, capsys):
    folder = encode("--only", "reading")
    assert list(folder.iterdir()) == []
    printed = capsys.readouterr().out
    assert "reading, CPU seconds of one core" in printed
    assert "encoder" not in printed
