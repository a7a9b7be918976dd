"""What the evaluation step refuses."""

import logging

import pytest
import torch

from evaluation_set import FIRST, arguments
from gc25d.errors import UserError
from gc25d.model.zoo import build_model, wan_config
from gc25d.prep.encoders.dct import codec_for
from gc25d.records import read_json, write_json
from gc25d.steps import evaluate
from gc25d.tensors import write_tensors


def test_sampled_latents_that_are_not_finite_are_an_error_that_names_the_clip(root, tmp_path):
    """Scales of 1e38 overflow float32 in the first step."""
    asked = arguments(root, tmp_path, cfg=1e38, sem_cfg=1e38)
    with pytest.raises(
        UserError, match=rf"clip {FIRST}: sampled latents: \d+ of 768 values are NaN"
    ):
        evaluate.main(asked)
    assert not asked.out.exists()


def test_decoded_frames_that_are_not_finite_are_an_error_that_names_the_clip(
    root, tmp_path, monkeypatch
):
    """Finite latents of which the codec makes NaN."""

    def broken(name, directory, device):
        codec = codec_for(name, directory, device)
        codec._mean = codec._mean * torch.nan
        return codec

    monkeypatch.setattr(evaluate, "codec_for", broken)
    asked = arguments(root, tmp_path, clips=[FIRST])
    with pytest.raises(UserError, match=rf"clip {FIRST}, sampled: decoded frames: 30720 of 30720"):
        evaluate.main(asked)
    assert not asked.out.exists()


def test_more_clips_than_there_are_is_an_error_that_says_how_many(root, tmp_path):
    with pytest.raises(UserError, match=r"evaluation\.n is 5, .* has 4 usable val clips"):
        evaluate.main(arguments(root, tmp_path, n=5))


def test_an_unknown_clip_is_an_error_that_names_close_ones(root, tmp_path):
    with pytest.raises(UserError, match="hall__run-1__000005"):
        evaluate.main(arguments(root, tmp_path, clips=["hall__run-1__000006"]))
    assert not (tmp_path / "metrics.json").exists()


def test_other_geometry_and_missing_captures_are_errors(root, tmp_path):
    other = arguments(root, tmp_path)
    content = read_json(other.settings)
    content["geometry"]["frames"] = 9
    write_json(other.settings, content)
    with pytest.raises(UserError, match=r"\[5, 32, 64\].*\[9, 32, 64\]"):
        evaluate.main(other)
    lost = arguments(root, tmp_path)
    lost.raw_root = tmp_path
    with pytest.raises(UserError, match="point raw_root at the captures"):
        evaluate.main(lost)


def test_weights_of_other_data_are_said_aloud(root, tmp_path, caplog):
    model = build_model(wan_config("tiny", "parts", 16), 0)
    weights = {name: p.detach().to(torch.bfloat16) for name, p in model.named_parameters()}
    asked = arguments(root, tmp_path, clips=[FIRST])
    asked.weights, asked.scores = tmp_path / "w.safetensors", None
    write_tensors(asked.weights, weights, {"vocab": "parts", "data_fingerprint": "other"})
    with caplog.at_level(logging.WARNING):
        evaluate.main(asked)
    assert "trained on other data" in caplog.text
    assert read_json(tmp_path / "metrics.json")["trained_on"] == "other"
    assert not (tmp_path / "scores.png").exists()
