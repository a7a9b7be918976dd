"""Settings: what is refused and how, what binds a run, and that no description drifts."""

from pathlib import Path

import pytest
import yaml

from gc25d.errors import UserError
from gc25d.settings.base import result_settings
from gc25d.settings.loading import load_settings
from gc25d.settings.training import Train
from gc25d.settings.tree import Settings
from gc25d.steps.document_settings import files

ROOT = Path(__file__).parents[2]
KD = {"kd": {"teacher_steps": 50}, "distill": {"denoising_steps": 4}}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"geometry": {"height": 48}}, "geometry: height is 48, expected a multiple of 32: use 32"),
        ({"geometry": {"width": 80}}, "use 64 or 96"),
        ({"geometry": {"height": 20}}, "use 32"),
        ({"geometry": {"frames": 10}}, "frames is 10, expected 4n + 1: use 9 or 13"),
        ({"trian": {}}, "trian is not a setting: did you mean train?"),
        ({"train": {"lrr": 1}}, "train.lrr is not a setting: did you mean train.lr?"),
        ({"prep": {"text": {"dims": 4}}}, "did you mean prep.text.dim?"),
        ({"train": {"max_steps": 0}}, "train.max_steps is 0: input should be greater than 0"),
        ({"samples": {"text_dropout": 1.5}}, "samples.text_dropout is 1.5"),
        ({"train": {"lr": float("nan")}}, "train.lr is nan"),
        ({"prep": {"codec": "jpeg"}}, "prep.codec is 'jpeg'"),
        ({"prep": {"codec": "wan_vae"}}, "needs prep.codec_dir"),
        ({"train": {"global_batch": 9, "grad_accum": 2}}, "use 8 or 10"),
        ({"model": {"init_dir": "a", "init_ckpt": "b"}}, "keep one of them"),
        ({"geometry": {"frames": 1}}, "frames is 1, expected 4n + 1 and at least 5"),
        ({"geometry": {"frames": 1}}, "use 5"),
        ({"geometry": {"frames": 3}}, "use 5"),
        # truth values, into which YAML turns yes, no, on and off, and texts that are no number
        ({"train": {"lr": True}}, "train.lr: True is no number"),
        ({"train": {"max_steps": True}}, "train.max_steps: True is no number"),
        ({"train": {"ema": False}}, "train.ema: False is no number"),
        ({"samples": {"mask": {"p": True}}}, "samples.mask.p: True is no number"),
        ({"validation": {"timesteps": [500, True]}}, "validation.timesteps.1: True is no number"),
        ({"regression": {"rtol": True}}, "regression.rtol: True is no number"),
        ({"hardware": {"nodes": True}}, "hardware.nodes: True is no number"),
        ({"train": {"lr": "1:30"}}, "train.lr: '1:30' is no number in decimals"),
        ({"train": {"max_steps": "1_000"}}, "'1_000' is no number in decimals"),
        ({"train": {"max_steps": " 3"}}, "' 3' is no number in decimals"),
        ({"validation": {"timesteps": ["nan"]}}, "'nan' is no number in decimals"),
        ({"prep": {"val_runs": [1030]}}, "prep.val_runs.0 is 1030: input should be a valid string"),
        ({"prep": {"val_runs": [False]}}, "put it in quotes"),
        ({"dataset": 10}, "put it in quotes"),
        # bounds
        ({"validation": {"timesteps": []}}, "validation.timesteps is []"),
        ({"validation": {"timesteps": [float("nan")]}}, "validation.timesteps.0 is nan"),
        ({"validation": {"timesteps": [9e9]}}, "validation.timesteps.0 is 9000000000.0"),
        ({"validation": {"timesteps": [-1]}}, "validation.timesteps.0 is -1"),
        ({"validation": {"timesteps": [5, 5.0]}}, "5.0 stands twice"),
        ({"train": {"weight_decay": float("inf")}}, "train.weight_decay is inf"),
        ({"evaluation": {"cfg": float("inf")}}, "evaluation.cfg is inf"),
        ({"capture": {"scenes": ["basic", "basic"]}}, "basic stands twice"),
        # names and folders
        ({"dataset": ".."}, "dataset is '..'"),
        ({"dataset": "."}, "dataset is '.'"),
        ({"dataset": ".hidden"}, "dataset is '.hidden'"),
        ({"dataset": "a/b"}, "dataset is 'a/b'"),
        ({"dataset": "-x"}, "dataset is '-x'"),
        ({"dataset": "a\n"}, "dataset is 'a"),
        ({"prep": {"runs_of": ".."}}, "prep.runs_of is '..'"),
        ({"data_root": ""}, "data_root is ''"),
        ({"data_root": "/d/{x}"}, "data_root is '/d/{x}'"),
        ({"train": {"kd": {"cache": ""}}}, "train.kd.cache is ''"),
        # more clips than there can be: 3 validation runs of 16 clips, 9 others
        ({"validation": {"n": 49}}, "validation.n is 49, but val has 48 clips: use 48 or fewer"),
        ({"evaluation": {"n": 49}}, "evaluation.n is 49, but val has 48 clips"),
        ({"prep": {"limit": 49}}, "prep.limit is 49, but val has 48 clips"),
        ({"prep": {"limit": 11}}, "validation.n is 12, but val has 11 clips"),
        ({"capture": {"clips_per_run": 1}}, "validation.n is 12, but val has 3 clips"),
        (
            {"capture": {"source": "external"}, "prep": {"limit": 2}},
            "validation.n is 12, but val has 2 clips",
        ),
    ],
)
def test_illegal_values_are_refused_with_the_way_out(config: dict, said: str) -> None:
    with pytest.raises(UserError) as refused:
        load_settings(config)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        # `--config 'train={max_steps: 3}'` hands over texts, and 1e-4 is one in YAML 1.1
        ({"train": {"max_steps": "3"}}, "train.max_steps", 3),
        ({"train": {"lr": "1e-4"}}, "train.lr", 1e-4),
        ({"train": {"lr": 1}}, "train.lr", 1.0),
        ({"validation": {"timesteps": ["0", 1000]}}, "validation.timesteps", (0.0, 1000.0)),
        # YAML turns a plain `on` and `off` into truth values
        ({"model": {"compile": True}}, "model.compile", "on"),
        ({"model": {"compile": False}}, "model.compile", "off"),
        ({"geometry": {"frames": 5}}, "geometry.frames", 5),
        ({"dataset": "v1.2_a-b"}, "dataset", "v1.2_a-b"),
        ({"validation": {"n": 48}, "evaluation": {"n": 48}}, "validation.n", 48),
        ({"evaluation": {"n": 99, "clips": ["a__b__000000"]}}, "evaluation.n", 99),
        ({"validation": {"n": 99}, "capture": {"source": "external"}}, "validation.n", 99),
    ],
)
def test_legal_values_mean_what_they_say(config: dict, key: str, value: object) -> None:
    found: object = load_settings(config)
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(UserError) as refused:
        load_settings({"geometry": {"height": 48}, "trian": {}})
    assert len(str(refused.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"geometry": {"frames": 16, "height": 100, "width": 40}},
            [
                "geometry: height is 100, expected a multiple of 32: use 96 or 128",
                "geometry: width is 40, expected a multiple of 32: use 32 or 64",
                "geometry: frames is 16, expected 4n + 1: use 13 or 17",
            ],
        ),
        (
            {"capture": {"scenes": ["castle", "deathmatch", "swamp"]}},
            ["capture: scenes holds 'castle'", "capture: scenes holds 'swamp'"],
        ),
        (
            {"train": {"method": "kd", "global_batch": 9, "grad_accum": 2, **KD}},
            ["train: global_batch is 9", "train: kd.teacher_steps is 50"],
        ),
        (
            {
                "prep": {"codec": "wan_vae", "text": {"encoder": "umt5"}},
                "model": {"init_dir": "a", "init_ckpt": "b"},
            },
            ["needs prep.codec_dir", "needs prep.text.dir", "keep one of them"],
        ),
    ],
)
def test_all_faults_of_a_section_are_named_each_in_a_line(config: dict, said: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        load_settings(config)
    lines = str(refused.value).splitlines()
    assert len(lines) == len(said)
    for line, part in zip(lines, said, strict=True):
        assert line.startswith("config: ")
        assert part in line


def test_free_settings_do_not_bind_a_run() -> None:
    kept = result_settings(Train())
    free = {"max_steps", "checkpoint_every", "save_every", "micro_batch", "log_every", "workers"}
    free |= {"engine", "kernels", "reset_lr_on_resume"}
    assert set(kept) == set(Train.model_fields) - free
    assert result_settings(Train(workers=3, max_steps=7)) == kept
    assert result_settings(Train(lr=2e-3)) != kept


@pytest.mark.parametrize("name", ["config/config.yaml", "config/schema.json", "docs/settings.md"])
def test_descriptions_match_the_code(name: str) -> None:
    assert (ROOT / name).read_text() == files()[name], "python -m gc25d.steps.document_settings"


def test_default_config_has_every_key_and_the_defaults() -> None:
    written = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    assert written == Settings().model_dump(mode="json")


def test_every_setting_is_described() -> None:
    def undescribed(section: type, prefix: str) -> list[str]:
        missing = []
        for name, info in section.model_fields.items():
            kind = info.annotation
            if isinstance(kind, type) and hasattr(kind, "model_fields"):
                missing += undescribed(kind, f"{prefix}{name}.")
            elif not info.description:
                missing.append(prefix + name)
        return missing

    assert undescribed(Settings, "") == []


@pytest.mark.parametrize("name", ["full", "mini"])
def test_shipped_configs_are_legal(name: str) -> None:
    config = yaml.safe_load((ROOT / "config/full.yaml").read_text())
    if name == "mini":
        mini = yaml.safe_load((ROOT / "config/mini.yaml").read_text())
        config = {
            key: {**config.get(key, {}), **mini[key]}
            if isinstance(mini.get(key), dict)
            else mini.get(key, config.get(key))
            for key in config | mini
        }
    settings = load_settings(config)
    # 8 GPUs × 1 × GA 2, and the mini set's 4 GPUs × 1 × GA 2.
    devices = settings.hardware.nodes * settings.hardware.gpus_per_node
    train = settings.train
    assert train.global_batch == devices * train.micro_batch * train.grad_accum
