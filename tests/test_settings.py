"""Settings: what is refused and how, what binds a run, and that no description drifts."""

from pathlib import Path

import pytest
import yaml

from gc25d.errors import UserError
from gc25d.plan import load_settings
from gc25d.settings import Settings
from gc25d.settings_base import result_settings
from gc25d.settings_training import Train
from gc25d.steps.document_settings import files

ROOT = Path(__file__).parents[1]


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
    ],
)
def test_illegal_values_are_refused_with_the_way_out(config: dict, said: str) -> None:
    with pytest.raises(UserError) as refused:
        load_settings(config)
    assert said in str(refused.value)


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(UserError) as refused:
        load_settings({"geometry": {"height": 48}, "trian": {}})
    assert len(str(refused.value).splitlines()) == 2


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
