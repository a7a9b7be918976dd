import argparse
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from evaluation_set import FIRST, arguments
from gc25d.dataset.clips import ClipDataset
from gc25d.evaluate import clips as clips_module
from gc25d.evaluate.metrics import score_clip
from gc25d.evaluate.panels import GAP, LABEL_HEIGHT, video_shape
from gc25d.evaluate.truth import recorded_frames
from gc25d.export.read import load_model
from gc25d.files import digest_file
from gc25d.model.wan.causal import CausalWanModel
from gc25d.prep.encoders.dct import codec_for
from gc25d.prep.store import read_tensor
from gc25d.records import read_json
from gc25d.sampling.rollout import roll_out
from gc25d.sampling.sample import Plan, sample, starting_noise
from gc25d.steps import evaluate, plot_overlay

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def done(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("done")
    evaluate.main(arguments(root, out))
    return out


def test_metrics_are_the_means_of_what_lies_beside_them(root, done):
    metrics = read_json(done / "metrics.json")
    # Round-robin over the two validation runs.
    expected = [FIRST, "yard__run-0__000000", "hall__run-1__000005"]
    assert [clip["clip_id"] for clip in metrics["clips"]] == expected
    for score in ("psnr", "ssim"):
        by_clip = []
        for clip in metrics["clips"]:
            frames = read_json(done / f"clips/{clip['clip_id']}.json")
            assert frames["frame"] == [1, 2, 3, 4]
            by_clip.append(np.mean(frames[score]))
            assert clip[score] == pytest.approx(by_clip[-1], abs=2e-6)
            assert clip["ceiling"][score] == pytest.approx(
                np.mean(frames[f"ceiling_{score}"]), abs=2e-6
            )
        assert metrics[score] == pytest.approx(np.mean(by_clip), abs=2e-6)
    assert metrics["step"] == 7
    given = [clip["frame_0_psnr"] for clip in metrics["clips"]]
    assert metrics["frame_0"]["psnr"] == pytest.approx(np.mean(given), abs=2e-6)
    assert metrics["frame_0"]["note"] == frames["frame_0"]["note"]
    assert "no mean" in metrics["frame_0"]["note"]


def test_frame_0_is_the_given_frame_through_the_codec(root, done):
    """It is generated from the very latent that the codec alone decodes, to rounding."""
    truth, _ = recorded_frames(root / "raw", FIRST, (5, 32, 64))
    codec = codec_for("dct", "")
    decoded = codec.decode(codec.encode(truth))
    mse = np.mean((decoded[0].astype(float) - truth[0].astype(float)) ** 2)
    frames = read_json(done / f"clips/{FIRST}.json")
    by_hand = 10 * np.log10(255**2 / mse)
    assert frames["frame_0"]["psnr"] == pytest.approx(by_hand, abs=0.5)
    assert frames["frame_0"]["ceiling_psnr"] == pytest.approx(by_hand, abs=0.5)
    assert frames["frame_0"]["psnr"] > max(frames["psnr"])


def test_metrics_name_their_origin(root, done):
    metrics = read_json(done / "metrics.json")
    assert metrics["weights_sha256"] == digest_file(root / "step-7.safetensors")
    assert metrics["settings"]["evaluation"]["steps"] == 3
    assert metrics["seconds"] > 0


def test_the_ceiling_is_the_codec_alone(root, done):
    truth, _ = recorded_frames(root / "raw", FIRST, (5, 32, 64))
    codec = codec_for("dct", "")
    by_hand = score_clip(codec.decode(codec.encode(truth)), truth, FIRST).means
    ceiling = read_json(done / "metrics.json")["clips"][0]["ceiling"]
    # The data set's latents are bf16, these are float32.
    assert ceiling["psnr"] == pytest.approx(by_hand.psnr, abs=0.5)
    assert ceiling["psnr"] > read_json(done / "metrics.json")["clips"][0]["psnr"] + 5


def test_videos_and_pictures_are_written(done):
    factor = 8  # 32 → 256
    size = (LABEL_HEIGHT + 32 * factor, 3 * 64 * factor + 2 * GAP)
    videos = sorted((done / "clips").glob("*.mp4"))
    assert len(videos) == 3
    assert all(video_shape(video) == (5, *size) for video in videos)
    for name in ("sheet.png", "scores.png"):
        with Image.open(done / name) as picture:
            assert picture.size[0] > 600


def test_equal_runs_give_equal_results(root, done, tmp_path):
    evaluate.main(arguments(root, tmp_path))
    for path in sorted((done / "clips").iterdir()):
        assert path.read_bytes() == (tmp_path / "clips" / path.name).read_bytes()

    def without_times(folder):
        metrics = read_json(folder / "metrics.json")
        del metrics["seconds"]
        return metrics | {"clips": [clip | {"sampling_s": 0} for clip in metrics["clips"]]}

    assert without_times(done) == without_times(tmp_path)


def test_a_clip_scores_the_same_alone(root, done, tmp_path):
    evaluate.main(arguments(root, tmp_path, clips=[FIRST]))
    alone = read_json(tmp_path / "metrics.json")
    assert [clip["clip_id"] for clip in alone["clips"]] == [FIRST]
    together = read_json(done / "metrics.json")["clips"][0]
    assert alone["psnr"] == pytest.approx(together["psnr"], abs=1e-3)


def test_settings_change_what_is_sampled(root, done, tmp_path):
    base = read_json(done / f"clips/{FIRST}.json")["psnr"]
    for number, change in enumerate(
        [{"seed": 1}, {"sem_cfg": 3.0}, {"cfg": 3.0}, {"steps": 4}, {"shift": 1.0}]
    ):
        out = tmp_path / str(number)
        evaluate.main(arguments(root, out, clips=[FIRST], **change))
        assert read_json(out / f"clips/{FIRST}.json")["psnr"] != pytest.approx(base, abs=1e-4)


def test_unknown_mode_hides_every_id_from_the_model(root, tmp_path, monkeypatch):
    seen = []
    sample = clips_module.sample

    def spy(model, given, *rest, **more):
        seen.append(given.sem_ids)
        return sample(model, given, *rest, **more)

    monkeypatch.setattr(clips_module, "sample", spy)
    evaluate.main(arguments(root, tmp_path, clips=[FIRST], sem_mode="unknown"))
    assert (seen[0] == 255).all()


def test_what_the_model_is_given(root):
    dataset = clips_module.ClipDataset(root / "data", "val")
    given = clips_module.conditions_of(
        [dataset.clip("hall__run-1__000005")], dataset.table, "cond", torch.device("cpu")
    )
    path = root / "data/latents/hall__run-1.safetensors"
    stored = read_tensor(path, "hall__run-1__000005").float()
    assert torch.equal(given.first[0, :, 0], stored[:, 0])
    lengths = given.prompt_lengths[given.context_ids[0]].tolist()
    assert lengths == [len("Walks on."), len("stop")]
    assert given.prompt_lengths[given.null_prompt] == 0
    assert (given.sem_ids[0, :, :16] == 5).all()
    assert (given.sem_ids[0, :, 16:] == 1).all()


def test_a_causal_model_is_rolled_out(root):
    wan = load_model(root / "step-7.safetensors", CPU)
    model = CausalWanModel(wan.config, 1)
    model.load_state_dict(wan.state_dict())
    dataset, codec, plan = ClipDataset(root / "data", "val"), codec_for("dct", ""), Plan(3, 5.0)
    evaluator = clips_module.Evaluator(
        model, codec, dataset, root / "raw", plan, sem_mode="cond", seed=0, device=CPU, threads=1
    )
    said: list[str] = []
    (clip,) = evaluator.run([FIRST], said.append)
    given = clips_module.conditions_of([dataset.clip(FIRST)], dataset.table, "cond", CPU)
    start = starting_noise(0, [FIRST], (48, 2, 2, 4))
    expected = codec.decode(roll_out(model, given, start, plan)[0])
    assert np.array_equal(clip.generated, expected)
    assert not np.array_equal(clip.generated, codec.decode(sample(wan, given, start, plan)[0]))
    assert said[-1].endswith("step 6/6")  # two chunks


@pytest.mark.parametrize(
    ("count", "tokens", "sizes"),
    [(3, 10, [3]), (5, 4096, [2, 2, 1]), (2, 8190, [1, 1]), (1, 20000, [1])],
)
def test_batches_hold_as_many_tokens_as_fit(count, tokens, sizes):
    groups = clips_module.batches([str(i) for i in range(count)], tokens)
    assert [len(group) for group in groups] == sizes
    assert [clip for group in groups for clip in group] == [str(i) for i in range(count)]


def test_the_command_line(root, tmp_path, monkeypatch):
    line = ["--settings", "s", "--weights", "w", "--data", "d", "--raw-root", "r"]
    line += ["--out", "o", "--clips", "c", "--sheet", "p", "--log", "l"]
    monkeypatch.setattr(sys, "argv", ["evaluate", *line])
    parsed = vars(evaluate.parse_arguments())
    assert parsed.keys() == vars(arguments(root, tmp_path)).keys() | {"log"}
    assert parsed["scores"] is None


def test_the_overlay_of_the_training_clips(root, tmp_path):
    out = tmp_path / "overlay.png"
    plot_overlay.main(
        argparse.Namespace(data=root / "data", raw_root=root / "raw", out=out, clips=9)
    )
    with Image.open(out) as picture:
        # Five frames of 64 pixels, enlarged five times.
        assert picture.size[0] == 5 * 64 * 5 + 4 * GAP
