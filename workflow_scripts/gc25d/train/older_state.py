"""States of the format before this one: weights, and a JSON with {step, arm, vocab}.

The older of them say nothing of the data. They need not: which samples follow step n is arithmetic
on n (epoch n // steps-per-epoch, the rest of n steps into it). The newer of them do, in terms of
another system's order of samples: it is told and not used. Their moments are not taken over: AdamW
starts with zero moments and its own step count at 0, as for a new run, while rates and data go on
at n.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gc25d.errors import UserError
from gc25d.methods.finetune import FinetuneMethod
from gc25d.model.start import model_config, starting_model
from gc25d.model.weights.files import load_tensors
from gc25d.records import read_json
from gc25d.settings.steps import TrainStep
from gc25d.train.ema import with_average
from gc25d.train.engine import PlainEngine
from gc25d.train.states.writer import StateWriter

ARM = "gc25d"
STUDENT_ALONE = ("finetune", "dfsft")
"""Methods that train one model; its state is the same for all of them."""
KEYS = {"step": int, "arm": str, "vocab": str}
POSITION = ("epoch", "epoch_micro", "n_train")
"""What the newer of them say of their place in the data, among other keys."""


@dataclass(frozen=True)
class OlderState:
    """What the JSON of an older state says."""

    step: int
    arm: str
    vocab: str
    unused: Mapping[str, Any]
    """Of the newer form: what it says beyond that, its place in the data above all."""


def read_older_state(path: Path, vocab: str) -> OlderState:
    """Read the JSON of an older state that this run can go on from.

    Args:
        path: of the JSON.
        vocab: of the run.

    Raises:
        UserError: a key is missing, or it is of another arm or vocab.
    """
    content = read_json(path)
    for key, kind in KEYS.items():
        if not isinstance(content, dict) or type(content.get(key)) is not kind:
            raise UserError(f"{path}: expected step (an integer), arm and vocab: {key} is missing")
    beyond = {key: value for key, value in content.items() if key not in KEYS}
    newer = any(key in beyond for key in POSITION)
    state = OlderState(content["step"], content["arm"], content["vocab"], beyond if newer else {})
    for key, found, expected in (("arm", state.arm, ARM), ("vocab", state.vocab, vocab)):
        if found != expected:
            raise UserError(f"{path}: {key} is {found!r}, this run's is {expected!r}")
    if state.step < 1:
        raise UserError(f"{path}: step is {state.step}, expected 1 or more")
    return state


def place_state(settings: TrainStep, weights: Path, step: int, root: Path, binding: str) -> None:
    """Write the state of this format from which the run goes on after `step`.

    Args:
        settings: of the run.
        weights: every tensor of the model under its native name, bf16 or fp32.
        step: optimizer steps behind them.
        root: folder of the run's states.
        binding: of the run.

    Raises:
        UserError: the weights are not this model's, or the method trains more than one model.
    """
    train = settings.train
    if train.method not in STUDENT_ALONE:
        raise UserError(
            f"train.method {train.method} trains more than one model, {weights} holds one: start "
            "from it with model.init_ckpt"
        )
    model = starting_model(model_config(settings), train.seed, "", "")
    load_tensors(model, weights)
    engine = PlainEngine(train.precision, train.cpu_threads, gpu=False)
    live = engine.fragments(FinetuneMethod(model, seed=train.seed))
    fragments, _ = with_average(live, train.ema)
    writer = StateWriter(root)
    writer.save(step, fragments, binding=binding, checkpoint=True, segment_start=step)
    writer.wait()
