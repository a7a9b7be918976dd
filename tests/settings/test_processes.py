"""How many processes may train is settled before anything is built."""

from typing import Any

import pytest

from gc25d.errors import UserError
from gc25d.settings.loading import load_settings
from gc25d.workflow.environment import training_processes


def settings(train: dict[str, Any], hardware: dict[str, Any]) -> dict[str, Any]:
    return {"train": train, "hardware": hardware}


@pytest.mark.parametrize(
    ("hardware", "engine", "per_node"),
    [
        ({}, "plain", 1),
        ({"gpus_per_node": 1}, "plain", 1),
        ({"gpus_per_node": 4}, "deepspeed", 4),
        ({"gpus_per_node": 1, "nodes": 2}, "deepspeed", 1),
        ({"processes": 2}, "deepspeed", 2),
        ({"gpus_per_node": 4, "processes": 4}, "deepspeed", 4),
    ],
)
def test_auto_takes_deepspeed_for_more_than_one_process(
    hardware: dict[str, Any], engine: str, per_node: int
) -> None:
    loaded = load_settings(settings({"global_batch": 8}, hardware))
    assert training_processes(loaded) == (engine, per_node)


def test_one_process_may_ask_for_deepspeed() -> None:
    loaded = load_settings(settings({"engine": "deepspeed"}, {}))
    assert training_processes(loaded) == ("deepspeed", 1)


def test_low_precision_masters_need_the_plain_engine_and_bf16() -> None:
    low = {"master_weights": "bf16", "precision": "bf16"}
    assert load_settings(settings(low, {})).train.master_weights == "bf16"
    with pytest.raises(UserError, match="master_weights is bf16 with the deepspeed engine"):
        load_settings(settings(low, {"gpus_per_node": 2}))
    with pytest.raises(UserError, match="master_weights is bf16 with precision fp32"):
        load_settings(settings({"master_weights": "bf16"}, {}))


def test_a_batch_that_does_not_divide_is_refused_with_the_legal_numbers() -> None:
    asked = settings({"global_batch": 12, "grad_accum": 2}, {"nodes": 2, "gpus_per_node": 4})
    with pytest.raises(
        UserError,
        match=r"8 processes \(2 x 4\), which train.global_batch 12 does not divide among: "
        r"use 1, 2, 3, 4, 6, 12 processes",
    ):
        load_settings(asked)


def test_the_plain_engine_is_one_process() -> None:
    with pytest.raises(UserError, match=r"train.engine is plain, .* and hardware asks for 2"):
        load_settings(settings({"engine": "plain"}, {"gpus_per_node": 2}))


def test_a_gpu_has_one_process() -> None:
    with pytest.raises(UserError, match=r"processes is 2 with 4 GPUs a node.*use 0 or 4"):
        load_settings(settings({}, {"gpus_per_node": 4, "processes": 2}))
