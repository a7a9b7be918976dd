"""What each step's result depends on, as one small JSON file per step.

The rules write these files at parse time, only when their content changes, and each is an input of
its step: an edit reruns exactly the steps it concerns. `version` is raised by hand when a step's
own algorithm changes on purpose.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from gc25d.errors import UserError
from gc25d.records import digest_json, read_json
from gc25d.settings.base import Natural, Positive, Section, result_settings
from gc25d.settings.contents import Contents
from gc25d.settings.training import Model, Train, Validation
from gc25d.settings.tree import (
    Capture,
    Evaluation,
    Geometry,
    Prep,
    Regression,
    Samples,
    Settings,
    Text,
)

READ_BY = {
    "prep": ("prep.codec_dir",),
    "text": ("prep.text.dir",),
    "train": ("model.init_dir", "model.init_ckpt", "train.teacher.weights"),
    "eval": ("prep.codec_dir",),
    "regression": ("regression.init_from",),
}
"""Step → the settings whose files it reads."""


class ReadingStep(Section):
    """A step that reads files which settings name."""

    contents: Contents = Field(default_factory=dict)
    """Setting → its files → SHA-256 (`settings.contents`); for training those of its data too."""


class CaptureStep(Section):
    """One run of a game → one raw run."""

    version: int = 1
    geometry: Geometry
    capture: Capture


class PrepStep(ReadingStep):
    """One raw run → latents, ids and index rows."""

    version: int = 2
    geometry: Geometry
    codec: str
    codec_dir: str


class TextStep(ReadingStep):
    """All prompts → the text table."""

    version: int = 1
    runs: tuple[str, ...] = ()
    text: Text


class IndexStep(Section):
    """All runs' rows → index and READY."""

    version: int = 1
    runs: tuple[str, ...] = ()
    geometry: Geometry
    val_runs: tuple[str, ...]
    buried: tuple[str, ...]
    limit: Natural
    limit_seed: Natural
    strict: bool = False
    global_batch: Positive
    grad_accum: Positive


class TrainStep(ReadingStep):
    """What binds a run: a change of any of these is refused while the run exists."""

    version: int = 2
    geometry: Geometry
    text_length: Positive
    text_dim: Positive
    samples: Samples
    model: Model
    train: Train
    validation: Validation


class EvalStep(ReadingStep):
    """An export → sampled videos and their scores."""

    version: int = 2
    geometry: Geometry
    codec: str
    codec_dir: str
    evaluation: Evaluation
    cpu_threads: Positive


class RegressionStep(ReadingStep):
    """Gradient norms of every cell on one device."""

    version: int = 1
    code: str = ""
    """Digest of the guarded code."""
    regression: Regression

    @property
    def base(self) -> str:
        """Digest of the files of `init_from`; "" without any."""
        files = self.contents.get("regression.init_from")
        return digest_json(files) if files else ""


StepT = TypeVar("StepT", bound=Section)
_CLIP_ID = re.compile(r"\S+__\d{6,}")


def step_settings(settings: Settings, runs: tuple[str, ...]) -> dict[str, Section]:
    """Name of each step's settings file → its content; `runs` are the run ids of the data set."""
    data = {"geometry": settings.geometry}
    prep = settings.prep
    codec = {"codec": prep.codec, "codec_dir": prep.codec_dir}
    return {
        "capture": CaptureStep(**data, capture=_one_run(settings.capture)),
        "prep": PrepStep(**data, **codec),
        "text": TextStep(runs=runs, text=prep.text),
        "index": IndexStep(
            **data,
            runs=runs,
            val_runs=prep.val_runs,
            buried=buried_clips(prep),
            limit=prep.limit,
            limit_seed=prep.limit_seed,
            strict=prep.strict,
            global_batch=settings.train.global_batch,
            grad_accum=settings.train.grad_accum,
        ),
        "train": TrainStep(
            **data,
            text_length=prep.text.length,
            text_dim=prep.text.dim,
            samples=settings.samples,
            model=settings.model,
            train=settings.train,
            validation=settings.validation,
        ),
        "eval": EvalStep(
            **data,
            **codec,
            evaluation=_named_clips(settings.evaluation),
            cpu_threads=settings.train.cpu_threads,
        ),
        "regression": RegressionStep(regression=settings.regression),
    }


def buried_clips(prep: Prep) -> tuple[str, ...]:
    """The clip ids of `prep.buried` and of `prep.buried_file`, each once, sorted.

    Raises:
        UserError: the file is missing or not text, or a line of it is no clip id.
    """
    listed = list(prep.buried)
    if prep.buried_file:
        listed += _listed_clips("prep.buried_file", Path(prep.buried_file))
    return tuple(sorted(set(listed)))


def _named_clips(evaluation: Evaluation) -> Evaluation:
    """With the clip ids of `clips_file` behind those of `clips`."""
    if not evaluation.clips_file:
        return evaluation
    listed = list(_listed_clips("evaluation.clips_file", Path(evaluation.clips_file)))
    if not listed:
        raise UserError(
            f"evaluation.clips_file {evaluation.clips_file} names no clip: add clip ids"
        )
    return evaluation.model_copy(update={"clips": (*evaluation.clips, *listed)})


def _listed_clips(setting: str, path: Path) -> Iterator[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(
            f"{setting} {path} is not readable ({error}): expected a text file with one "
            "clip id a line"
        ) from None
    for number, line in enumerate(lines, start=1):
        clip_id = line.partition("#")[0].strip()
        if clip_id and not _CLIP_ID.fullmatch(clip_id):
            raise UserError(
                f"{setting} {path}, line {number}: {clip_id!r}, expected a clip id "
                "<scene>__<run>__<start, six digits>"
            )
        if clip_id:
            yield clip_id


def _one_run(capture: Capture) -> Capture:
    """What a single run depends on: not on which other runs there are."""
    return capture.model_copy(update={"scenes": (), "runs_per_scene": 1})


def step_json(step: Section) -> dict[str, Any]:
    """The content of a step's settings file: only what alters the result."""
    kept = result_settings(step)
    if not kept.get("contents", True):
        del kept["contents"]
    return kept


def load_step(path: Path, step: type[StepT]) -> StepT:
    """Read a step's settings file.

    Raises:
        UserError: the file is missing or does not fit `step`.
    """
    try:
        return step.model_validate(read_json(path))
    except ValidationError as error:
        raise UserError(
            f"{path}: not the settings of a {step.__name__} ({error.errors()[0]['msg']}): "
            "delete the file, the next run of snakemake writes it anew"
        ) from None
