import argparse
import logging
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from gc25d.capture.format import ClipTable, RawClip, RunMeta, Skeletons, write_run
from gc25d.dataset.clips import ClipDataset
from gc25d.errors import UserError
from gc25d.evaluate import clips as clips_module
from gc25d.evaluate.metrics import score_clip
from gc25d.evaluate.panels import GAP, LABEL_HEIGHT, video_shape
from gc25d.evaluate.rollout import roll_out
from gc25d.evaluate.sample import Plan, sample, starting_noise
from gc25d.evaluate.truth import recorded_frames
from gc25d.export.read import load_model
from gc25d.geometry.camera import look, perspective, rotator_axes
from gc25d.model.causal import CausalWanModel
from gc25d.model.zoo import build_model, wan_config
from gc25d.prep.codec import codec_for
from gc25d.prep.store import read_tensor
from gc25d.records import digest_file, read_json, write_json
from gc25d.regression.weights import randomise
from gc25d.settings import Settings
from gc25d.step_settings import step_json, step_settings
from gc25d.steps import build_index, encode_text, evaluate, plot_overlay, prep_run
from gc25d.tensors import write_tensors

GEOMETRY = {"frames": 5, "height": 32, "width": 64}
RUNS = ("hall__run-0", "hall__run-1", "yard__run-0")
FIRST = "hall__run-1__000000"
CPU = torch.device("cpu")
CAMERA = look(np.array([0.0, 0, 100]), rotator_axes(0, 0, 0)) @ perspective(90, 2.0, 5.0)


def write_raw(folder, seed: int) -> None:
    """A run of 10 frames and two clips: a smooth picture that shifts, half ground, half wall."""
    count, height, width = 10, GEOMETRY["height"], GEOMETRY["width"]
    t, y, x = np.mgrid[:count, :height, :width]
    waves = [127 + 90 * np.sin((x + 2 * t) / 9 + c + seed) * np.cos(y / 11) for c in range(3)]
    stencil = np.where(np.arange(height)[:, None] < 16, 5, 1) * np.ones((1, width), int)
    write_run(
        folder,
        frames=list(np.stack(waves, axis=-1).astype(np.uint8)),
        stencil=[stencil.astype(np.uint8)] * count,
        cameras=np.tile(CAMERA, (count, 1, 1)),
        skeletons=Skeletons(np.zeros((count, 0, 7), np.float32), np.zeros(0, np.uint8)),
        meta=RunMeta(10.0, width, height, (0.0,), "cm", "perspective", "test", "none"),
        tables=[
            ClipTable(
                5, {"go": "Walks on."}, (RawClip(0, ("go", "go")), RawClip(5, ("go", "stop")))
            )
        ],
    )


def settings_of(evaluation: dict) -> Settings:
    return Settings.model_validate(
        {
            "geometry": GEOMETRY,
            "prep": {"val_runs": RUNS[1:], "text": {"length": 24, "dim": 16}},
            "train": {"global_batch": 1, "cpu_threads": 1},
            "evaluation": {"steps": 3, "n": 3, **evaluation},
        }
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A data set of three runs, and weights through which every input matters."""
    root = tmp_path_factory.mktemp("eval")
    for name, step in step_settings(settings_of({}), RUNS).items():
        write_json(root / f"settings/{name}.json", step_json(step))
    rows = []
    for seed, run_id in enumerate(RUNS):
        folder = root / "raw/sub" / run_id.replace("__", "/")
        write_raw(folder, seed)
        rows.append(root / f"data/index/runs/{run_id}.jsonl")
        prep_run.main(
            argparse.Namespace(
                workers=0,
                settings=root / "settings/prep.json",
                raw=folder,
                run_id=run_id,
                latents=root / f"data/latents/{run_id}.safetensors",
                ids=root / f"data/ids/{run_id}.safetensors",
                rows=rows[-1],
                record=root / f"data/index/raw/{run_id}.json",
            )
        )
    table = root / "data/text/table.safetensors"
    encode_text.main(argparse.Namespace(settings=root / "settings/text.json", rows=rows, out=table))
    build_index.main(
        argparse.Namespace(
            settings=root / "settings/index.json",
            rows=rows,
            table=table,
            root=root / "data",
            clips=root / "data/index/clips.jsonl",
            ready=root / "data/READY",
        )
    )
    model = build_model(wan_config("tiny", "parts", 16), 0)
    randomise(model, 0)
    weights = {name: p.detach().to(torch.bfloat16) for name, p in model.named_parameters()}
    fingerprint = read_json(root / "data/READY")["fingerprint"]
    metadata = {"vocab": "parts", "step": "7", "data_fingerprint": fingerprint}
    write_tensors(root / "step-7.safetensors", weights, metadata)
    return root


def arguments(root, out, **evaluation) -> argparse.Namespace:
    step = step_settings(settings_of(evaluation), RUNS)["eval"]
    write_json(out / "settings.json", step_json(step))
    return argparse.Namespace(
        settings=out / "settings.json",
        weights=root / "step-7.safetensors",
        data=root / "data",
        reads=[],
        raw_root=root / "raw",
        out=out / "metrics.json",
        clips=out / "clips",
        sheet=out / "sheet.png",
        scores=out / "scores.png",
    )


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


def test_the_command_line(root, tmp_path, monkeypatch):
    line = ["--settings", "s", "--weights", "w", "--data", "d", "--raw-root", "r"]
    line += ["--out", "o", "--clips", "c", "--sheet", "p", "--log", "l"]
    monkeypatch.setattr(sys, "argv", ["evaluate", *line])
    parsed = vars(evaluate._arguments())
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
