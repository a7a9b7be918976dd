"""Which methods train which models, and what their settings build."""

from pathlib import Path

import pytest

from gc25d.dataset.clips import ClipDataset
from gc25d.errors import UserError
from gc25d.methods.table import build_method
from gc25d.model.zoo import build_model, wan_config
from gc25d.settings.cells import LEGAL, TAUGHT, check_cell, legal_cells
from gc25d.settings.loading import load_settings
from gc25d.settings.steps import TrainStep
from gc25d.settings.training import Model, Train

BASE = {
    "geometry": {"frames": 9, "height": 64, "width": 64},
    "text_length": 16,
    "text_dim": 8,
    "samples": {},
    "validation": {},
}


def step(train: dict, model: dict | None = None) -> TrainStep:
    return TrainStep.model_validate({**BASE, "model": model or {}, "train": train})


def test_the_table_covers_what_the_settings_offer() -> None:
    assert set(LEGAL) == set(Model.model_fields["name"].annotation.__args__)
    methods = {method for methods in LEGAL.values() for method in methods}
    assert methods == set(Train.model_fields["method"].annotation.__args__)
    assert set(TAUGHT) < methods


@pytest.mark.parametrize(
    ("model", "method"), [("wan", "dfsft"), ("wan_causal", "finetune"), ("cosmos", "dmd2")]
)
def test_illegal_pairs_are_refused_at_parse_time_with_the_legal_ones(
    model: str, method: str
) -> None:
    said = f"method {method} does not train model {model}. Legal are: wan with finetune, kd, dmd2;"
    with pytest.raises(UserError) as refused:
        check_cell(model, method)
    assert said in str(refused.value)
    assert legal_cells() in str(refused.value)
    with pytest.raises(UserError) as refused:
        load_settings({"model": {"name": model}, "train": {"method": method}})
    assert said in str(refused.value)
    with pytest.raises(UserError, match=f"method {method} does not train"):
        build_method(step({"method": method}, {"name": model}), None, None)


def test_a_model_that_is_not_available_says_why() -> None:
    with pytest.raises(UserError, match="longcat is not available: LongCat"):
        check_cell("longcat", "finetune")
    with pytest.raises(UserError, match=r"model\.name: longcat is not available"):
        load_settings({"model": {"name": "longcat"}})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"train": {"method": "dmd2"}}, "which needs a trained teacher: set train.teacher.weights"),
        (
            {
                "train": {"method": "dmd2", "teacher": {"size": "5b"}},
                "model": {"init_dir": "weights"},
            },
            "train.teacher.size needs train.teacher.weights of that size",
        ),
        (
            {"train": {"method": "kd", "teacher": {"weights": "a"}}},
            "set samples.text_dropout, samples.cond_dropout and samples.mask.p to 0",
        ),
        (
            {"train": {"method": "kd", "kd": {"teacher_steps": 10}}},
            "expected a multiple of distill.denoising_steps (4): use 8 or 12",
        ),
    ],
)
def test_a_methods_settings_are_checked(config: dict, said: str) -> None:
    with pytest.raises(UserError) as refused:
        load_settings(config)
    assert said in str(refused.value)


def test_settings_reach_the_method(small_dataset: Path) -> None:
    settings = step(
        {
            "method": "dmd2",
            "seed": 5,
            "lr": 0.1,
            "cond_lr": 0.2,
            "warmup_steps": 0,
            "precision": "bf16",
            "teacher": {"cfg": 3.0, "sem_cfg": 2.0},
            "distill": {
                "denoising_steps": 3,
                "shift": 7.0,
                "generator_update_interval": 4,
                "critic_lr": 0.3,
            },
        }
    )
    model = build_model(wan_config("tiny", "parts", 8), 5)
    clips = ClipDataset(small_dataset, "train")
    method = build_method(settings, model, clips)
    assert list(method.roles) == ["student", "teacher", "critic"]
    assert list(method.trained) == ["student", "critic"]
    assert method.roles["student"] is model
    rates = [[g["lr"] for g in role.optimizer.param_groups] for role in method.trained.values()]
    assert rates == [[0.1, 0.2], [0.3, 0.3]]
    config = method.config
    assert (config.denoising_steps, config.shift, config.generator_update_interval) == (3, 7.0, 4)
    assert (config.guidance.cfg, config.guidance.sem_cfg) == (3.0, 2.0)
    null = config.guidance.null_prompt
    assert null.length == clips.table.lengths[clips.table.null_id]
    teacher, critic = method.roles["teacher"], method.roles["critic"]
    for name, parameter in teacher.named_parameters():
        assert parameter.dtype.itemsize == 2
        assert not parameter.requires_grad
        assert parameter.equal(critic.get_parameter(name).bfloat16())
    assert method.seed == 5
